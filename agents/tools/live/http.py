"""HTTP for the live tools: one time limit, retries that wait, and every failure as one sentence without secrets.

Each search opens its own connection: tools run in threads and several event loops, so they cannot share a pool
of connections. Keys are sent in headers or bodies only, because httpx logs addresses.
"""

import asyncio
import ssl
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, TypeVar

import httpx
from pydantic import BaseModel, ValidationError

from agents.tools.text.passages import Passage, ToolError
from chimera.core.rate_limits import retry_after

AGENT = "chimera-lab"
"""User-Agent header that every service receives."""
MAX_BYTES = 8_000_000
"""Longest answer that is read, in bytes. A few records are far shorter."""
SPARE = 3
"""Extra results that are requested, to replace those that the leak block removes."""

Answer = TypeVar("Answer", bound=BaseModel)
Sleep = Callable[[float], Awaitable[Any]]
_FORWARDED = ("authorization", "content-type", "x-client-source")
_Response = tuple[int, Mapping[str, str], bytes]


@dataclass(frozen=True)
class LiveHttp:
    """Sends requests to live services.

    `timeout_s` limits one request with all its retries and waits. `retries`: further attempts after 429 and 5xx. The
    wait follows Retry-After, or else starts at `backoff_s` and doubles.
    """

    timeout_s: float
    retries: int
    backoff_s: float = 0.5
    sleep: Sleep = field(default=asyncio.sleep, repr=False)

    async def request(
        self, service: str, method: str, url: str, *, key_name: str | None = None, **options: Any
    ) -> bytes:
        """The body of a 200 answer; raises ToolError that names `service`, and `key_name` if the key is refused."""
        try:
            async with (
                asyncio.timeout(self.timeout_s),
                httpx.AsyncClient(
                    verify=_ssl_context(), timeout=None, headers={"User-Agent": AGENT}, follow_redirects=False
                ) as client,
            ):
                status, body = await self._tries(service, lambda: _exchange(client, service, method, url, options))
        except TimeoutError:
            raise ToolError(f"{service} did not answer within {self.timeout_s:g} s (tools.timeout_s)") from None
        except httpx.DecodingError:
            raise ToolError(f"{service} sent an answer that cannot be decompressed") from None
        except httpx.HTTPError as error:
            raise ToolError(f"{service} cannot be reached ({type(error).__name__})") from None
        if status == 200:
            return body
        raise ToolError(_refusal(service, status, self.retries, key_name))

    async def json(self, service: str, method: str, url: str, answer: type[Answer], **options: Any) -> Answer:
        """Parse a 200 answer as the model `answer`; raises ToolError, also if it does not fit."""
        body = await self.request(service, method, url, **options)
        try:
            return answer.model_validate_json(body)
        except ValidationError as error:
            fault = error.errors(include_url=False, include_input=False, include_context=False)[0]
            where = ".".join(map(str, fault["loc"])) or "the whole answer"
            raise ToolError(f"{service} answered 200 with malformed JSON ({where}: {fault['msg'][:80]})") from None

    async def _tries(self, service: str, exchange: Callable[[], Awaitable[_Response]]) -> tuple[int, bytes]:
        """Status and body of the first answer that is not 429 or 5xx, or of the last attempt."""
        deadline = time.monotonic() + self.timeout_s
        status, headers, body = await exchange()
        for attempt in range(self.retries):
            if status != 429 and status < 500:
                break
            retry_s = retry_after(headers.get("retry-after"))
            delay = self.backoff_s * 2**attempt if retry_s is None else retry_s
            if delay >= deadline - time.monotonic():
                what = "is limiting our rate (429)" if status == 429 else f"is failing ({status})"
                limit = f"beyond the {self.timeout_s:g} s of tools.timeout_s"
                raise ToolError(f"{service} {what} and the next try would be in {delay:.0f} s, {limit}")
            await self.sleep(delay)
            status, headers, body = await exchange()
        return status, body


@dataclass(frozen=True)
class LiveTransport(httpx.AsyncBaseTransport):
    """Lets the client of another library send its requests through `LiveHttp`, with its limits, retries and errors.

    The library gets only answers with status 200 that fit the model `answer`; everything else is a ToolError.
    """

    http: LiveHttp
    service: str
    answer: type[BaseModel]
    key_name: str

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send the request with the headers of the library's own making."""
        headers = {name: value for name, value in request.headers.items() if name in _FORWARDED}
        answer = await self.http.json(
            self.service,
            request.method,
            str(request.url),
            self.answer,
            key_name=self.key_name,
            content=await request.aread(),
            headers=headers,
        )
        return httpx.Response(200, json=answer.model_dump(mode="json"), request=request)


class SearchCache:
    """Caches the last answers of live searches in this process, and joins equal searches that run at the same time.

    Three juniors often search for the same query at once; one request serves them all. Failures are not cached.
    """

    def __init__(self, size: int = 256) -> None:
        self._size = size
        self._kept: dict[Any, Sequence[Passage]] = {}
        self._running: dict[Any, asyncio.Task[Sequence[Passage]]] = {}
        self._lock = threading.Lock()

    async def get(self, key: Any, search: Callable[[], Awaitable[Sequence[Passage]]]) -> Sequence[Passage]:
        """The cached answer for `key`, or the result of `search`; raises what `search` raises."""
        with self._lock:
            if key in self._kept:
                self._kept[key] = self._kept.pop(key)
                return self._kept[key]
        place = (asyncio.get_running_loop(), key)
        task = self._running.get(place)
        if task is None:
            task = asyncio.ensure_future(self._search(key, search))
            self._running[place] = task
            task.add_done_callback(lambda done: self._finished(place, done))
        return await asyncio.shield(task)

    async def _search(self, key: Any, search: Callable[[], Awaitable[Sequence[Passage]]]) -> Sequence[Passage]:
        passages = await search()
        with self._lock:
            self._kept[key] = passages
            while len(self._kept) > self._size:
                del self._kept[next(iter(self._kept))]
        return passages

    def _finished(self, place: Any, task: asyncio.Task[Sequence[Passage]]) -> None:
        self._running.pop(place, None)
        if not task.cancelled():
            task.exception()


@cache
def _ssl_context() -> ssl.SSLContext:
    return httpx.create_ssl_context()


async def _exchange(
    client: httpx.AsyncClient, service: str, method: str, url: str, options: Mapping[str, Any]
) -> _Response:
    body = bytearray()
    async with client.stream(method, url, **options) as response:
        async for chunk in response.aiter_bytes():
            body += chunk
            if len(body) > MAX_BYTES:
                raise ToolError(f"{service} sent more than {MAX_BYTES // 1_000_000} MB: ask for something narrower")
        return response.status_code, response.headers, bytes(body)


def _refusal(service: str, status: int, retries: int, key_name: str | None) -> str:
    tries = f" after {retries + 1} tries" if retries else ""
    if status == 429:
        return f"{service} is limiting our rate (429){tries}: try again later"
    if status >= 500:
        return f"{service} is failing ({status}){tries}: try again later"
    if 300 <= status < 400:
        return f"{service} points to another address ({status}), which is not asked: query and key stay here"
    if status in (401, 403, 432, 433) and key_name:  # Tavily's last two: its plan or budget is used up.
        return f"{service} refused the key ({status}): check {key_name}"
    or_key = f", or check {key_name}" if key_name and status == 400 else ""  # NCBI answers 400 to a wrong key.
    return f"{service} refused the search ({status}): try other words{or_key}"
