"""`python follow.py PARENT PROGRAM ...`: becomes PROGRAM, which the kernel ends when process PARENT ends.

It is run as a file, with the environment of PROGRAM, so it imports nothing of this project.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1
"""From Linux' <sys/prctl.h>."""


def main(parent: str, *command: str) -> None:
    """Become `command`."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() == int(parent):  # Otherwise it has ended before the kernel was asked.
        try:
            os.execv(command[0], command)
        except OSError as error:
            sys.exit(f"error: {command[0]} cannot be started: {error.strerror}")


if __name__ == "__main__":
    main(*sys.argv[1:])
