"""The run's store: queries from the main thread while the server's thread adds spans."""

import asyncio
import threading
import time

import agentlightning as agl
import aiohttp
import httpx
import pytest
from agentlightning.types import EnqueueRolloutRequest

from training.lab.gateway.exchanges import Exchange, encode
from training.lab.store import KeyedStoreClient, LabStore

SPANS = 1500


def post(store, body, key=None):
    headers = {"authorization": f"Bearer {key or store.key}", "content-type": "application/x-protobuf"}
    return httpx.post(f"{store.endpoint}/v1/traces", content=body, headers=headers)


def span(rollout_id, attempt_id, number):
    return agl.Span.from_attributes(
        rollout_id=rollout_id,
        attempt_id=attempt_id,
        sequence_id=number,
        trace_id=f"{number:032x}",
        span_id=f"{number:016x}",
        name="test",
        attributes={"number": number},
    )


async def test_spans_may_arrive_in_another_thread_while_they_are_queried():
    store = LabStore(lambda _: None)
    store.employ("Worker-0")
    store.employ("Worker-1")
    await store.start()
    try:
        (rollout,) = await store.enqueue_many_rollouts([EnqueueRolloutRequest(input={}, mode="train")])
        attempt = await store.dequeue_rollout("Worker-0")
        assert attempt is not None

        def add():
            known = rollout.rollout_id, attempt.attempt.attempt_id
            for start in range(0, SPANS, 50):
                exchanges = [Exchange(*known, {"number": start + i}, {"id": "x"}, 1, 2) for i in range(50)]
                post(store, encode(exchanges)).raise_for_status()

        adding = threading.Thread(target=add)
        adding.start()
        while adding.is_alive():
            await store.query_spans(rollout.rollout_id)
        adding.join()
        assert len((await store.query_spans(rollout.rollout_id)).items) == SPANS
    finally:
        await store.close()


async def test_a_late_span_of_a_killed_runner_does_not_keep_the_rollout_from_its_next_attempt():
    """The gateway sends the exchange that a runner was waiting for when it was killed."""
    store = LabStore(lambda _: None)
    store.employ("Worker-0")
    store.employ("Worker-1")
    await store.start()
    try:
        again = agl.RolloutConfig(max_attempts=2, retry_condition=["unresponsive"])
        await store.enqueue_many_rollouts([EnqueueRolloutRequest(input={}, mode="train", config=again)])
        first = await store.dequeue_rollout("Worker-0")
        assert first is not None
        known = first.rollout_id, first.attempt.attempt_id
        await store.add_many_spans([span(*known, 1)])
        await store.update_attempt(*known, status="unresponsive", metadata={"error": "killed"})
        await store.add_many_spans([span(*known, 2)])
        second = await store.dequeue_rollout("Worker-1")
        assert second is not None
        assert (second.rollout_id, second.attempt.sequence_id) == (first.rollout_id, 2)
        # Now that it is under way, what comes late of the first attempt changes nothing.
        await store.add_many_spans([span(*known, 3)])
        rollout = await store.get_rollout_by_id(first.rollout_id)
        assert isinstance(rollout, agl.AttemptedRollout)
        assert rollout.attempt.attempt_id == second.attempt.attempt_id
        await store.update_attempt(second.rollout_id, second.attempt.attempt_id, status="unresponsive")
        await store.add_many_spans([span(second.rollout_id, second.attempt.attempt_id, 4)])
        rollout = await store.get_rollout_by_id(first.rollout_id)
        assert rollout is not None
        assert rollout.status == "failed"
    finally:
        await store.close()


async def test_a_clock_that_is_set_forward_does_not_end_a_rollout_as_late(monkeypatch):
    monkeypatch.setattr("training.lab.backing.SCAN_SECONDS", 0.0)
    store = LabStore(lambda _: None)
    store.employ("Worker-0")
    hour = agl.RolloutConfig(timeout_seconds=3600)
    (rollout,) = await store.enqueue_many_rollouts([EnqueueRolloutRequest(input={}, mode="train", config=hour)])
    attempted = await store.dequeue_rollout("Worker-0")
    assert attempted is not None
    clock = time.time
    monkeypatch.setattr(time, "time", lambda: clock() + 90_000)
    await store.query_rollouts()
    (found,) = (await store.query_rollouts(rollout_id_in=[rollout.rollout_id])).items
    assert found.status == "preparing"


