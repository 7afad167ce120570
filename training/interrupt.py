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

from chimera.cli import INTERRUPTED

STOP_SECONDS = 9.0


def kill_everything() -> None:
    """Kill all processes below this one, and this one."""
    for process in psutil.Process().children(recursive=True):
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue
    os._exit(INTERRUPTED)


@contextmanager
def interruptible(task: asyncio.Task[Any]) -> Iterator[None]:
    """Have SIGINT or SIGTERM cancel `task`, and the second one kill everything; at most 9 s lie between."""
    loop = asyncio.get_running_loop()
    watch = threading.Timer(STOP_SECONDS, kill_everything)
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
        for number, handler in before.items():
            signal.signal(number, handler)
        watch.cancel()
