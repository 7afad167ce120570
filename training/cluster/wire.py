"""Messages between the main process and its ranks, or its process that speaks with Ray: no pickle.

JSON for figures and texts, safetensors for tensors.
"""

import json
import socket
import struct
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from chimera.core.plain_json import parse_json

if TYPE_CHECKING:
    from torch import Tensor

_HEAD = struct.Struct(">QQ")
_MOST = 1 << 40
"""Longest part of a message in bytes; a longer one is no message of ours."""
_GREETING = 4096
"""Longest first message, which is read before the sender has shown the key."""

Tensors = Mapping[str, "Tensor"]


class Channel:
    """A connection that carries whole messages."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        if connection.family != socket.AF_UNIX:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def fileno(self) -> int:
        """For `selectors`."""
        return self._socket.fileno()

    def send(self, message: Mapping[str, Any], tensors: "Tensors | None" = None) -> None:
        """Send one message.

        Raises:
            OSError: The connection is broken.
        """
        text = json.dumps(message).encode()
        data = b""
        if tensors:
            from safetensors.torch import save

            data = save({name: value.detach().cpu().contiguous() for name, value in tensors.items()})
        self._socket.sendall(_HEAD.pack(len(text), len(data)) + text)
        self._socket.sendall(data)

    def receive(self, *, greeting: bool = False) -> "tuple[dict[str, Any], dict[str, Tensor]]":
        """The next message.

        Args:
            greeting: True for the first one, which must be short.

        Raises:
            OSError: The connection is broken, or the other side has closed it.
            ValueError: It is no message.
        """
        sizes = _HEAD.unpack(self._exactly(_HEAD.size))
        if max(sizes) > (_GREETING if greeting else _MOST):
            raise ValueError(f"a message of {sum(sizes)} bytes")
        message, data = parse_json(self._exactly(sizes[0])), self._exactly(sizes[1])
        if not isinstance(message, dict):
            raise ValueError("a message that is no JSON object")
        if not data:
            return message, {}
        from safetensors.torch import load

        return message, load(data)

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def _exactly(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            part = self._socket.recv(min(1 << 20, size - len(data)))
            if not part:
                raise ConnectionResetError("the other side has closed the connection")
            data += part
        return bytes(data)
