"""The hash chain of a ledger: each line holds the hash of the line before it, and its own.

    {..., "previous": "<hash of the line before>", "hash": "<SHA-256 of this line up to here>"}

A line that is changed, moved, removed or inserted no longer fits its neighbours. To hide a change, all later hashes
must be computed again, which changes the last hash. So publish the last hash (`python -m chimera.eval --verify`).
"""

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chimera.core.errors import RunError
from chimera.core.files import parse_object

FIELDS = ("previous", "hash")
"""The fields that a chain adds to each record."""
_OWN = re.compile(rb',"hash":"([0-9a-f]{64})"\}\n?\Z')
_PREVIOUS = re.compile(rb',"previous":"([0-9a-f]{64}|)"\Z')
TAIL = len(',"hash":""}\n') + 64
"""Number of bytes at the end of a file that hold its last hash."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of a chain: its hash, its record, and the offset of its end in the file, in bytes."""

    hash: str
    record: dict[str, Any]
    end: int


def link(line: bytes, tail: bytes) -> bytes:
    """Make the next line of a chain from `line`, a JSON object that is not empty.

    Args:
        line: Without hashes and without a newline.
        tail: The last bytes of the file, at least `TAIL` if the file has that many.
    """
    last = _OWN.search(tail)
    body = line[:-1] + b',"previous":"' + (last[1] if last else b"") + b'"'
    return body + b',"hash":"' + hashlib.sha256(body).hexdigest().encode() + b'"}'


def read_chain(path: Path) -> list[Entry]:
    """All entries, oldest first. An unfinished last line, whose writer was killed, is left out.

    Raises:
        RunError: The chain is broken, or the file is no chain; the message names the line.
    """
    if not path.exists():
        raise RunError(f"{path.name} is missing")
    entries: list[Entry] = []
    for number, entry in _entries(path):
        if isinstance(entry, str):
            raise RunError(f"{path.name}:{number} {entry}")
        entries.append(entry)
    return entries


def read_events(path: Path, *, end: int | None = None) -> Iterator[dict[str, Any]]:
    """The records of a ledger, oldest first; none when there is no file. An unfinished last line is left out.

    Args:
        end: Read only this many bytes, to get an earlier state of the ledger.

    Raises:
        RunError: A line is broken or was changed; the message names it.
    """
    for number, entry in _entries(path, end) if path.exists() else ():
        if isinstance(entry, str) or not isinstance(entry.record.get("event"), str):
            raise RunError(
                f"{path}:{number} is broken or was changed, so nobody can tell what the run did: restore the ledger "
                "from a copy of the run"
            )
        yield entry.record


def head(path: Path) -> str | None:
    """The hash of the last line; None when there is none."""
    if not path.exists():
        return None
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - TAIL))
        last = _OWN.search(file.read())
    return last[1].decode() if last else None


def _entries(path: Path, end: int | None = None) -> Iterator[tuple[int, Entry | str]]:
    """The number and the entry of each line within the first `end` bytes, or what is wrong with the line."""
    at, last = 0, b""
    with path.open("rb") as file:
        for number, raw in enumerate(file, start=1):
            at += len(raw)
            line_hash = _OWN.search(raw)
            if (end is not None and at > end) or (line_hash is None and not raw.endswith(b"\n")):
                return
            if line_hash is None:
                yield number, "has no hash: the line was changed or put in"
                return
            yield number, _entry(raw, line_hash, last, at)
            last = line_hash[1]


def _entry(raw: bytes, line_hash: re.Match[bytes], last: bytes, end: int) -> Entry | str:
    body = raw[: line_hash.start()]
    previous, record = _PREVIOUS.search(body), parse_object(raw)
    if previous is None or record is None or hashlib.sha256(body).hexdigest().encode() != line_hash[1]:
        return "was changed: its hash is not that of what it says"
    if previous[1] != last:
        return "does not follow the line before it: a line was removed, moved or put in"
    return Entry(line_hash[1].decode(), {key: record[key] for key in record if key not in FIELDS}, end)
