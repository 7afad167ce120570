"""The run's store: queries from the main thread while the server's thread adds spans."""

import asyncio
import threading
import time

import agentlightning as agl
from agentlightning.types import EnqueueRolloutRequest

from training.store import LabStore

SPANS = 1500


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
    await store.start()
    try:
        (rollout,) = await store.enqueue_many_rollouts([EnqueueRolloutRequest(input={}, mode="train")])
        attempt = await store.dequeue_rollout("Worker-0")
        assert attempt is not None

        def add():
            client = agl.LightningStoreClient(store.endpoint)

            async def send():
                for start in range(0, SPANS, 50):
                    spans = [span(rollout.rollout_id, attempt.attempt.attempt_id, start + i) for i in range(50)]
                    await client.add_many_spans(spans)
                await client.close()

            asyncio.run(send())

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
    monkeypatch.setattr("training.store.SCAN_SECONDS", 0.0)
    store = LabStore(lambda _: None)
    hour = agl.RolloutConfig(timeout_seconds=3600)
    (rollout,) = await store.enqueue_many_rollouts([EnqueueRolloutRequest(input={}, mode="train", config=hour)])
    attempted = await store.dequeue_rollout("Worker-0")
    assert attempted is not None
    clock = time.time
    monkeypatch.setattr(time, "time", lambda: clock() + 90_000)
    await store.query_rollouts()
    (found,) = (await store.query_rollouts(rollout_id_in=[rollout.rollout_id])).items
    assert found.status == "preparing"
