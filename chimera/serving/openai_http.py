"""HTTP connections for OpenAI's client, which limit the size of an answer and tell a bad answer from none."""

from typing import Any

import httpx
from openai import DefaultAsyncHttpxClient

from chimera.serving.connections import MAX_BYTES, BadAnswerError

OF_TRANSFER = ("content-encoding", "content-length", "transfer-encoding")
"""Headers about the transfer of a body; they are no longer true after the body has been read."""
NO_ANSWER = "Server disconnected without sending a response"
"""httpx's message for a connection that was closed before any answer."""


class BoundedClient(DefaultAsyncHttpxClient):
    """httpx's client for one model server."""

    async def send(self, request: httpx.Request, **options: Any) -> httpx.Response:
        """Send `request` and read the answer.

        Raises:
            BadAnswerError: The answer is too long, incomplete or not HTTP.
            httpx.TransportError: No server answered.
        """
        body = bytearray()
        try:
            response = await super().send(request, **{**options, "stream": True})
            try:
                async for chunk in response.aiter_bytes():
                    body += chunk
                    if len(body) > MAX_BYTES:
                        raise BadAnswerError(f"sent more than {MAX_BYTES // 2**20} MiB: no chat completion is so long")
            except httpx.ReadError as error:
                raise BadAnswerError(f"broke the connection after {len(body)} bytes of its answer") from error
            finally:
                await response.aclose()
        except httpx.RemoteProtocolError as error:
            if str(error).startswith(NO_ANSWER):
                raise
            raise BadAnswerError(f"sent an answer that is broken off or no HTTP: {str(error)[:200]}") from error
        except httpx.DecodingError as error:
            raise BadAnswerError("sent an answer that cannot be decompressed") from error
        headers = [(name, value) for name, value in response.headers.multi_items() if name not in OF_TRANSFER]
        return httpx.Response(response.status_code, headers=headers, content=bytes(body), request=request)
