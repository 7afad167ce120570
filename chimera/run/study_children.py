"""The child processes of a study: one command at a time, its output in a file, and nothing left running after it."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

import psutil

from chimera.core.errors import RunError
from chimera.core.secrets import ENVIRONMENT
from chimera.run.child_environment import child_environment

STOP_S = 9.5
"""A command stops within ten seconds of Ctrl-C. After this many it is killed with all of its processes."""


def run_child(module: str, arguments: Sequence[str], log_file: Path, *, what: str, keys: Sequence[str] = ()) -> None:
    """Run `python -m module arguments` to its end, with its output appended to `log_file`.

    Ctrl-C or SIGTERM interrupts the command, and a second one kills it.

    Args:
        module: Such as "chimera.train".
        arguments: Its arguments.
        log_file: Its folder is made.
        what: What the command does, for messages: "training of run data0-seed1".
        keys: Variables with the keys that its configuration names, beside those that every command may read.

    Raises:
        RunError: It failed; names its exit code, its last line and its log.
        KeyboardInterrupt: The user stopped it.
    """
    log_file.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "chimera.run.child", str(os.getpid()), module, *arguments]
    with log_file.open("ab") as log:
        begin = log.tell()
        with _Stopping() as stopping:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={
                    **child_environment(*ENVIRONMENT, "WANDB_*", "NETRC", *keys, network=True),
                    "PYTHONUNBUFFERED": "1",
                },
                start_new_session=True,  # Ctrl-C in a terminal must not reach it twice: a second one kills.
            )
            code = stopping.wait(process)
    if stopping.asked:
        raise KeyboardInterrupt
    if code != 0:
        raise RunError(
            f"{what} {_ending(code)}: {_last_line(log_file, begin)} (its output is in {log_file}); when the cause is "
            "mended, the same command goes on from here"
        )


class _Stopping:
    """Turns SIGINT and SIGTERM into an interruption of the child, as a context manager."""

    def __init__(self) -> None:
        self.asked = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._watch: threading.Timer | None = None

    def __enter__(self) -> "_Stopping":
        self._before = {number: signal.signal(number, self._handle) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *_: object) -> None:
        if self._watch is not None:
            self._watch.cancel()
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def wait(self, process: "subprocess.Popen[bytes]") -> int:
        """The exit code of `process`, when it has ended."""
        self._process = process
        if self.asked:
            self._interrupt()
        return process.wait()

    def _handle(self, _number: int, _frame: FrameType | None) -> None:
        self.asked += 1
        if self._process is None:
            return
        if self.asked > 1:
            _kill(self._process.pid)
        else:
            os.write(sys.stderr.fileno(), b"\nstopping; once more kills at once\n")
            self._interrupt()

    def _interrupt(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGINT)
        self._watch = threading.Timer(STOP_S, _kill, [self._process.pid])
        self._watch.daemon = True
        self._watch.start()


def _kill(pid: int) -> None:
    """Kill a process and all below it."""
    try:
        top = psutil.Process(pid)
        family = [*top.children(recursive=True), top]
    except psutil.NoSuchProcess:
        return
    for process in family:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue


def _ending(code: int) -> str:
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"


def _last_line(log_file: Path, begin: int) -> str:
    """The last line that this command wrote."""
    with log_file.open("rb") as log:
        log.seek(begin)
        lines = [line.strip() for line in log.read().decode("utf-8", "replace").splitlines()]
    return next((line for line in reversed(lines) if line), "it wrote nothing")
