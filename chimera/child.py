"""`python -m chimera.child PARENT MODULE ...`: run one of the commands as a child that ends when its parent does.

A study's runs have a session of their own, so that Ctrl-C in a terminal reaches the study only, which then stops them
within their own limits. Without this module they would go on when the study is killed.
"""

import importlib
import os
import signal
import sys
import threading
import time

from chimera.cli import run_command

POLL_S = 0.5
LAST_S = 20.0
"""A command stops within ten seconds of Ctrl-C. After this many it is ended at once."""


def main(argv: list[str]) -> int | None:
    """Run `argv[1]` with the arguments after it, as a child of process `argv[0]`."""
    parent, module, *arguments = argv
    threading.Thread(target=_watch, args=(int(parent),), name="watch-parent", daemon=True).start()
    sys.argv[0] = f"python -m {module}"
    return importlib.import_module(module).main(arguments)


def _watch(parent: int) -> None:
    """Interrupt this process, as Ctrl-C does, once `parent` is gone."""
    while os.getppid() == parent:
        time.sleep(POLL_S)
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(LAST_S)
    os._exit(1)


if __name__ == "__main__":
    run_command(main)
