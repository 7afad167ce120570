"""`python -m chimera.processes.child PARENT MODULE ...`: the command that `chimera.processes.children.Command` starts.

It starts to watch its parent before slow imports: a process in its own session would otherwise continue after its
parent is killed. It can be killed at any time, because its results are already on disk. Its own child processes watch
it in the same way. It polls its parent's id: PR_SET_PDEATHSIG would fire when the starting *thread* ends, and a pipe
would stay open, because every process that the parent forks also holds its write end.
"""

import importlib
import os
import sys
import threading
import time

from chimera.core.cli import run_command


def main(argv: list[str]) -> int | None:
    """Run the `main` of module `argv[1]` with the arguments after it, as a child of process `argv[0]`."""
    parent, module, *arguments = argv
    end_with(int(parent))
    sys.argv[0] = f"python -m {module}"
    return importlib.import_module(module).main(arguments)


def end_with(parent: int) -> None:
    """End this process as soon as `parent` is no longer its parent. Call this before any slow work.

    Args:
        parent: The parent's process id, passed by the parent: it may have ended by now.
    """
    threading.Thread(target=_watch, args=(parent,), name="parent-watch", daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.2)
    os._exit(1)


if __name__ == "__main__":
    run_command(main)
