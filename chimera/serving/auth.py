"""Protects every port that a run opens: an ASGI middleware that passes only requests with the run's key."""

import hmac
import json
from collections.abc import MutableMapping
from typing import Any

LOOPBACK = frozenset({"127.0.0.1", "localhost", "[::1]"})


class Authentication:
    """Passes requests that hold the key and name the address that they came to; refuses all others.

    A web page can send requests to a loopback port under any host name (DNS rebinding), so the host name in a request
    is checked too. Refusals have the form of OpenAI's errors.

    Args:
        key: The bearer token that a request must hold.
    """

    def __init__(self, app: Any, key: str) -> None:
        self._app = app
        self._expected = f"Bearer {key}".encode()

    async def __call__(self, scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        """Serve one ASGI connection."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        headers = dict(scope["headers"])
        host = headers.get(b"host", b"").decode("latin-1")
        address, _ = scope.get("server") or (None, None)
        if _without_port(host) not in LOOPBACK | {address}:
            await _refuse(send, 421, "wrong_host", f"this server is not {host!r}: use the address that the run uses")
        elif not hmac.compare_digest(headers.get(b"authorization", b""), self._expected):
            text = "wrong or missing API key: send the run's key as a bearer token"
            await _refuse(send, 401, "invalid_api_key", text)
        else:
            await self._app(scope, receive, send)


def _without_port(host: str) -> str:
    name, colon, port = host.rpartition(":")
    return name if colon and port.isdecimal() else host


async def _refuse(send: Any, status: int, code: str, message: str) -> None:
    error = {"message": message, "type": "invalid_request_error", "param": None, "code": code}
    body = json.dumps({"error": error}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
