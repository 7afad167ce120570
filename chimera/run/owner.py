"""Which process writes a run now."""

import fcntl
import os
import struct
import sys
from dataclasses import dataclass
from pathlib import Path

import psutil

_LINUX_FLOCK = "hhqqi"
"""Linux' `struct flock` on 64-bit machines: type, whence, start, length, process."""


EVALUATES = "evaluates"
"""Stands behind the process in the lock file of a run that is being evaluated, and nothing where it is trained."""


@dataclass(frozen=True, slots=True)
class Owner:
    """The process that owns a run, and whether it evaluates the run and does not train it."""

    process: int
    evaluates: bool = False


def owner(run: Path) -> Owner | None:
    """Who owns the run in folder `run` (see `chimera.run.directory`); None if nobody does.

    The lock is only looked at, so that nobody who starts at this moment is refused. Where that is not possible, the
    process named in the file counts if it lives. The owner itself must not ask: closing the file would end its lock.
    """
    try:
        with (run / ".lock").open("rb") as file:
            named, _, work = file.read(32).decode(errors="replace").strip().partition(" ")
            if sys.platform == "linux" and struct.calcsize("P") == 8:
                query = struct.pack(_LINUX_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
                kind, *_, process = struct.unpack(_LINUX_FLOCK, fcntl.fcntl(file, fcntl.F_GETLK, query))
                return None if kind == fcntl.F_UNLCK else Owner(process, work == EVALUATES)
    except OSError:
        return None
    return Owner(int(named), work == EVALUATES) if named.isdecimal() and psutil.pid_exists(int(named)) else None
