"""The HTTP connections of model calls: they limit the time and the size of an answer, and follow no redirection.

A rollout takes half the processor time that it took with the OpenAI client (`benchmarks.orchestration`).
"""

import json
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from urllib.parse import urlsplit

import aiohttp
from aiohttp.http_exceptions import ContentEncodingError

from chimera.core.cli import LOOPBACK
from chimera.serving.requests.refusals import words

MAX_BYTES = 32 * 2**20
"""Longest answer that is read, in decompressed bytes. Log-probabilities of a long conversation are far smaller."""


class BadAnswerError(Exception):
    """A server sent no whole HTTP answer. The message continues a sentence that begins with the server's name."""


class NoAnswerError(Exception):
    """No server answered."""


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """A whole HTTP answer; `headers` have names in lower case."""

    status: int
    headers: Mapping[str, str]
    content: bytes

    def error(self) -> object:
        """What stands under "error" in the answer, perhaps in a list, or else all of it; None if it is no JSON."""
        try:
            body = json.loads(self.content)
        except (ValueError, RecursionError):
            return None
        while isinstance(body, list) and len(body) == 1:
            body = body[0]
        return body.get("error", body) if isinstance(body, dict) else body

    def refusal(self, shown: int) -> str:
        """The server's own message in one line of at most `shown` characters; else its whole answer."""
        reason = words(self.error()) or self.content.decode("utf-8", "replace")
        return " ".join(reason.encode("utf-8", "replace").decode().split())[:shown]


class _Bearer(aiohttp.BasicAuth):
    """A key as bearer token. Beside a header, aiohttp 3 would refuse what a netrc file holds for the server."""

    def encode(self) -> str:
        return f"Bearer {self.password}"


class Connections:
    """Connections to model servers. Those to this machine do not use the environment's proxy.

    Args:
        unix_socket: The server's Unix socket, which all requests go to; None for addresses of a network.
    """

    def __init__(self, unix_socket: str | None = None) -> None:
        self._unix_socket = unix_socket
        self._sessions: dict[bool, aiohttp.ClientSession] = {}

    async def send(self, url: str, key: str, body: bytes, *, limit_s: float) -> HttpAnswer:
        """Post `body` once, and again if the server has closed a kept connection: it has not read the request.

        Args:
            key: Sent as bearer token.
            body: JSON.
            limit_s: Seconds until the last byte of the answer.

        Raises:
            BadAnswerError: The answer is too long, incomplete or not HTTP.
            TimeoutError: The answer did not come in time.
            NoAnswerError: No server answered.
        """
        async with self._open(url, key, body, limit_s) as answer:
            return HttpAnswer(answer.status, _headers(answer), await _content(answer))

    async def events(
        self, url: str, key: str, body: bytes, *, limit_s: float
    ) -> AsyncGenerator[HttpAnswer | bytes, None]:
        """`send`, but yields the data of each server-sent event, or the whole answer if it is something else.

        Closing the generator closes the connection.
        """
        async with self._open(url, key, body, limit_s) as answer:
            if answer.content_type != "text/event-stream":
                yield HttpAnswer(answer.status, _headers(answer), await _content(answer))
                return
            rest = b""
            async for part in answer.content.iter_any():
                *events, rest = (rest + part).split(b"\n\n")
                for event in events:
                    yield event.removeprefix(b"data: ")

    async def _post(self, url: str, key: str, body: bytes, limit_s: float) -> aiohttp.ClientResponse:
        return await self._session(url).post(
            url,
            data=body,
            auth=_Bearer("", key),
            headers={"content-type": "application/json"},
            timeout=aiohttp.ClientTimeout(total=limit_s, sock_connect=None),
            # A redirection would send prompts and key to any address that an answer names.
            allow_redirects=False,
        )

    @asynccontextmanager
    async def _open(self, url: str, key: str, body: bytes, limit_s: float) -> AsyncIterator[aiohttp.ClientResponse]:
        try:
            try:
                response = await self._post(url, key, body, limit_s)
            except aiohttp.ClientConnectorError:
                raise
            except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError):
                response = await self._post(url, key, body, limit_s)
            async with response:
                yield response
        except TimeoutError as error:
            raise TimeoutError(f"no whole answer within {limit_s:g} s") from error
        except (aiohttp.ClientPayloadError, aiohttp.ClientResponseError) as error:
            if isinstance(error.__cause__, ContentEncodingError):
                raise BadAnswerError("sent an answer that cannot be decompressed") from error
            # aiohttp puts the whole rest of the answer behind this mark.
            reason = _line(error).partition(": <")[0]
            raise BadAnswerError(f"sent an answer that is broken off or no HTTP: {reason}") from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            # That of others may be an address alone, even the environment's proxy with its password.
            raise NoAnswerError(_line(error) if isinstance(error, OSError) else type(error).__name__) from error

    def _session(self, url: str) -> aiohttp.ClientSession:
        elsewhere = urlsplit(url).hostname not in LOOPBACK
        if elsewhere not in self._sessions:
            connector = (
                aiohttp.UnixConnector(self._unix_socket, limit=0)
                if self._unix_socket
                else aiohttp.TCPConnector(limit=0)
            )
            self._sessions[elsewhere] = aiohttp.ClientSession(
                connector=connector, trust_env=elsewhere, cookie_jar=aiohttp.DummyCookieJar()
            )
        return self._sessions[elsewhere]

    async def aclose(self) -> None:
        sessions = list(self._sessions.values())
        self._sessions.clear()
        for session in sessions:
            await session.close()


def _headers(answer: aiohttp.ClientResponse) -> dict[str, str]:
    return {name.lower(): value for name, value in answer.headers.items()}


async def _content(answer: aiohttp.ClientResponse) -> bytes:
    parts, size = [], 0
    async for part in answer.content.iter_any():
        parts.append(part)
        size += len(part)
        if size > MAX_BYTES:
            raise BadAnswerError(f"sent more than {MAX_BYTES // 2**20} MiB: no chat completion is so long")
    return b"".join(parts)


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:200]
