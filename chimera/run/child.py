"""`python -m chimera.run.child PARENT MODULE ...`: run one of the commands as a child that ends when its parent does.

A study's runs have a session of their own, so that Ctrl-C in a terminal reaches the study only, which then stops them
within their own limits. Without this module they would go on when the study is killed. They end at once then: what a
run has finished is on disk, and the processes below it watch it as it watches the study.
"""

import importlib
import sys

from chimera.core.cli import run_command
from chimera.run.parent import end_with


def main(argv: list[str]) -> int | None:
    """Run `argv[1]` with the arguments after it, as a child of process `argv[0]`."""
    parent, module, *arguments = argv
    end_with(int(parent))
    sys.argv[0] = f"python -m {module}"
    return importlib.import_module(module).main(arguments)


if __name__ == "__main__":
    run_command(main)
