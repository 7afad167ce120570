"""Writes rollouts' traces into Agent Lightning's store, for many rollouts at a time in one process.

Agent Lightning 0.3.0's `OtelTracer` knows one rollout in a process, and its `DummyTracer` has no trace.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import fields
from typing import Any

import agentlightning as agl
from agentlightning.types import OtelResource, TraceStatus

from evaluation.traces.spans import Span

RESOURCE = OtelResource(attributes={}, schema_url="")

_recorded: ContextVar[list[Span]] = ContextVar("recorded")
"""The current rollout's trace."""
_stored: ContextVar[list[agl.Span]] = ContextVar("stored")
"""The spans that the store holds of it."""


def record(trace: Sequence[Span]) -> None:
    """Have the store get `trace` as the current rollout's when it ends."""
    _recorded.get().extend(trace)


class RolloutTracer(agl.DummyTracer):
    """One runner's tracer: a rollout's spans go into the store at its end, failed or not."""

    @asynccontextmanager
    async def trace_context(self, name: str | None = None, **ids: Any) -> AsyncIterator[None]:
        """One attempt of a rollout, with the store's `rollout_id` and `attempt_id`."""
        assert self._store is not None
        _recorded.set(trace := [])
        _stored.set([])
        try:
            yield
        finally:
            _stored.set(list(await self._store.add_many_spans([_stored_span(span, ids) for span in trace])))

    def get_last_trace(self) -> list[agl.Span]:
        """The spans of the rollout that has just ended."""
        return _stored.get()


def _stored_span(span: Span, ids: Mapping[str, Any]) -> agl.Span:
    """`span` as Agent Lightning's. Its types hold by construction; to check them takes longer than to store it."""
    values: dict[str, Any] = {field.name: getattr(span, field.name) for field in fields(Span)}
    values |= {"status": TraceStatus.model_validate(span.status), "resource": RESOURCE, "context": None, "parent": None}
    return agl.Span.model_construct(**{**values, **ids})