class WatchedStore(LabStore):
    """Tells when a runner begins to wait for work, and when it no longer does."""

    def __init__(self):
        super().__init__(lambda _: None)
        self.asked, self.left = threading.Event(), threading.Event()

    async def dequeue_rollout(self, worker_id=None):
        self.asked.set()
        try:
            return await super().dequeue_rollout(worker_id)
        finally:
            self.left.set()


async def test_a_runner_that_leaves_while_it_waits_gets_no_rollout(monkeypatch):
    """Otherwise the next rollout would wait until the runner's silence is noticed."""
    monkeypatch.setattr("training.lab.store.LONG_POLL_SECONDS", 3600.0)
    store = WatchedStore()
    store.employ("Worker-0")
    store.employ("Worker-1")
    await store.start()
    try:
        gone, other = (KeyedStoreClient(store.endpoint, store.key) for _ in range(2))
        waiting = asyncio.create_task(gone.dequeue_rollout("Worker-0"))
        await asyncio.to_thread(store.asked.wait)
        waiting.cancel()
        await gone.close()
        await asyncio.to_thread(store.left.wait)
        await store.enqueue_many_rollouts([EnqueueRolloutRequest(input={}, mode="train")])
        found = await other.dequeue_rollout("Worker-1")
        assert found is not None
        assert found.attempt.sequence_id == 1
        await other.close()
    finally:
        await store.close()


@pytest.fixture
async def open_store():
    """A store with one rollout, which Worker-0 holds, and one that waits."""
    store = LabStore(lambda _: None)
    store.employ("Worker-0")
    await store.start()
    await store.enqueue_many_rollouts([EnqueueRolloutRequest(input={"task": n}, mode="train") for n in range(2)])
    held = await store.dequeue_rollout("Worker-0")
    assert held is not None
    yield store, held
    await store.close()


async def test_only_attempts_that_a_runner_of_this_run_holds_are_believed(open_store):
    store, held = open_store
    (waiting,) = (await store.query_rollouts(status_in=["queuing"])).items
    client = KeyedStoreClient(store.endpoint, store.key)
    with pytest.raises(aiohttp.ClientResponseError, match="403"):
        await client.update_attempt(waiting.rollout_id, "at-forged", status="succeeded")
    forged = encode([Exchange(waiting.rollout_id, "at-forged", {}, {"id": "x"}, 1, 2)])
    assert (await asyncio.to_thread(post, store, forged)).status_code == 403
    real = Exchange(held.rollout_id, held.attempt.attempt_id, {}, {"id": "y"}, 1, 2)
    mixed = encode([real, Exchange(held.rollout_id, "at-forged", {}, {"id": "z"}, 1, 2)])
    assert (await asyncio.to_thread(post, store, mixed)).status_code == 403
    assert (await store.query_spans(held.rollout_id)).items == []
    assert (await asyncio.to_thread(post, store, encode([real]))).status_code == 200
    found = (await store.query_spans(held.rollout_id)).items
    assert [span.attributes["llm.hosted_vllm.id"] for span in found] == ["y"]
    assert (await store.query_spans(waiting.rollout_id)).items == []
    await client.update_attempt(held.rollout_id, held.attempt.attempt_id, status="succeeded")
    await client.close()


async def test_only_employed_workers_get_work(open_store):
    store, _ = open_store
    client = KeyedStoreClient(store.endpoint, store.key)
    assert await client.dequeue_rollout("Worker-7") is None
    assert await client.dequeue_rollout(None) is None
    store.employ("Worker-7")
    taken = await client.dequeue_rollout("Worker-7")
    assert taken.input == {"task": 1}
    await client.close()


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/agl/rollouts"),
        ("POST", "/v1/agl/rollouts"),
        ("POST", "/v1/agl/queues/rollouts/enqueue"),
        ("POST", "/v1/agl/resources"),
        ("POST", "/v1/agl/spans"),
        ("GET", "/v1/agl/statistics"),
        ("GET", "/docs"),
        ("GET", "/openapi.json"),
        ("GET", "/"),
    ],
)
async def test_routes_that_no_runner_needs_are_not_there(open_store, method, path):
    store, _ = open_store
    headers = {"authorization": f"Bearer {store.key}"}
    async with httpx.AsyncClient(base_url=store.endpoint, headers=headers) as client:
        assert (await client.request(method, path, json={})).status_code == 404


async def test_a_runner_with_the_wrong_key_does_not_ask_for_ever(open_store):
    store, _ = open_store
    client = KeyedStoreClient(store.endpoint, "wrong")
    with pytest.raises(aiohttp.ClientResponseError, match="401"):
        await client.dequeue_rollout("Worker-0")
    await client.close()
