"""The run's store: queries from the main thread while the server's thread adds spans."""

import asyncio
import threading

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
