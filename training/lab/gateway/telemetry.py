"""Sends LiteLLM's spans of exchanges to the store in batches (agentlightning 0.3.0)."""

import logging
import threading
import time
from collections.abc import Sequence
from queue import SimpleQueue
from typing import Any, ClassVar

from agentlightning.llm_proxy import LightningOpenTelemetry, LightningSpanExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult

BATCH_SECONDS = 0.05

logger = logging.getLogger(__name__)


class ExchangeExporter(OTLPSpanExporter):
    """Sends spans to the store from a separate thread. Spans of 50 ms share a request.

    Agent Lightning's exporter sends each exchange alone and blocks the gateway's event loop meanwhile.
    """

    def __init__(self, store_key: str) -> None:
        super().__init__(headers={"authorization": f"Bearer {store_key}"})
        self._waiting: SimpleQueue[ReadableSpan] = SimpleQueue()
        self._sender: threading.Thread | None = None

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Pass `spans` to the thread. The caller has set `_endpoint` for this call."""
        for span in spans:
            self._waiting.put(span)
        if self._sender is None:
            store = OTLPSpanExporter(endpoint=self._endpoint, headers=dict(self._headers))
            store._session.trust_env = False
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
    """The gateway's spans: one for each exchange, none for LiteLLM's internal steps.

    LLMProxy constructs it without arguments, so the store's key is set beforehand.
    """

    store_key: ClassVar[str] = ""

    def __init__(self) -> None:
        super().__init__()
        exporter = self.config.exporter
        assert isinstance(exporter, LightningSpanExporter)
        exporter._otlp_exporter = ExchangeExporter(self.store_key)

    async def async_service_success_hook(self, *args: Any, **kwargs: Any) -> None:
        """Make no span for LiteLLM's authentication, routing and so on."""

    async def async_service_failure_hook(self, *args: Any, **kwargs: Any) -> None:
        """Make no span either: the span of the exchange has the failure."""
