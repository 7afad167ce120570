"""Durable JSON lines: whole lines or nothing, whoever writes and whenever a process is killed."""

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from chimera.core.errors import RunError
from chimera.core.plain_json import parse_json
from chimera.core.secrets import redact_tree
from chimera.run.chain import TAIL, link


def append_line(path: Path, record: Mapping[str, Any], *, sync: bool = False, chained: bool = False) -> None:
    """Append `record` as one line, secrets replaced by their names; threads and processes may append at once.

    A line that a killed writer left unfinished is dropped first, so that it never ends up in the middle of the file.

    Args:
        path: the file; its folder must exist.
        record: anything JSON can hold; NaN and infinity are refused.
        sync: wait until the line is on the disk and not only with the operating system.
        chained: the file is a hash chain (`chimera.run.chain`), and the line its next entry.

    Raises:
        RunError: the record is not JSON, or the line could not be written whole.
    """
    try:
        line = json.dumps(redact_tree(record), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        # Models can answer half a surrogate pair, which UTF-8 has no bytes for; its escape is the same text in JSON.
        data = line.encode(errors="backslashreplace")
    except (TypeError, ValueError) as error:
        raise RunError(f"cannot append to {path}: the record is not plain JSON: {error}") from error
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            start = _finish_last_line(descriptor)
            if chained:
                data = link(data, os.pread(descriptor, TAIL, max(0, start - TAIL)))
            data += b"\n"
            written = os.write(descriptor, data)
            if written != len(data):
                os.ftruncate(descriptor, start)
                raise RunError(f"cannot append to {path}: only {written} of {len(data)} bytes fitted (disk full?)")
            if sync:
                os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise RunError(f"cannot append to {path}: {error.strerror}") from error


def read_lines(path: Path, *, end: int | None = None) -> Iterator[dict[str, Any]]:
    """Each record of `path`; none when there is no file. A torn last line is left out: its writer was killed.

    Args:
        path: the file.
        end: read only so many bytes: the file as it was when it had so many.

    Raises:
        RunError: any other line is not a JSON object; names file and line.
    """
    if not path.exists():
        return
    read = 0
    with path.open("rb") as file:
        for number, raw in enumerate(file, start=1):
            read += len(raw)
            if end is not None and read > end:
                return
            record = _parse(raw)
            if record is None and not raw.endswith(b"\n"):
                return
            if record is None:
                raise RunError(f"{path}:{number} is not a JSON object: repair or remove this line")
            yield record


def _parse(raw: bytes) -> dict[str, Any] | None:
    try:
        record = parse_json(raw)
    except ValueError:
        return None
    return record if isinstance(record, dict) else None


def _finish_last_line(descriptor: int) -> int:
    """Complete a whole last line that lacks only its newline, drop a torn one; returns the file's size after it."""
    size = os.fstat(descriptor).st_size
    if size == 0 or os.pread(descriptor, 1, size - 1) == b"\n":
        return size
    start, block = size, 1 << 16
    tail = b""
    while start > 0 and b"\n" not in tail:
        begin = max(0, start - block)
        tail, start = os.pread(descriptor, start - begin, begin) + tail, begin
    last = tail.rpartition(b"\n")[2]
    if _parse(last) is not None:
        return size + os.write(descriptor, b"\n")
    os.ftruncate(descriptor, size - len(last))
    return size - len(last)
