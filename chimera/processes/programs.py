"""A child process that is no module of this project, such as a server with a Python of its own."""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from chimera.processes import follow
from chimera.processes.children import Child


class Program(Child):
    """A foreign program in its own session, with nothing on stdin.

    It watches no parent itself, so the kernel does, and sends SIGTERM when the *thread* that started it ends: start it
    from the main thread.

    Args:
        command: The program's path and its arguments, without secrets: anyone on this machine can read them.
        log_file: Its stderr and stdout are appended to this file.
    """

    def __init__(self, name: str, command: Sequence[str], log_file: Path, environment: Mapping[str, str]) -> None:
        super().__init__(name, log_file)
        with log_file.open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-S", str(Path(follow.__file__).absolute()), str(os.getpid()), *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=dict(environment),
                start_new_session=True,
            )
        self._started(process)

    def clear(self) -> None:
        """End what a program that has ended has left running: all of it is in one session."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
