"""Handles Ctrl-C: the first stops a run cleanly, the second kills all processes, and a stop has a time limit."""

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import psutil

from chimera.core.cli import INTERRUPTED
from chimera.processes.children import kill_all

STOP_SECONDS = 9.0
"""Time limit of a stop, whatever hangs. Each step of the stop also has its own limit."""


def _out_of_time() -> None:
    os.write(sys.stderr.fileno(), b"stopping took too long, so everything was killed; finished rollouts are on disk\n")
    kill_everything()


def kill_everything() -> None:
    """Kill all descendants of this process, and this process."""
    kill_all(psutil.Process().children(recursive=True))
    os._exit(INTERRUPTED)


@contextmanager
def interruptible(task: asyncio.Task[Any]) -> Iterator[None]:
    """Let SIGINT or SIGTERM cancel `task`. A second signal, or 9 s after the first, kills all processes.

    After a stop has begun, both stay active when the context ends, because later work (threads that the event loop
    waits for, hashing of the run's files) is part of the stop.
    """
    loop = asyncio.get_running_loop()
    watch = threading.Timer(STOP_SECONDS, _out_of_time)
    watch.daemon = True
    presses = 0

    def handle(_number: int, _frame: FrameType | None) -> None:
        nonlocal presses
        presses += 1
        if presses > 1:
            kill_everything()
        os.write(sys.stderr.fileno(), b"\nstopping; once more kills at once\n")
        watch.start()
        loop.call_soon_threadsafe(task.cancel)

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        if not presses:
            for number, handler in before.items():
                signal.signal(number, handler)
