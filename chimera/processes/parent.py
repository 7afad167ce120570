"""Ends a child process with its parent, however the parent ends.

The child polls its parent's id. PR_SET_PDEATHSIG would fire when the starting *thread* ends. A pipe would stay open,
because every process that the parent forks also holds its write end.
"""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

CHECK_S = 0.2


def end_with(parent: int) -> None:
    """End this process as soon as `parent` is no longer its parent. Call this before any slow work.

    Args:
        parent: The parent's process id, passed by the parent: it may have ended by now.
    """
    threading.Thread(target=_watch, args=(parent, threading.Event()), name="parent-watch", daemon=True).start()


@contextmanager
def ends_with_parent() -> Iterator[None]:
    """End this process if its parent ends during the block. Both must be in one session. No thread stays afterwards."""
    parent = os.getppid()
    if os.getsid(parent) != os.getsid(0):
        os._exit(1)  # The parent has ended already, and another process has adopted this one.
    stop = threading.Event()
    watch = threading.Thread(target=_watch, args=(parent, stop), name="parent-watch", daemon=True)
    watch.start()
    try:
        yield
    finally:
        stop.set()
        watch.join()


def _watch(parent: int, stop: threading.Event) -> None:
    while os.getppid() == parent:
        if stop.wait(CHECK_S):
            return
    os._exit(1)
