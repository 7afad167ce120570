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
from chimera.core.files import parse_json, parse_object

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
    entries: list[Entry] = []
    for number, raw, end in _lines(path):
        line_hash = _OWN.search(raw)
        where = f"{path.name}:{number}"
        if line_hash is None and not raw.endswith(b"\n"):
            break
        if line_hash is None:
            raise RunError(f"{where} has no hash: the line was changed or put in")
        body = raw[: line_hash.start()]
        previous = _PREVIOUS.search(body)
        if previous is None or hashlib.sha256(body).hexdigest().encode() != line_hash[1]:
            raise RunError(f"{where} was changed: its hash is not that of what it says")
        if previous[1].decode() != (entries[-1].hash if entries else ""):
            raise RunError(f"{where} does not follow the line before it: a line was removed, moved or put in")
        record = parse_json(raw)
        entries.append(Entry(line_hash[1].decode(), {key: record[key] for key in record if key not in FIELDS}, end))
    return entries


def read_events(path: Path, *, end: int | None = None) -> Iterator[dict[str, Any]]:
    """The records of a ledger, oldest first; none when there is no file. An unfinished last line is left out.

    Args:
        end: Read only this many bytes, to get an earlier state of the ledger.

    Raises:
        RunError: A line is broken or was changed; the message names it.
    """
    if not path.exists():
        return
    last = b""
    for number, raw, at in _lines(path):
        if end is not None and at > end:
            return
        line_hash = _OWN.search(raw)
        if line_hash is None and not raw.endswith(b"\n"):
            return
        record = parse_object(raw)
        if record is None or not isinstance(record.get("event"), str) or not _follows(raw, last):
            raise RunError(
                f"{path}:{number} is broken or was changed, so nobody can tell what the run did: restore the ledger "
                "from a copy of the run"
            )
        last = line_hash[1] if line_hash else b""
        yield record


def _follows(raw: bytes, last: bytes) -> bool:
    """True if a line's own hash is right and it names the hash of the line before it."""
    line_hash = _OWN.search(raw)
    if line_hash is None:
        return False
    body = raw[: line_hash.start()]
    previous = _PREVIOUS.search(body)
    return previous is not None and previous[1] == last and hashlib.sha256(body).hexdigest().encode() == line_hash[1]


def head(path: Path) -> str | None:
    """The hash of the last line; None when there is none."""
    if not path.exists():
        return None
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - TAIL))
        last = _OWN.search(file.read())
    return last[1].decode() if last else None


def _lines(path: Path) -> Iterator[tuple[int, bytes, int]]:
    """Number, bytes and end offset of each line."""
    if not path.exists():
        raise RunError(f"{path.name} is missing")
    end = 0
    with path.open("rb") as file:
        for number, raw in enumerate(file, start=1):
            end += len(raw)
            yield number, raw, end
