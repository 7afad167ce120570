"""Which process writes a run now."""

import fcntl
import os
import struct
import sys
from pathlib import Path

import psutil

_LINUX_FLOCK = "hhqqi"
"""Linux' `struct flock` on 64-bit machines: type, whence, start, length, process."""


def owner(run: Path) -> int | None:
    """The id of the process that owns the run in folder `run` (see `chimera.run.directory`); None if none does.

    The lock is only looked at, so that nobody who starts at this moment is refused. Where that is not possible, the
    process named in the file counts if it lives. The owner itself must not ask: closing the file would end its lock.
    """
    try:
        with (run / ".lock").open("rb") as file:
            named = file.read(32).decode(errors="replace").strip()
            if sys.platform == "linux" and struct.calcsize("P") == 8:
                asked = struct.pack(_LINUX_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
                kind, *_, process = struct.unpack(_LINUX_FLOCK, fcntl.fcntl(file, fcntl.F_GETLK, asked))
                return None if kind == fcntl.F_UNLCK else process
    except OSError:
        return None
    return int(named) if named.isdecimal() and psutil.pid_exists(int(named)) else None
