"""Ports that are held for a server until it listens, and while it is started again."""

import errno
import socket

import pytest

from chimera.core.errors import RunError
from chimera.core.ports import reserve


def test_a_held_port_is_for_a_server_that_reuses_addresses_again_and_again():
    with reserve() as held:
        address = held.getsockname()
        for _ in range(3):
            with socket.create_server(address) as server, socket.create_connection(address) as client:  # It reuses.
                server.accept()[0].close()
                assert client.recv(1) == b""


def test_nobody_else_is_given_a_held_port():
    with reserve() as held, socket.socket() as other:
        with pytest.raises(OSError, match="in use") as refused:
            other.bind(held.getsockname())
        assert refused.value.errno == errno.EADDRINUSE
        others = [reserve() for _ in range(500)]
        ports = {one.getsockname()[1] for one in others}
        for one in others:
            one.close()
        assert len(ports) == 500
        assert held.getsockname()[1] not in ports


def test_a_port_that_somebody_uses_is_one_sentence():
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(RunError, match=r"port .* cannot be opened"):
        reserve(taken.getsockname()[1])
