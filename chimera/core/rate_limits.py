"""Rate limits of servers: after a 429 all calls to that model wait for the time that its server names.

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
from types import TracebackType
from typing import Self

from chimera.core.errors import ModelError, RateLimitError

QUIET, APART = 5.0, 60.0
"""Seconds of a wait that the user is not told of, and between two sentences about one server."""


class RateLimited(ModelError):
    """A server answered 429; `wait_s` is the time that it names, in seconds, or None."""

    def __init__(self, message: str, wait_s: float | None = None) -> None:
        super().__init__(message, retriable=True)
        self.wait_s = wait_s


def growing_wait(number: int, longest: float = 8.0) -> float:
    """Seconds before try `number`, from 0, where a server names no time."""
    return min(longest, 0.5 * 2 ** min(number, 16)) * random.uniform(0.75, 1.0)


def retry_after(value: str | None) -> float | None:
    """Seconds to wait from a Retry-After header (seconds or an HTTP date); None if it is missing or unreadable."""
    try:
        seconds = float(value or "")
        return seconds if seconds >= 0 and math.isfinite(seconds) else None
    except ValueError:
        pass
    try:
        moment = parsedate_to_datetime(value or "")
    except ValueError:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return max(0.0, (moment - datetime.now(UTC)).total_seconds())


def named_wait(headers: Mapping[str, str]) -> float | None:
    """Seconds that a model server's headers (names in lower case) ask to wait; None if they name no time to come."""
    milliseconds = retry_after(headers.get("retry-after-ms"))
    return retry_after(headers.get("retry-after")) or None if milliseconds is None else milliseconds / 1000 or None


@dataclass(slots=True)
class _Stretch:
    """The time since a server's last answer in which it answered 429 only, on the clock of `RateLimits`."""

    since: float
    until: float
    tries: int = 0


class RateLimits:
    """Waits for the servers of one run.

    Args:
        limit_s: Longest wait for a server that answers nothing but 429, or for one call.
        tell: Called with one sentence when a server has calls wait for more than moments.
    """

    def __init__(
        self,
        limit_s: float,
        tell: Callable[[str], None],
        *,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._limit_s, self._tell, self._now, self._sleep = limit_s, tell, now, sleep
        self._stretches: dict[str, _Stretch] = {}
        self._last_sentence: dict[str, float] = {}

    async def call(self, place: str, send: Callable[[], Awaitable[bytes]]) -> bytes:
        """The answer of `send`, which asks the server at `place`, when its rate limit allows it.

        Raises:
            RateLimitError: Every call to this server has been refused for longer than the limit.
            RateLimited: This call alone has been.
        """
        first: float | None = None
        while True:
            with standing_still():
                while (stretch := self._stretches.get(place)) and (left := stretch.until - self._now()) > 0:
                    await self._sleep(left)
            try:
                answer = await send()
            except RateLimited as error:
                first = self._now() if first is None else first
                if self._limit_s == 0 or self._now() >= first + self._limit_s:
                    self._check(place, error)
                    error.retriable = self._limit_s == 0
                    raise
                self._pause(place, error)
            else:
                self._stretches.pop(place, None)
                return answer

    def _pause(self, place: str, error: RateLimited) -> None:
        now = self._now()
        stretch = self._stretches.get(place)
        if stretch is None or now > stretch.until + APART:  # Nobody has asked since its end.
            stretch = self._stretches[place] = _Stretch(since=now, until=now)
        self._check(place, error)
        wait = growing_wait(stretch.tries, APART) if error.wait_s is None else error.wait_s
        stretch.tries += now >= stretch.until  # Calls that were under way together count once.
        end = stretch.since + self._limit_s
        stretch.until = min(end, max(stretch.until, now + wait))
        if stretch.until - now > QUIET and self._last_sentence.get(place, -math.inf) < min(stretch.since, now - APART):
            self._last_sentence[place] = now
            self._tell(
                f"{error}: its rate limit has calls wait until {_clock(stretch.until - now)}, at most until "
                f"{_clock(end - now)} (rollouts.pause_s={self._limit_s:g})"
            )

    def _check(self, place: str, error: RateLimited) -> None:
        """Raise RateLimitError if the server has been waited for as long as may be."""
        stretch = self._stretches.get(place)
        if stretch is not None and self._now() >= stretch.since + self._limit_s:
            more = "" if error.wait_s is None else f", and it names {_clock(error.wait_s)} for the next one"
            raise RateLimitError(
                f"{error}: it has refused every call for {self._limit_s:g} s (rollouts.pause_s){more}: go on later, or "
                "raise rollouts.pause_s"
            ) from error


def _clock(seconds: float) -> str:
    return f"{datetime.now() + timedelta(seconds=min(seconds, 1e8)):%Y-%m-%d %H:%M:%S}"


class TimeLimit:
    """Like `asyncio.timeout`: cancels the block after `seconds` and raises TimeoutError, but see `standing_still`."""

    def __init__(self, seconds: float) -> None:
        self._timeout = asyncio.timeout(seconds)
        self._left, self._waiting, self._open = seconds, 0, False

    async def __aenter__(self) -> Self:
        await self._timeout.__aenter__()
        self._outer = _around.set((*_around.get(), self))
        self._open = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._open = False
        _around.reset(self._outer)
        await self._timeout.__aexit__(kind, error, traceback)

    def expired(self) -> bool:
        """True if the limit has ended the block."""
        return self._timeout.expired()

    def count_waiting(self, change: int) -> None:
        """One caller within the block more or less waits; the limit runs while none does."""
        now, ran = asyncio.get_running_loop().time(), not self._waiting
        self._waiting += change
        if not self._open or self.expired() or ran == (not self._waiting):
            return
        if ran:
            self._left = (self._timeout.when() or now) - now
        self._timeout.reschedule(None if ran else now + self._left)


_around: ContextVar[tuple[TimeLimit, ...]] = ContextVar("limits around the code that runs", default=())


@contextmanager
def standing_still() -> Iterator[None]:
    """All time limits around this code, also those of tasks that have started it, stand still within the block."""
    limits = _around.get()
    for limit in limits:
        limit.count_waiting(1)
    try:
        yield
    finally:
        for limit in limits:
            limit.count_waiting(-1)
