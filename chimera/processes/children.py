"""The manager of all child processes: each has a log and an environment without secrets, and ends with its parent.

A terminal sends Ctrl-C to all processes of a session, but it ends no child: only the main process decides when they
stop.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

STOP_SECONDS = 1.0
"""Seconds that children may take to end after SIGTERM. They have nothing to save."""
KILL_SECONDS = 0.5
"""Seconds that a killed process may take to disappear."""
ERROR = "error: "
"""Start of the line that reports a `ChimeraError` (`chimera.core.cli.run_command`)."""


class Child:
    """A child process: ends it, and tells its exit code and the last lines of its log.

    Attributes:
        pid: The process id; not set before it is started.
    """

    pid: int
    _process: "subprocess.Popen[bytes]"
    _itself: psutil.Process | None = None  # psutil does not mistake a later process with the same id for it.

    def __init__(self, name: str, log_file: Path) -> None:
        self.name = name
        self.log_file = log_file
        log_file.parent.mkdir(parents=True, exist_ok=True)
        log_file.touch()
        self._log_start = log_file.stat().st_size

    def _started(self, process: "subprocess.Popen[bytes]") -> None:
        self._process, self.pid = process, process.pid
        with suppress(psutil.NoSuchProcess):  # It has ended already.
            self._itself = psutil.Process(self.pid)

    @property
    def exit_code(self) -> int | None:
        """The exit code: negative for a signal, None while the process runs."""
        return self._process.poll()

    def join(self, seconds: float | None = None) -> None:
        """Wait until the process has ended, at most `seconds` seconds."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)

    def alive(self) -> bool:
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
        """A phrase for messages that says how the process ended."""
        code = self.exit_code or 0
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        return f"{self.name} (process {self.pid}) {how}"

    def last_words(self, lines: int = 3, separator: str = " | ") -> str:
        """The end of its log: its own error in one sentence, or the last lines since it was started."""
        with self.log_file.open("rb") as log:
            log.seek(self._log_start)
            written = [line for text in log.read().decode(errors="replace").splitlines() if (line := text.strip())]
        errors = [line.removeprefix(ERROR) for line in written if line.startswith(ERROR)]
        return separator.join(errors[-1:] or written[-lines:]) or "its log is empty"


class Command(Child):
    """`python -m module arguments` in its own session. Its stdin stays open until `tell` is called.

    Args:
        module: A module with `main(argv)`.
        arguments: Must hold no secrets: anyone on this machine can read them.
        log_file: Its stderr and stdout are appended to this file.
        environment: Its whole environment, see `chimera.processes.child_environment`.
        pass_fds: File descriptors that it inherits.
        reports: True if its stdout is read with `report` and not logged.
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
            process = subprocess.Popen(
                [sys.executable, "-m", "chimera.processes.child", str(os.getpid()), module, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE if reports else log,
                stderr=log,
                pass_fds=pass_fds,
                env=dict(environment),
                start_new_session=True,
            )
        self._started(process)

    def tell(self, text: str) -> None:
        """Send `text`, which may hold secrets, to its stdin, and close stdin."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError), self._process.stdin as stdin:  # If it has ended, its exit code says so.
            stdin.write(text.encode())

    def report(self) -> bytes:
        """The next line of its stdout; empty after stdout is closed."""
        assert self._process.stdout is not None
        return self._process.stdout.readline()


def stop(children: Iterable[Child], *, seconds: float = STOP_SECONDS) -> None:
    """End `children`: SIGTERM to all, one common deadline, then SIGKILL to those that still run."""
    running = [child for child in children if child.alive()]
    for child in running:
        child.signal(signal.SIGTERM)
    _join(running, seconds)
    for child in running:
        if child.alive():
            child.kill()
    _join(running, KILL_SECONDS)


def kill_all(processes: Iterable[psutil.Process]) -> None:
    """Kill `processes` at once; those that have ended are skipped."""
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.kill()


def _join(children: Sequence[Child], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    for child in children:
        child.join(max(0.0, deadline - time.monotonic()))
