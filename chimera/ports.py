"""Loopback sockets, or one sentence that says why there is none."""

import socket

from chimera.errors import RunError


def listen(*, backlog: int | None = None) -> socket.socket:
    """A socket that listens on a free port of 127.0.0.1.

    Raises:
        RunError: No port can be opened.
    """
    try:
        return socket.create_server(("127.0.0.1", 0), backlog=backlog)
    except OSError as error:
        raise RunError(
            f"no port of 127.0.0.1 can be opened ({error.strerror}): end programs that hold many connections, or raise "
            "the limit (ulimit -n, net.ipv4.ip_local_port_range)"
        ) from error
