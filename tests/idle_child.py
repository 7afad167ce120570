"""What forked children of tests do; its module loads nothing, so that a child is ready at once."""

import os
import sys
import threading
from multiprocessing.connection import Connection


def idle(ready: Connection) -> None:
    """Tell the process id, and wait for the end."""
    ready.send(os.getpid())
    threading.Event().wait()


def tell_modules(ready: Connection) -> None:
    """Tell the modules that the process has loaded."""
    ready.send(set(sys.modules))
