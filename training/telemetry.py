"""Agent Lightning's tracing at a fraction of its cost: on two cores the society's models need the processor.

Measured with a model that answers at once, per rollout of 14 model calls: 0.51 s of processor time before, see
`benchmarks/orchestration.py` for now. All of it concerns agentlightning 0.3.0 and opentelemetry-sdk 1.39.
"""

import logging
import threading
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from importlib import import_module
from queue import SimpleQueue
from typing import Any

import agentlightning as agl
from agentlightning.llm_proxy import LightningOpenTelemetry, LightningSpanExporter
from agentlightning.utils.otlp import LightningStoreOTLPExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.trace import Tracer

BATCH_SECONDS = 0.05

logger = logging.getLogger(__name__)


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


class ExchangeExporter(OTLPSpanExporter):
    """Sends spans to the store from a thread of its own, those of 50 ms together.

    Agent Lightning's exporter sends each exchange by itself and lets the gateway's event loop wait for the store.
    """

    def __init__(self) -> None:
        super().__init__()
        self._waiting: SimpleQueue[ReadableSpan] = SimpleQueue()
        self._sender: threading.Thread | None = None

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Hand `spans` to the thread; the caller has set `_endpoint` for the time of this call."""
        for span in spans:
            self._waiting.put(span)
        if self._sender is None:
            store = OTLPSpanExporter(endpoint=self._endpoint)
            self._sender = threading.Thread(target=self._send, args=(store,), name="exchange-exporter", daemon=True)
            self._sender.start()
        return SpanExportResult.SUCCESS

    def _send(self, store: OTLPSpanExporter) -> None:
        while True:
            batch = [self._waiting.get()]
            time.sleep(BATCH_SECONDS)
            while not self._waiting.empty():
                batch.append(self._waiting.get())
            if store.export(batch) is not SpanExportResult.SUCCESS:
                logger.error("%d spans could not be sent to the store", len(batch))


class ExchangeTelemetry(LightningOpenTelemetry):
    """The gateway's spans: those of each exchange, without one for each of LiteLLM's own steps."""

    def __init__(self) -> None:
        super().__init__()
        exporter = self.config.exporter
        assert isinstance(exporter, LightningSpanExporter)
        exporter._otlp_exporter = ExchangeExporter()

    async def async_service_success_hook(self, *args: Any, **kwargs: Any) -> None:
        """No span for LiteLLM's authentication, routing and so on."""

    async def async_service_failure_hook(self, *args: Any, **kwargs: Any) -> None:
        """As above; the exchange's own span tells of the failure."""


class RolloutExporter(LightningStoreOTLPExporter):
    """Holds a rollout's spans and sends them together: one request to the store instead of a dozen."""

    def __init__(self) -> None:
        super().__init__()
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
    """

    def __init__(self) -> None:
        super().__init__()
        self._exporter = RolloutExporter()

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
