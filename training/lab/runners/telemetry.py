"""Agent Lightning's tracing at a fraction of its cost, because on two cores the models need the processor.

A rollout of 14 model calls with a model that answers at once took 0.51 s of processor time before. See
`benchmarks.rollouts.orchestration` for the time now. All of this is about agentlightning 0.3.0 and
opentelemetry-sdk 1.39.
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
    """A resource with only the given attributes.

    Agent Lightning calls `Resource.create` for every span. Each call searches all installed packages for resource
    detectors and starts a thread, which takes 2 ms, and merges the result into a resource that has it already.
    """

    @staticmethod
    def create(attributes: Any = None, schema_url: str | None = None) -> Resource:
        return Resource(attributes or {}, schema_url)


def use_plain_resources() -> None:
    """Make Agent Lightning use `PlainResource` in this process."""
    for name in ("llm_proxy", "tracer.otel", "utils.otlp"):
        vars(import_module(f"agentlightning.{name}"))["Resource"] = PlainResource


class RolloutExporter(LightningStoreOTLPExporter):
    """Collects a rollout's spans and sends them in one request to the store instead of a dozen.

    Args:
        trusted: File or folder of authorities of which one must have signed the store's certificate, where it has one.
    """

    def __init__(self, store_key: str, trusted: str | None = None) -> None:
        super().__init__(certificate_file=trusted, headers={"authorization": f"Bearer {store_key}"})
        # The store is on this machine, so the environment's proxy and keys in ~/.netrc do not apply.
        self._session.trust_env = False
        self._held: list[ReadableSpan] = []

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self._held.extend(spans)
        return SpanExportResult.SUCCESS

    def flush(self) -> None:
        """Send the collected spans."""
        held, self._held = self._held, []
        if held and super().export(held) is not SpanExportResult.SUCCESS:
            raise RuntimeError(f"{len(held)} spans could not be sent to the store at {self.endpoint}")


class RolloutTracer(agl.OtelTracer):
    """The runners' tracer: only our own spans (the gateway records exchanges), sent when the rollout has ended.

    Agent Lightning's AgentOpsTracer would record every model call a second time, in the runner.
    """

    def __init__(self, store_key: str, trusted: str | None = None) -> None:
        super().__init__()
        self._exporter = RolloutExporter(store_key, trusted)

    def _initialize_tracer_provider(self, worker_id: int) -> None:
        super()._initialize_tracer_provider(worker_id)
        assert self._simple_span_processor is not None
        self._simple_span_processor.span_exporter = self._exporter

    @asynccontextmanager
    async def trace_context(self, *args: Any, **kwargs: Any) -> AsyncIterator[Tracer]:
        """A trace. Its spans are in the store when the context ends."""
        async with super().trace_context(*args, **kwargs) as tracer:
            try:
                yield tracer
            finally:
                self._exporter.flush()
