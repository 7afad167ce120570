"""Children that are forked from a helper process that has loaded the libraries, so that they start at once.

The helper is Python's fork server. It has no threads, so a child can be started or replaced at any time, even if the
main process has threads (servers, torch) by then.
"""

import asyncio
import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import psutil

from chimera.core.errors import RunError
from chimera.processes.child_environment import only_child_environment, reduce_environment
from chimera.processes.children import KILL_SECONDS, Child

UNKNOWN = 255
"""The exit code that multiprocessing gives for a child whose fork server was killed."""

_context = multiprocessing.get_context("forkserver")
_preparing = threading.Lock()


def _ensure_running() -> None:
    # A terminal sends Ctrl-C to the fork server too, which ignores it only after its imports: so SIGINT is blocked. Its
    # children inherit its environment, and its initial environment stays readable in /proc.
    with _preparing, only_child_environment(network=True):
        before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        try:
            forkserver.ensure_running()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


def fork_server() -> int | None:
    """The fork server's process id; None if there is none."""
    return vars(vars(forkserver)["_forkserver"])["_forkserver_pid"]


def _running() -> bool:
    pid = fork_server()
    try:
        return pid is not None and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def finish() -> None:
    """End the fork server at once and wait until it is gone; its children must have been stopped.

    A killed process becomes a zombie when its first thread has ended. Until its last thread has ended, its socket is
    open and its exit status cannot be collected.
    """
    pid = fork_server()
    if pid is not None:
        os.kill(pid, signal.SIGKILL)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)  # multiprocessing collects its exit status.


def pipe() -> tuple[Connection, Connection]:
    """A one-way pipe: the receiving end and the sending end."""
    return _context.Pipe(duplex=False)


class Fork(Child):
    """One child process: `target(*args)` with its output in `log_file`; `args` are pickled.

    Attributes:
        orphaned: True if it was killed because its fork server was killed, so that its end could not be observed.
    """

    def __init__(self, name: str, target: Callable[..., None], args: tuple[Any, ...], log_file: Path) -> None:
        super().__init__(name, log_file)
        self.orphaned = False
        self._process: ForkServerProcess = _context.Process(
            target=_main, args=(target, args, str(log_file)), name=name, daemon=True
        )

    def start(self) -> None:
        """Fork the process. If the fork server was killed, it is started again first.

        Raises:
            RunError: No process can be started.
        """
        try:
            try:
                self._start()
            except (EOFError, ConnectionError):  # The fork server was killed in between.
                finish()
                self._start()
        except (EOFError, OSError) as error:
            raise RunError(f"{self.name} cannot be started: {error or 'the fork server ended'}") from error

    def _start(self) -> None:
        if not _running():
            finish()
            _ensure_running()
        self._process.start()
        assert self._process.pid is not None
        self._started(self._process.pid)

    @property
    def sentinel(self) -> int:
        """A file descriptor that becomes readable when the process has ended."""
        return self._process.sentinel

    @property
    def exit_code(self) -> int | None:
        return self._process.exitcode

    def killed(self) -> bool:
        return self.orphaned or super().killed()

    def ending(self) -> str:
        if self.orphaned:
            how = "was ended, because the process that it was forked from was killed"
            return f"{self.name} (process {self.pid}) {how}"
        return super().ending()

    def join(self, seconds: float | None = None) -> None:
        """Wait for the end. Kill a process whose fork server was killed, because one cannot wait for its end."""
        self._process.join(seconds)
        if self.exit_code == UNKNOWN and self._itself is not None:
            with suppress(psutil.NoSuchProcess, psutil.TimeoutExpired):
                self._itself.kill()
                self.orphaned = True
                self._itself.wait(KILL_SECONDS)


async def receive(connection: Connection, child: Fork, *, seconds: float) -> Any:
    """The first message that `child` sends through `connection`.

    Raises:
        RunError: The child ended first, or sent nothing for `seconds` seconds.
    """
    loop = asyncio.get_running_loop()
    readable: asyncio.Future[None] = loop.create_future()

    def arrived() -> None:
        if not readable.done():
            readable.set_result(None)

    descriptors = (connection.fileno(), child.sentinel)
    for descriptor in descriptors:
        loop.add_reader(descriptor, arrived)
    try:
        async with asyncio.timeout(seconds):
            await readable
    except TimeoutError:
        raise RunError(f"{child.name} was not ready after {seconds:g} s: see {child.log_file}") from None
    finally:
        for descriptor in descriptors:
            loop.remove_reader(descriptor)
    try:
        if connection.poll():
            return connection.recv()
    except EOFError:
        pass  # The child ended without sending; the error below says so.
    child.join(1.0)
    raise RunError(f"{child.ending()} while starting: {child.last_words()} (see {child.log_file})")


def _main(target: Callable[..., None], args: tuple[Any, ...], log_file: str) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    reduce_environment(network=True)
    log = os.open(log_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    threading.Thread(target=_exit_with_parent, name="exit-with-parent", daemon=True).start()
    target(*args)


def _exit_with_parent() -> None:
    """End this process as soon as the main process has ended, however it ended."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        multiprocessing.connection.wait([parent.sentinel])
    os._exit(1)
