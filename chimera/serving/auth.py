"""Protects every port that a run opens: an ASGI middleware that passes only requests with the run's key."""

import hmac
from collections.abc import MutableMapping
from typing import Any

from starlette.responses import JSONResponse

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
            text = f"this server is not {host!r}: use the address that the run uses"
            await _refusal(421, "wrong_host", text)(scope, receive, send)
        elif not hmac.compare_digest(headers.get(b"authorization", b""), self._expected):
            text = "wrong or missing API key: send the run's key as a bearer token"
            await _refusal(401, "invalid_api_key", text)(scope, receive, send)
        else:
            await self._app(scope, receive, send)


def _without_port(host: str) -> str:
    name, colon, port = host.rpartition(":")
    return name if colon and port.isdecimal() else host


def _refusal(status: int, code: str, message: str) -> JSONResponse:
    error = {"message": message, "type": "invalid_request_error", "param": None, "code": code}
    return JSONResponse({"error": error}, status, {"www-authenticate": "Bearer"} if status == 401 else None)
