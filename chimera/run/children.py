"""Child processes, one manager for all: each has a log, an environment without secrets, and ends with its parent.

There are two ways to start one: `Command` starts a new interpreter, `chimera.run.forks.Fork` copies a process that has
its libraries loaded. Ctrl-C, which a terminal sends to all processes of a session, ends no child: only the main process
decides what stops when.
"""

import os
import signal
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

STOP_SECONDS = 1.0
"""How long children may take to end after SIGTERM. They have nothing to save."""
KILL_SECONDS = 0.5
"""How long a killed process may take to be gone."""
ERROR = "error: "
"""Begins the line of an error of ours (`chimera.core.cli.run_command`), which says everything."""


class Child(ABC):
    """A child process: how it ended, its last words, and how to end it.

    Args:
        name: What messages call it.
        log_file: Its output is appended here.

    Attributes:
        pid: The process id; there is none before it was started.
    """

    pid: int
    _itself: psutil.Process | None = None  # No other process with the same id can be mistaken for it.

    def __init__(self, name: str, log_file: Path) -> None:
        self.name = name
        self.log_file = log_file
        log_file.parent.mkdir(parents=True, exist_ok=True)
        log_file.touch()
        self._log_start = log_file.stat().st_size

    def _started(self, pid: int) -> None:
        self.pid = pid
        with suppress(psutil.NoSuchProcess):  # It has ended already.
            self._itself = psutil.Process(pid)

    @property
    @abstractmethod
    def exit_code(self) -> int | None:
        """How the process ended: negative for a signal, None while it runs."""

    @abstractmethod
    def join(self, seconds: float | None = None) -> None:
        """Wait until the process has ended, at most `seconds` seconds."""

    def alive(self) -> bool:
        """True while the process runs."""
        return self.exit_code is None

    def signal(self, number: signal.Signals) -> None:
        """Send a signal unless the process has ended."""
        if self.alive():
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        """End the process and all processes below it at once."""
        if self._itself is not None:
            with suppress(psutil.NoSuchProcess):
                kill_all([self._itself, *self._itself.children(recursive=True)])

    def killed(self) -> bool:
        """True if a signal ended the process."""
        return (self.exit_code or 0) < 0

    def ending(self) -> str:
        """How the process ended, for messages."""
        code = self.exit_code or 0
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        return f"{self.name} (process {self.pid}) {how}"

    def last_words(self, lines: int = 3, separator: str = " | ") -> str:
        """What its log says of its end: its own error in one sentence, or the last lines since it was started."""
        with self.log_file.open("rb") as log:
            log.seek(self._log_start)
            written = [line for text in log.read().decode(errors="replace").splitlines() if (line := text.strip())]
        told = [line.removeprefix(ERROR) for line in written if line.startswith(ERROR)]
        return separator.join(told[-1:] or written[-lines:]) or "its log is empty"


class Command(Child):
    """`python -m module arguments` in a session of its own. Its stdin is open until `tell` is called.

    Args:
        name: What messages call it.
        module: Has a `main(argv)`.
        arguments: Anyone on this machine can read them: no secrets.
        log_file: Its stderr is appended here, and its stdout.
        environment: All that it gets, see `chimera.run.child_environment`.
        pass_fds: File descriptors that it inherits.
        reports: True if its stdout is read with `report` instead.
    """

    def __init__(
        self,
        name: str,
        module: str,
        arguments: Sequence[str],
        log_file: Path,
        environment: Mapping[str, str],
        *,
        pass_fds: Sequence[int] = (),
        reports: bool = False,
    ) -> None:
        super().__init__(name, log_file)
        with log_file.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "chimera.run.child", str(os.getpid()), module, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE if reports else log,
                stderr=log,
                pass_fds=pass_fds,
                env=dict(environment),
                start_new_session=True,
            )
        self._started(self._process.pid)

    @property
    def exit_code(self) -> int | None:
        """How the process ended: negative for a signal, None while it runs."""
        return self._process.poll()

    def join(self, seconds: float | None = None) -> None:
        """Wait until the process has ended, at most `seconds` seconds."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)

    def tell(self, text: str) -> None:
        """Send all that the process is told, secrets included, through its stdin, which is closed then."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError), self._process.stdin as stdin:  # If it has ended, its exit code tells.
            stdin.write(text.encode())

    def report(self) -> bytes:
        """The next line of its stdout; nothing once that is closed."""
        assert self._process.stdout is not None
        return self._process.stdout.readline()


def stop(children: Iterable[Child], *, seconds: float = STOP_SECONDS) -> None:
    """End `children`: SIGTERM to all, one common deadline, then SIGKILL to those that are left."""
    running = [child for child in children if child.alive()]
    for child in running:
        child.signal(signal.SIGTERM)
    _join(running, seconds)
    for child in running:
        if child.alive():
            child.kill()
    _join(running, KILL_SECONDS)


def kill_all(processes: Iterable[psutil.Process]) -> None:
    """End `processes` at once; those that have ended are passed over."""
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.kill()


def _join(children: Sequence[Child], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    for child in children:
        child.join(max(0.0, deadline - time.monotonic()))
