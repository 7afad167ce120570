"""Rate limits of servers: after a 429 all further calls to that model wait for the time that its server names.

Time limits of the work (`TimeLimit`) stand still meanwhile, because that time says nothing about the work.
"""

import asyncio
import math
import random
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any, Self

from chimera.core.errors import ModelError, RateLimitError

QUIET, APART = 5.0, 60.0
"""Seconds of a wait that the user is not told of, and between two sentences about one server."""


class RateLimited(ModelError):
    """A server answered 429; `wait_s` is the time that it names, in seconds, or None."""

    def __init__(self, message: str, wait_s: float | None = None) -> None:
        super().__init__(message, retriable=True, wait_s=wait_s)


def growing_wait(number: int, longest: float = 8.0) -> float:
    """Seconds before try `number`, from 0, where a server names no time."""
    return min(longest, 0.5 * 2 ** min(number, 16)) * random.uniform(0.75, 1.0)


def retry_after(value: str | None) -> float | None:
    """Seconds to wait from a Retry-After header (seconds or an HTTP date); None if it is missing or unreadable."""
    try:
        seconds = float(value or "")
    except ValueError:
        try:
            moment = parsedate_to_datetime(value or "")
        except (ValueError, OverflowError):  # The latter of a zone with many digits.
            return None
        return max(0.0, (moment.replace(tzinfo=moment.tzinfo or UTC) - datetime.now(UTC)).total_seconds())
    return seconds if 0 <= seconds < math.inf else None


def named_wait(headers: Mapping[str, str]) -> float | None:
    """Seconds that a model server's headers (names in lower case) ask to wait; None if they name no time to come."""
    milliseconds = retry_after(headers.get("retry-after-ms"))
    return (retry_after(headers.get("retry-after")) if milliseconds is None else milliseconds / 1000) or None


@dataclass(slots=True)
class _Server:
    """What is known of one server, on the clock of `RateLimits`: until when its calls wait, its last 429 and answer."""

    until: float = -math.inf
    limited: float = -math.inf
    tries: int = 0
    answered: float = -math.inf
    announced: float = -math.inf


class RateLimits:
    """Waits for servers: at most `limit_s` from a call's first 429 on. `tell` gets a sentence on long waits."""

    def __init__(
        self,
        limit_s: float,
        tell: Callable[[str], None],
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._limit_s, self._tell, self._now, self._sleep = limit_s, tell, now, sleep
        self._servers: dict[str, _Server] = {}

    async def call(self, place: str, send: Callable[[], Awaitable[bytes]]) -> bytes:
        """The answer of `send`, which asks the server at `place`, when its rate limit allows it.

        Raises:
            RateLimitError: The server has refused every call for longer than the limit.
            RateLimited: It has refused this call, and answered others.
        """
        server, end = self._servers.setdefault(place, _Server()), None
        while True:
            with standing_still():
                while (left := server.until - self._now()) > 0:
                    await self._sleep(left)
            sent = self._now()
            try:
                answer = await send()
            except RateLimited as error:
                now = self._now()
                end = now + self._limit_s if end is None else end
                if now >= end:
                    if not self._limit_s:
                        raise
                    raise self._ending(server, error) from error
                self._pause(server, error, now, end)
            else:
                server.answered = self._now()
                if sent >= server.limited:  # One that was under way before says nothing about the limit.
                    server.until, server.tries = -math.inf, 0
                return answer

    def _pause(self, server: _Server, error: RateLimited, now: float, end: float) -> None:
        wait = growing_wait(server.tries, APART) if error.wait_s is None else error.wait_s
        server.tries += now >= server.until  # Calls that were under way together count once.
        server.until, server.limited = max(server.until, min(end, now + wait)), now
        if server.until - now > QUIET and server.announced <= server.answered and server.announced < now - APART:
            server.announced = now
            self._tell(
                f"{error}: its rate limit has calls wait until {_clock(server.until - now)}, at most until "
                f"{_clock(end - now)} (rollouts.pause_s={self._limit_s:g})"
            )

    def _ending(self, server: _Server, error: RateLimited) -> ModelError:
        named = "" if error.wait_s is None else f" and names {_clock(error.wait_s)} for the next"
        text = f"{error}: for {self._limit_s:g} s (rollouts.pause_s) it has refused"
        if server.answered > self._now() - self._limit_s:
            return ModelError(f"{text} this call{named}, and answered others: is it too large for the limit?")
        return RateLimitError(f"{text} every call{named}: go on later, or raise rollouts.pause_s")


def _clock(seconds: float) -> str:
    return f"{datetime.now() + timedelta(seconds=min(seconds, 1e8)):%Y-%m-%d %H:%M:%S}"


class TimeLimit:
    """Like `asyncio.timeout`: cancels the block after `seconds` and raises TimeoutError, but see `standing_still`."""

    def __init__(self, seconds: float) -> None:
        self._timeout, self._left, self._waiting, self._open = asyncio.timeout(seconds), seconds, 0, False

    async def __aenter__(self) -> Self:
        await self._timeout.__aenter__()
        self._outer, self._open = _around.set((*_around.get(), self)), True
        return self

    async def __aexit__(self, *error: Any) -> None:
        self._open = False
        _around.reset(self._outer)
        await self._timeout.__aexit__(*error)

    def expired(self) -> bool:
        """True if the limit has ended the block."""
        return self._timeout.expired()

    def count_waiting(self, change: int) -> None:
        """One caller within the block more or less waits; the limit runs while none does."""
        now, ran = asyncio.get_running_loop().time(), not self._waiting
        self._waiting += change
        if self._open and not self.expired() and ran != (not self._waiting):
            self._left = (self._timeout.when() or now) - now if ran else self._left
            self._timeout.reschedule(None if ran else now + self._left)


_around: ContextVar[tuple[TimeLimit, ...]] = ContextVar("limits around the code that runs", default=())


@contextmanager
def standing_still() -> Iterator[None]:
    """Time limits around this code, and around whatever started its task, stand still within the block."""
    limits = _around.get()
    for limit in limits:
        limit.count_waiting(1)
    try:
        yield
    finally:
        for limit in limits:
            limit.count_waiting(-1)
