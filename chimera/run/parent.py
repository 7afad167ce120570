"""What makes a child process end with its parent, however the parent ends.

Polling works whoever started the child. PR_SET_PDEATHSIG would fire when the starting *thread* ends, and a pipe's write
end is also held by every process that the parent forks.
"""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

CHECK_S = 0.2


def end_with(parent: int) -> None:
    """End this process at once when `parent` is no longer its parent. Call it before anything that takes long.

    Args:
        parent: The parent's process id, as the parent itself gave it: by now it may be gone.
    """
    threading.Thread(target=_watch, args=(parent, threading.Event()), name="parent-watch", daemon=True).start()


@contextmanager
def ends_with_parent() -> Iterator[None]:
    """End this process if its parent ends meanwhile; the process must be of its parent's session. Leaves no thread."""
    parent = os.getppid()
    if os.getsid(parent) != os.getsid(0):
        os._exit(1)  # The parent has ended already, and another process has inherited this one.
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
