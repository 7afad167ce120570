"""Durable JSON lines: only whole lines are written, also by several writers and if a process is killed."""

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from chimera.core.errors import RunError
from chimera.core.files import parse_object
from chimera.core.secrets import redact_tree
from chimera.run.chain import TAIL, link


def append_line(path: Path, record: Mapping[str, Any], *, sync: bool = False, chained: bool = False) -> None:
    """Append `record` as one line, with secrets replaced by their names. Threads and processes may append at once.

    An unfinished line of a killed writer is dropped first, so that it never stays in the middle of the file.

    Args:
        path: the file; its folder is made.
        record: anything JSON can hold; NaN and infinity are refused.
        sync: wait until the line is on the disk.
        chained: the file is a hash chain (`chimera.run.chain`), and the line is its next entry.

    Raises:
        RunError: the record is not JSON, or the line could not be written whole.
    """
    try:
        line = json.dumps(redact_tree(record), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        # Models can answer half a surrogate pair, which UTF-8 cannot encode; a JSON escape means the same text.
        data = line.encode(errors="backslashreplace")
    except (TypeError, ValueError) as error:
        raise RunError(f"cannot append to {path}: the record is not plain JSON: {error}") from error
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
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
    """Each record of `path`; none if there is no file. A torn last line, whose writer was killed, is left out.

    Args:
        end: read only this many bytes, to get an earlier state of the file.

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
            record = parse_object(raw)
            if record is None and not raw.endswith(b"\n"):
                return
            if record is None:
                raise RunError(f"{path}:{number} is not a JSON object: repair or remove this line")
            yield record


def _finish_last_line(descriptor: int) -> int:
    """Add a missing newline to a whole last line, or drop a torn one; returns the file's size after that."""
    size = os.fstat(descriptor).st_size
    if size == 0 or os.pread(descriptor, 1, size - 1) == b"\n":
        return size
    start, block = size, 1 << 16
    tail = b""
    while start > 0 and b"\n" not in tail:
        begin = max(0, start - block)
        tail, start = os.pread(descriptor, start - begin, begin) + tail, begin
    last = tail.rpartition(b"\n")[2]
    if parse_object(last) is not None:
        return size + os.write(descriptor, b"\n")
    os.ftruncate(descriptor, size - len(last))
    return size - len(last)
