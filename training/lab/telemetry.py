"""Agent Lightning's tracing at a fraction of its cost: on two cores the society's models need the processor.

Measured with a model that answers at once, per rollout of 14 model calls: 0.51 s of processor time before, see
`benchmarks/orchestration.py` for now. All of it concerns agentlightning 0.3.0 and opentelemetry-sdk 1.39.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from importlib import import_module
from typing import Any

import agentlightning as agl
from agentlightning.utils.otlp import LightningStoreOTLPExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.trace import Tracer


class PlainResource(Resource):
    """A resource that is only what it is given.

    Agent Lightning makes one for every span with `Resource.create`, which each time searches all installed packages
    for resource detectors and starts a thread: 2 ms, to be merged into a resource that has the result already.
    """

    @staticmethod
    def create(attributes: Any = None, schema_url: str | None = None) -> Resource:
        """A resource with `attributes`."""
        return Resource(attributes or {}, schema_url)


def use_plain_resources() -> None:
    """Have Agent Lightning use `PlainResource` in this process."""
    for name in ("llm_proxy", "tracer.otel", "utils.otlp"):
        vars(import_module(f"agentlightning.{name}"))["Resource"] = PlainResource


class RolloutExporter(LightningStoreOTLPExporter):
    """Holds a rollout's spans and sends them together: one request to the store instead of a dozen.

    Args:
        store_key: What the store asks for.
    """

    def __init__(self, store_key: str) -> None:
        super().__init__(headers={"authorization": f"Bearer {store_key}"})
        # The store is on this machine: a proxy that the environment names is not for it, nor are keys in ~/.netrc.
        self._session.trust_env = False
        self._held: list[ReadableSpan] = []

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Hold `spans`."""
        self._held.extend(spans)
        return SpanExportResult.SUCCESS

    def flush(self) -> None:
        """Send what is held."""
        held, self._held = self._held, []
        if held and super().export(held) is not SpanExportResult.SUCCESS:
            raise RuntimeError(f"{len(held)} spans could not be sent to the store at {self.endpoint}")


class RolloutTracer(agl.OtelTracer):
    """The runners' tracer: our own spans only (exchanges are the gateway's), sent when the rollout has ended.

    Agent Lightning's AgentOpsTracer would record every model call a second time, in the runner.

    Args:
        store_key: What the store asks for.
    """

    def __init__(self, store_key: str) -> None:
        super().__init__()
        self._exporter = RolloutExporter(store_key)

    def _initialize_tracer_provider(self, worker_id: int) -> None:
        super()._initialize_tracer_provider(worker_id)
        assert self._simple_span_processor is not None
        self._simple_span_processor.span_exporter = self._exporter

    @asynccontextmanager
    async def trace_context(self, *args: Any, **kwargs: Any) -> AsyncIterator[Tracer]:
        """A trace whose spans are in the store when the context has been left."""
        async with super().trace_context(*args, **kwargs) as tracer:
            try:
                yield tracer
            finally:
                self._exporter.flush()
