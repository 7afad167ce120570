"""Rate limits and the time limits that stand still meanwhile, on a clock of the tests."""

import asyncio

import pytest
from message_kit import refused

from chimera.core.errors import ModelError, RateLimitError
from chimera.core.rate_limits import RateLimited, RateLimits, TimeLimit, retry_after, standing_still


class Clock:
    """Time passes while somebody sleeps."""

    def __init__(self):
        self.time, self.sentences = 1000.0, []

    async def sleep(self, seconds):
        await asyncio.sleep(0)
        self.time += seconds

    def limits(self, limit_s):
        return RateLimits(limit_s, self.sentences.append, lambda: self.time, self.sleep)


class Server:
    """Answers 429 until `free`, and names the seconds `wait_s`."""

    def __init__(self, clock, free, wait_s=None):
        self.clock, self.free, self.wait_s, self.asked, self.reached = clock, free, wait_s, [], asyncio.Event()

    async def __call__(self):
        self.asked.append(self.clock.time)
        self.reached.set()
        if self.clock.time < self.free:
            raise RateLimited("the model answered 429: slow down", self.wait_s)
        return b"yes"


async def test_a_call_waits_for_the_time_that_its_server_names_however_long():
    clock = Clock()
    server = Server(clock, 1000 + 1800, 1800.0)
    assert await clock.limits(3600).call("here", server) == b"yes"
    assert server.asked == [1000, 2800]
    (sentence,) = clock.sentences
    assert "429: slow down" in sentence
    assert "rollouts.pause_s=3600" in sentence


async def test_a_server_that_names_no_time_is_asked_less_and_less_often_and_told_once():
    clock = Clock()
    server = Server(clock, 1000 + 600)
    assert await clock.limits(3600).call("here", server) == b"yes"
    waits = [after - before for before, after in zip(server.asked, server.asked[1:], strict=False)]
    assert waits[0] < 1 < waits[5] <= 60
    assert len(clock.sentences) == 1


async def test_a_wait_beyond_the_limit_is_cut_to_it_and_then_it_ends_with_the_servers_words():
    clock = Clock()
    server = Server(clock, 9000, 5000.0)
    with refused(RateLimitError, "429: slow down", "rollouts.pause_s", "100 s") as caught:
        await clock.limits(100).call("here", server)
    assert server.asked == [1000, 1100]
    assert not caught.value.retriable


async def test_all_calls_to_a_limited_server_wait_and_those_to_others_do_not():
    clock = Clock()
    limits, server, other = clock.limits(100), Server(clock, 1010, 10.0), Server(clock, 0)
    first = asyncio.create_task(limits.call("here", server))
    await server.reached.wait()
    assert (await limits.call("there", other), other.asked) == (b"yes", [1000])
    assert await asyncio.gather(first, limits.call("here", server)) == [b"yes", b"yes"]
    assert all(moment >= 1010 for moment in server.asked[1:])


async def test_an_answer_to_what_was_asked_before_the_limit_does_not_end_it():
    clock = Clock()
    limits, server, ended = clock.limits(100), Server(clock, 1010, 10.0), asyncio.Event()
    early = asyncio.create_task(limits.call("here", ended.wait))
    await asyncio.sleep(0)
    limited = asyncio.create_task(limits.call("here", server))
    await server.reached.wait()
    ended.set()
    assert await early
    assert await asyncio.gather(limited, limits.call("here", server)) == [b"yes", b"yes"]
    assert all(moment >= 1010 for moment in server.asked[1:])


async def test_a_call_that_alone_is_refused_fails_alone():
    clock = Clock()
    limits, large, small = clock.limits(100), Server(clock, 9000, 1.0), Server(clock, 0)

    async def both():
        await limits.call("here", small)
        return await large()

    with refused(ModelError, "answered others", "429: slow down", "rollouts.pause_s") as caught:
        await limits.call("here", both)
    assert not isinstance(caught.value, RateLimitError)


async def test_moments_are_not_told():
    clock = Clock()
    assert await clock.limits(100).call("here", Server(clock, 1002, 2.0)) == b"yes"
    assert clock.sentences == []


async def test_without_a_limit_the_first_refusal_is_raised():
    clock = Clock()
    server = Server(clock, 9000, 1.0)
    with pytest.raises(RateLimited) as caught:
        await clock.limits(0).call("here", server)
    assert (server.asked, caught.value.retriable, caught.value.__cause__) == ([1000], True, None)


@pytest.mark.parametrize("value", ["", "-1", "nan", "Mon, 01 Jan 2027 00:00:00 +99999999999999999999"])
def test_what_is_no_time_names_none(value):
    assert retry_after(value) is None


async def test_a_time_limit_stands_still_while_any_task_within_it_waits(monkeypatch):
    loop, ahead, waiting, done = asyncio.get_running_loop(), [0.0], asyncio.Event(), asyncio.Event()
    now = loop.time
    monkeypatch.setattr(loop, "time", lambda: now() + ahead[0])

    async def wait():
        with standing_still():
            waiting.set()
            await done.wait()

    async def work():
        async with limit:
            tasks = [asyncio.create_task(wait()) for _ in range(2)]
            await waiting.wait()
            ahead[0] += 10_000
            await asyncio.sleep(0.01)
            done.set()
            await asyncio.gather(*tasks)
            stages.append(limit.expired())
            ahead[0] += 10_000
            await asyncio.Event().wait()

    limit, stages = TimeLimit(3600), []
    with pytest.raises(TimeoutError):
        await work()
    assert (stages, limit.expired()) == ([False], True)
