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
