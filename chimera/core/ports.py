"""Opens loopback sockets; if that fails, one sentence says why."""

import errno
import socket

from chimera.core.errors import RunError

REMEDY = "end programs that hold many connections, or raise the limit (ulimit -n, net.ipv4.ip_local_port_range)"
USED_UP = (errno.EADDRNOTAVAIL, errno.EMFILE, errno.ENFILE, errno.ENOBUFS)


def listen(*, backlog: int | None = None) -> socket.socket:
    """A socket that listens on a free port of 127.0.0.1.

    Raises:
        RunError: No port can be opened.
    """
    try:
        return socket.create_server(("127.0.0.1", 0), backlog=backlog)
    except OSError as error:
        raise RunError(f"no port of 127.0.0.1 can be opened ({error.strerror}): {REMEDY}") from error


def reserve(port: int = 0, *, shared: bool = False) -> socket.socket:
    """A socket that holds a port of 127.0.0.1, by default a free one, for a server of this run: bound, not listening.

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
        held.bind(("127.0.0.1", port))
    except OSError as error:
        held.close()
        what = f"port {port} of 127.0.0.1 cannot" if port else "no port of 127.0.0.1 can"
        raise RunError(f"{what} be opened ({error.strerror}): {REMEDY}") from error
    return held


def listen_together(port: int) -> socket.socket:
    """A socket that listens on a port of 127.0.0.1 beside those of other processes of this user.

    The system gives each connection to one of them (SO_REUSEPORT), and none to a process that has ended.

    Raises:
        RunError: The port cannot be opened.
    """
    try:
        return socket.create_server(("127.0.0.1", port), reuse_port=True)
    except OSError as error:
        raise RunError(f"port {port} of 127.0.0.1 cannot be opened ({error.strerror}): {REMEDY}") from error


def free_port() -> int:
    """A port of 127.0.0.1 that no process uses now.

    Raises:
        RunError: No port can be opened.
    """
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
