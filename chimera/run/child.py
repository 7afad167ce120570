"""`python -m chimera.run.child PARENT MODULE ...`: what a `chimera.run.children.Command` starts.

It watches its parent before anything that takes long is imported: a process with a session of its own would otherwise
go on when its parent is killed. What it had to save is on disk, and processes below it watch it in the same way.
"""

import importlib
import sys

from chimera.core.cli import run_command
from chimera.run.parent import end_with


def main(argv: list[str]) -> int | None:
    """Run the `main` of module `argv[1]` with the arguments after it, as a child of process `argv[0]`."""
    parent, module, *arguments = argv
    end_with(int(parent))
    sys.argv[0] = f"python -m {module}"
    return importlib.import_module(module).main(arguments)


if __name__ == "__main__":
    run_command(main)
