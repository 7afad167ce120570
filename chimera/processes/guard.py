"""`python guard.py PARENT COMMAND ...`: runs a program of others, which ends with process PARENT.

Unlike Chimera's own processes (`chimera.processes.child`), such a program does not watch its parent. The guard leads a
process group of its own, and kills all of it when the parent is gone. It imports the standard library only, so that it
starts at once and in any environment.
"""

import os
import signal
import subprocess
import sys

CHECK_S = 0.2


def main(argv: list[str]) -> int:
    """Run the command `argv[1:]` with this process's input and output; returns its exit code."""
    parent, *command = argv
    if os.getpgid(0) != os.getpid():
        os.setpgid(0, 0)
    try:
        program = subprocess.Popen(command, env=dict(os.environ))  # The guard's own, which is the program's.
    except OSError as error:
        print(f"{command[0]} cannot be started: {error.strerror}", file=sys.stderr)
        return 127
    while True:
        try:
            return program.wait(CHECK_S)
        except subprocess.TimeoutExpired:
            if os.getppid() != int(parent):
                os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
