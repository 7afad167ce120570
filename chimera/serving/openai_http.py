"""HTTP connections for OpenAI's client: they limit time and size of an answer, and follow no redirection.

httpx limits only the time between two bytes, so a server that sends one byte a second could hold a call for ever. With
redirections, a prompt would be sent to any address that an answer names.
"""

import asyncio
from typing import Any

import httpx
from openai import DefaultAsyncHttpxClient

from chimera.serving.connections import MAX_BYTES, BadAnswerError

OF_TRANSFER = ("content-encoding", "content-length", "transfer-encoding")
"""Headers about the transfer of a body; they are no longer true after the body has been read."""
NO_ANSWER = "Server disconnected without sending a response"
"""httpx's message for a connection that was closed before any answer."""


class BoundedClient(DefaultAsyncHttpxClient):
    """httpx's client for one model server; the time limit of a request applies to its whole answer."""

    def __init__(self) -> None:
        super().__init__(follow_redirects=False)

    async def send(self, request: httpx.Request, **options: Any) -> httpx.Response:
        """Send `request` and read the answer.

        Raises:
            BadAnswerError: The answer is too long, incomplete or not HTTP.
            httpx.TimeoutException: The answer did not come in time.
            httpx.TransportError: No server answered.
        """
        limit = request.extensions.get("timeout", {}).get("read")
        try:
            async with asyncio.timeout(limit):
                return await self._whole(request, options)
        except TimeoutError as error:
            raise httpx.ReadTimeout(f"no whole answer within {limit:g} s", request=request) from error
        except httpx.RemoteProtocolError as error:
            if str(error).startswith(NO_ANSWER):
                raise
            raise BadAnswerError(f"sent an answer that is broken off or no HTTP: {str(error)[:200]}") from error
        except httpx.DecodingError as error:
            raise BadAnswerError("sent an answer that cannot be decompressed") from error

    async def _whole(self, request: httpx.Request, options: dict[str, Any]) -> httpx.Response:
        response = await super().send(request, **{**options, "stream": True})
        body = bytearray()
        try:
            async for chunk in response.aiter_bytes():
                body += chunk
                if len(body) > MAX_BYTES:
                    raise BadAnswerError(f"sent more than {MAX_BYTES // 2**20} MiB: no chat completion is so long")
        except httpx.ReadError as error:
            raise BadAnswerError(f"broke the connection after {len(body)} bytes of its answer") from error
        finally:
            await response.aclose()
        headers = [(name, value) for name, value in response.headers.multi_items() if name not in OF_TRANSFER]
        return httpx.Response(response.status_code, headers=headers, content=bytes(body), request=request)
