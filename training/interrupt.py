"""Ctrl-C: the first stops a run cleanly, the second kills everything at once, and a stop that hangs is cut short."""

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
from chimera.run.children import kill_all

STOP_SECONDS = 9.0
"""A stop takes at most so long, whatever hangs; each step of it has a limit of its own besides."""


def _out_of_time() -> None:
    os.write(sys.stderr.fileno(), b"stopping took too long, so everything was killed; finished rollouts are on disk\n")
    kill_everything()


def kill_everything() -> None:
    """Kill all processes below this one, and this one."""
    kill_all(psutil.Process().children(recursive=True))
    os._exit(INTERRUPTED)


@contextmanager
def interruptible(task: asyncio.Task[Any]) -> Iterator[None]:
    """Have SIGINT or SIGTERM cancel `task`; a second one kills everything, and so does the clock 9 s after the first.

    Once a stop has begun, both go on after the context has been left: what comes then (threads that the event loop
    waits for, hashing the run's files) is part of the stop.
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
