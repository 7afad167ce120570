"""Ends a child process with its parent, however the parent ends.

The child polls its parent's id. PR_SET_PDEATHSIG would fire when the starting *thread* ends. A pipe would stay open,
because every process that the parent forks also holds its write end.
"""

import os
import threading
import time

CHECK_S = 0.2


def end_with(parent: int) -> None:
    """End this process as soon as `parent` is no longer its parent. Call this before any slow work.

    Args:
        parent: The parent's process id, passed by the parent: it may have ended by now.
    """
    threading.Thread(target=_watch, args=(parent,), name="parent-watch", daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(CHECK_S)
    os._exit(1)
