"""What a forked child of tests does; its module loads nothing, so that the child is ready at once."""

import os
import threading
from multiprocessing.connection import Connection


def idle(ready: Connection) -> None:
    """Tell the process id, and wait for the end."""
    ready.send(os.getpid())
    threading.Event().wait()
