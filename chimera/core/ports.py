"""Opens sockets, on loopback unless told otherwise; if that fails, one sentence says why."""

import errno
import socket

from chimera.core.errors import RunError

LOOPBACK = "127.0.0.1"
REMEDY = "end programs that hold many connections, or raise the limit (ulimit -n, net.ipv4.ip_local_port_range)"
USED_UP = (errno.EADDRNOTAVAIL, errno.EMFILE, errno.ENFILE, errno.ENOBUFS)


def listen(*, host: str = LOOPBACK, backlog: int | None = None) -> socket.socket:
    """A socket that listens on a free port of `host`; raises RunError if no port can be opened."""
    try:
        return socket.create_server((host, 0), backlog=backlog)
    except OSError as error:
        raise RunError(f"no port of {host} can be opened ({error.strerror}): {_remedy(host)}") from error


def reserve(port: int = 0, *, host: str = LOOPBACK, shared: bool = False) -> socket.socket:
    """A socket that holds a port of `host`, by default a free one, for a server of this run: bound, not listening.

    The server, also one that is started again, listens there with SO_REUSEADDR, as uvicorn and asyncio do. As long as
    this socket is open, the system gives the port to no program that asks for a free one.

    Args:
        port: The port; 0 is a free one.
        shared: True if several servers listen there, each with `listen_together`.

    Raises:
        RunError: No port can be opened.
    """
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if shared:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        held.bind((host, port))
    except OSError as error:
        held.close()
        what = f"port {port} of {host} cannot" if port else f"no port of {host} can"
        raise RunError(f"{what} be opened ({error.strerror}): {_remedy(host)}") from error
    return held


def listen_together(port: int, *, host: str = LOOPBACK) -> socket.socket:
    """A socket that listens on a port of `host` beside those of other processes of this user.

    The system gives each connection to one of them (SO_REUSEPORT), and none to a process that has ended.

    Raises:
        RunError: The port cannot be opened.
    """
    try:
        return socket.create_server((host, port), reuse_port=True)
    except OSError as error:
        raise RunError(f"port {port} of {host} cannot be opened ({error.strerror}): {_remedy(host)}") from error


def free_port() -> int:
    """A port of 127.0.0.1 that no process uses now; raises RunError if no port can be opened."""
    with listen() as listener:
        return listener.getsockname()[1]


def _remedy(host: str) -> str:
    return REMEDY if host == LOOPBACK else f"set cluster.host to an address of this machine, or {REMEDY}"


def check_sockets(error: BaseException | None) -> None:
    """Raise if `error` means that this machine has no socket left: then it is useless to wait for a server.

    Raises:
        RunError: This machine has no socket left.
    """
    while error is not None:
        if isinstance(error, OSError) and error.errno in USED_UP:
            raise RunError(f"no connection to 127.0.0.1 can be made ({error.strerror}): {REMEDY}") from error
        error = error.__cause__ or error.__context__
