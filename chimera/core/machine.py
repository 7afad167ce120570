"""The machine that a command runs on: what is checked before it, its limits, ports and temporary folder."""

import atexit
import errno
import os
import re
import shutil
import socket
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from chimera.core.errors import ConfigError, RunError
from chimera.core.imports import HOME, PACKAGES

NAMED_IN_EACH = "Chimera"
"""Word in the docstring of each package's `__init__.py`, which tells it from another distribution's."""
OLDEST, NEWEST = (3, 11), (3, 12)


def check_machine() -> None:
    """Refuse what Chimera cannot run on; say on stderr what nobody has tested.

    Raises:
        ConfigError: The system is Windows, the version of Python is another, or a package is not Chimera's.
    """
    if os.name == "nt":
        raise ConfigError(
            "Chimera does not run on Windows, because the processes of a run need POSIX: use WSL 2 or a Linux machine"
        )
    version = sys.version_info[:2]
    if not OLDEST <= version <= NEWEST:
        raise ConfigError(
            f"Chimera needs Python 3.11 or 3.12, and this is {version[0]}.{version[1]} ({sys.executable}): make an "
            "environment with one of them (make setup PYTHON=python3.12)"
        )
    check_packages()
    if sys.platform == "darwin":
        print("note: Chimera is tested on Linux; on macOS nobody has tried it", file=sys.stderr)


def check_packages() -> None:
    """Make sure that the packages beside `chimera` are Chimera's own. Imports none of them.

    Raises:
        ConfigError: Another distribution's package has the name of one of them.
    """
    for name in PACKAGES:
        spec = find_spec(name)
        file = Path(spec.origin) if spec is not None and spec.origin else None
        if file is None or file.resolve().parents[1] != HOME or NAMED_IN_EACH not in file.read_text(encoding="utf-8"):
            raise ConfigError(_foreign(name, file.parent if file else None))


def _foreign(name: str, folder: Path | None) -> str:
    if folder is None:
        return f"Chimera's package {name!r} is not installed beside {HOME}/chimera: run make setup"
    others = [package for package in metadata.packages_distributions().get(name, ()) if package != "chimera-lab"]
    owner = f"the distribution {others[0]}" if others else "another program"
    remedy = f"pip uninstall {others[0]} and install Chimera again" if others else "remove it from the path"
    return (
        f"the package {name!r} in {folder} belongs to {owner} and not to Chimera, which has one of the same name: "
        f"{remedy}, or give Chimera an environment of its own (make setup)"
    )


FILES = 64
"""Open files (and sockets) of one process of a run, without those for each concurrent rollout."""
FILES_EACH = 8
"""Open files for each concurrent rollout: calls of three juniors at once, and its tools'."""


def allow_files(concurrency: int) -> None:
    """Let this process and its children open as many files as `rollouts.concurrency` rollouts need.

    Raises:
        ConfigError: The limit is lower, and cannot be raised from here.
    """
    import resource  # Windows has none; there, a command says so first.

    needed = FILES + FILES_EACH * concurrency
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise ConfigError(
            f"rollouts.concurrency={concurrency} needs {needed} open files, and a process may open {hard} here: raise "
            f"the limit (ulimit -n {needed}), or lower rollouts.concurrency"
        )
    if soft != resource.RLIM_INFINITY and soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


def out_of_memory(error: BaseException) -> str | None:
    """The sentence for an error caused by a lack of memory or threads; None for any other error."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, MemoryError) or (isinstance(seen, OSError) and seen.errno == errno.ENOMEM):
            break
        if isinstance(seen, RuntimeError) and ("allocate memory" in str(seen) or "start new thread" in str(seen)):
            break
        seen = seen.__cause__ or seen.__context__
    if seen is None:
        return None
    cause = str(seen).splitlines()[0] if str(seen) else type(seen).__name__
    return (
        f"the system gives no more memory or threads ({cause}): raise the limits (ulimit -v, ulimit -u), or lower "
        "rollouts.concurrency and serving.slots"
    )


LOOPBACK = "127.0.0.1"
REMEDY = "end programs that hold many connections, or raise the limit (ulimit -n, net.ipv4.ip_local_port_range)"
USED_UP = (errno.EADDRNOTAVAIL, errno.EMFILE, errno.ENFILE, errno.ENOBUFS)


def listen(*, host: str = LOOPBACK, backlog: int | None = None) -> socket.socket:
    """A socket that listens on a free port of `host`; raises RunError if no port can be opened."""
    try:
        return socket.create_server((host, 0), backlog=backlog)
    except OSError as error:
        remedy = REMEDY if host == LOOPBACK else f"set cluster.host to an address of this machine, or {REMEDY}"
        raise RunError(f"no port of {host} can be opened ({error.strerror}): {remedy}") from error


def listen_at(port: int) -> socket.socket:
    """A socket that listens on `port` of 127.0.0.1, 0 for any free one; raises ConfigError if it cannot be had."""
    try:
        return socket.create_server((LOOPBACK, port))
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"--port {port} cannot be had ({reason}): name another, or leave it out") from error


def free_port() -> int:
    """A port of 127.0.0.1 that no process uses now; raises RunError if no port can be opened."""
    with listen() as listener:
        return listener.getsockname()[1]


def check_sockets(error: BaseException | None) -> None:
    """Raise if `error` means that this machine has no socket left: then it is useless to wait for a server.

    Raises:
        RunError: This machine has no socket left.
    """
    while error is not None:
        if isinstance(error, OSError) and error.errno in USED_UP:
            raise RunError(f"no connection to 127.0.0.1 can be made ({error.strerror}): {REMEDY}") from error
        error = error.__cause__ or error.__context__


PREFIX = "chimera-"
_OWN = re.compile(rf"{PREFIX}[a-z0-9_]{{8}}")


def own_temporary_folder() -> Callable[[], None] | None:
    """Let this process and its children write to a folder of their own. Returns what removes it.

    It is also removed at the interpreter's exit: after the folders of libraries that register theirs later, since the
    last that is registered is called first. None for a child: it is in its parent's folder already.
    """
    system = tempfile.gettempdir()
    if _OWN.fullmatch(Path(system).name):
        return None
    os.environ.setdefault("RAY_TMPDIR", system)  # Where Ray notes the addresses of clusters on this machine.
    folder = tempfile.mkdtemp(prefix=PREFIX, dir=system)
    os.environ["TMPDIR"] = tempfile.tempdir = folder
    remove = partial(shutil.rmtree, folder, ignore_errors=True)  # Another process may be removing its own part of it.
    atexit.register(remove)
    return remove


def lasting_folder() -> Path:
    """The system's folder for temporary files, for what a person may want to read after the command."""
    folder = Path(tempfile.gettempdir())
    return folder.parent if _OWN.fullmatch(folder.name) else folder
