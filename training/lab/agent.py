"""The society as an Agent Lightning agent, and a worker whose rollouts go through Agent Lightning 0.3.0.

Its runner takes one rollout at a time from nobody: the worker hands it over. Store and hooks are Agent Lightning's
own, in this process, so that whatever is written for them works here.
"""

import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import fields
from typing import Any

import agentlightning as agl
from agentlightning.types import OtelResource, TraceStatus

from chimera.core.errors import ChimeraError
from evaluation.rollout.worker import Job, Result, Worker
from evaluation.traces.spans import Span

# It logs a traceback of every rollout that fails. The record says why, and anything else is raised.
logging.getLogger("agentlightning.runner.agent").setLevel(logging.CRITICAL)

SPAN_MEMORY_BYTES = 64 * 2**20
"""Spans beyond it are evicted, oldest first; they are on disk."""
RESOURCE = OtelResource(attributes={}, schema_url="")


class RolloutFailed(ChimeraError):
    """Tells Agent Lightning that a rollout failed; the record on disk says why."""


class SocietyAgent(agl.LitAgent[dict[str, Any]]):
    """Works on one task at a time.

    Attributes:
        job: What is to be done next.
        result: What came of it; None if nothing did.
    """

    def __init__(self, worker: Worker) -> None:
        super().__init__()
        self._worker = worker
        self.job: Job | None = None
        self.result: Result | None = None

    async def rollout_async(self, task: dict[str, Any], resources: agl.NamedResources, rollout: agl.Rollout) -> None:
        """Do the job; `task` describes it to hooks and readers of the store, without keys."""
        assert self.job is not None
        self.result = record, _ = await self._worker.rollout(self.job)
        if record.status == "failed":
            raise RolloutFailed(str(record.error))


class RolloutTracer(agl.DummyTracer):
    """The tracer of an agent's runner: a rollout's spans go into the store at its end, failed or not.

    Agent Lightning 0.3.0's `OtelTracer` knows one rollout in a process, and its `DummyTracer` has no trace.
    """

    def __init__(self, agent: SocietyAgent) -> None:
        super().__init__()
        self._agent = agent
        self._stored: list[agl.Span] = []

    @asynccontextmanager
    async def trace_context(self, name: str | None = None, **ids: Any) -> AsyncIterator[None]:
        """One attempt of a rollout, with the store's `rollout_id` and `attempt_id`."""
        assert self._store is not None
        self._stored = []
        try:
            yield
        finally:
            trace = self._agent.result[1] if self._agent.result else ()
            self._stored = list(await self._store.add_many_spans([_stored_span(span, ids) for span in trace]))

    def get_last_trace(self) -> list[agl.Span]:
        """The spans of the rollout that has just ended."""
        return self._stored


def _stored_span(span: Span, ids: Mapping[str, Any]) -> agl.Span:
    """`span` as Agent Lightning's. Its types hold by construction; to check them takes longer than to store it."""
    values: dict[str, Any] = {field.name: getattr(span, field.name) for field in fields(Span)}
    values |= {"status": TraceStatus.model_validate(span.status), "resource": RESOURCE, "context": None, "parent": None}
    return agl.Span.model_construct(**{**values, **ids})


class LightningWorker:
    """An `evaluation.rollout.worker.Worker` that works through Agent Lightning.

    Args:
        number: Its number among the workers, from 0.
        worker: Runs the society.
    """

    def __init__(self, number: int, worker: Worker, store: agl.LightningStore) -> None:
        self._agent = SocietyAgent(worker)
        # With a heartbeat each runner would start two threads.
        self._runner = agl.LitAgentRunner[dict[str, Any]](RolloutTracer(self._agent), heartbeat_interval=0)
        self._runner.init(self._agent)
        self._runner.init_worker(number, store)

    async def rollout(self, job: Job) -> Result:
        """See `Worker.rollout`."""
        agent = self._agent
        agent.job, agent.result = job, None
        with suppress(RolloutFailed):  # The record says so.
            await self._runner.step({"rollout_id": job.rollout_id, **job.input.dump()}, mode=job.mode)
        assert agent.result is not None
        return agent.result


async def open_store() -> agl.InMemoryLightningStore:
    """A store in this process, in which rollouts can begin."""
    # The store's own estimate of a span's size takes most of the time of adding one.
    store = agl.InMemoryLightningStore(
        eviction_memory_threshold=SPAN_MEMORY_BYTES, span_size_estimator=lambda span: 2000 + 100 * len(span.attributes)
    )
    await store.add_resources({})  # A runner begins no rollout without: jobs say where the models are.
    return store
