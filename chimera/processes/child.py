"""`python -m chimera.processes.child PARENT MODULE ...`: the command that `chimera.processes.children.Command` starts.

It starts to watch its parent before slow imports: a process in its own session would otherwise continue after its
parent is killed. It can be killed at any time, because its results are already on disk. Its own child processes watch
it in the same way.
"""

import importlib
import sys

from chimera.core.cli import run_command
from chimera.processes.parent import end_with


def main(argv: list[str]) -> int | None:
    """Run the `main` of module `argv[1]` with the arguments after it, as a child of process `argv[0]`."""
    parent, module, *arguments = argv
    end_with(int(parent))
    sys.argv[0] = f"python -m {module}"
    return importlib.import_module(module).main(arguments)


if __name__ == "__main__":
    run_command(main)
