"""Sends recorded rollouts to the user's collector by OTLP over HTTP, beside the run and never in its way.

A thread of its own takes rollouts from a bounded queue. What the queue has no room for, and what the collector does not
take, is left out and counted, and told once at the end. Everything that is sent is also in the run directory.
"""

import queue
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from chimera.config.sections.telemetry import TelemetryConfig
from chimera.core.errors import ConfigError
from chimera.core.secrets import redact, redact_tree, register_secret
from chimera.run.directory import Run
from evaluation.records.rollouts import RolloutRecord
from evaluation.telemetry.genai import GenAiSpan, spans_of
from evaluation.traces.spans import Span

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan

WAITING = 256
"""Most rollouts that wait to be sent."""
SECONDS = 5.0
"""Limit of one request, its repetitions included."""
CLOSE_SECONDS = 5.0
"""Limit for sending what still waits at the end of a run."""
PATH = "/v1/traces"

_senders: dict[Path, "Sender"] = {}
"""The sender of each run that has one in this process, by the run's folder."""


class Sender:
    """Sends the rollouts of one run."""

    def __init__(self, settings: TelemetryConfig, headers: Mapping[str, str], run: str) -> None:
        assert settings.otlp_endpoint is not None
        self._address = traces_address(settings.otlp_endpoint)
        self._headers = headers
        self._content = settings.content
        self._run = run
        self._queue: queue.Queue[tuple[RolloutRecord, Sequence[Span]]] = queue.Queue(WAITING)
        self._closing = threading.Event()
        self._ended = threading.Event()
        self._sent = self._dropped = self._refused = 0
        self._reason = ""
        self._thread = threading.Thread(target=self._work, name="telemetry", daemon=True)
        self._thread.start()

    def send(self, record: RolloutRecord, trace: Sequence[Span]) -> None:
        """Queue a recorded rollout; it never waits."""
        try:
            self._queue.put_nowait((record, trace))
        except queue.Full:
            self._dropped += 1

    def close(self) -> str:
        """Send what waits, within `CLOSE_SECONDS`; returns what has become of all rollouts, in one sentence."""
        self._closing.set()
        self._ended.wait(CLOSE_SECONDS)
        self._dropped += self._queue.qsize()
        summary = f"telemetry: {self._sent} rollouts were sent to {self._address}"
        if self._dropped:
            summary += f"; {self._dropped} were left out, because the collector was slower than the run"
        if self._refused:
            summary += f"; {self._refused} were not taken ({self._reason})"
        return summary

    def _work(self) -> None:
        try:
            exporter = _exporter(self._address, self._headers)
            while not (self._closing.is_set() and self._queue.empty()):
                try:
                    record, trace = self._queue.get(timeout=0.2)
                except queue.Empty:
                    continue
                self._export(exporter, record, trace)
        except Exception as error:  # noqa: BLE001  a run goes on without telemetry, which says so at its end
            self._reason = redact(f"{type(error).__name__}: {error}")
            self._refused += 1
        finally:
            self._ended.set()

    def _export(self, exporter: "Exporter", record: RolloutRecord, trace: Sequence[Span]) -> None:
        try:
            spans = spans_of(record, trace, run=self._run, content=self._content)
            if spans and not exporter([_readable(span, self._run) for span in spans]):
                raise OSError("the collector answered with an error, see logs/main.log")
        except Exception as error:  # noqa: BLE001  whatever is wrong with a collector, the run goes on
            self._refused += 1
            self._reason = redact(f"{type(error).__name__}: {error}")[:200]
        else:
            self._sent += bool(spans)


Exporter = Callable[[Sequence["ReadableSpan"]], bool]
"""Sends spans; False if the collector refused them."""


def recorded(run: Run, record: RolloutRecord, trace: Sequence[Span]) -> None:
    """A rollout of `run` was recorded: send it, if the run has a sender in this process."""
    if (sender := _senders.get(run.path)) is not None:
        sender.send(record, trace)


@contextmanager
def telemetry(
    run: Run, settings: TelemetryConfig, secrets: Mapping[str, str], tell: Callable[[str], None]
) -> Iterator[None]:
    """Send what `run` records while the `with` block runs, if `settings` name a collector.

    Args:
        tell: Told at the end what was sent and what was not.

    Raises:
        ConfigError: The headers are missing or cannot be read.
    """
    if settings.otlp_endpoint is None:
        yield
        return
    sender = _senders[run.path] = Sender(settings, headers_of(settings, secrets), run.name)
    try:
        yield
    finally:
        del _senders[run.path]
        tell(sender.close())


def headers_of(settings: TelemetryConfig, secrets: Mapping[str, str]) -> dict[str, str]:
    """The headers of `settings.headers_env`: "name=value,name=value", as OTEL_EXPORTER_OTLP_HEADERS has them.

    A value may be URL-encoded. It is a secret both as it is written and as it is sent.

    Raises:
        ConfigError: The variable is not set, or has no such form.
    """
    name = settings.headers_env
    if name is None:
        return {}
    if not secrets.get(name, "").strip(" ,"):
        raise ConfigError(f"telemetry.headers_env={name}: this variable is not set; set it, or leave the key out")
    from opentelemetry.util.re import parse_env_headers

    headers: dict[str, str] = {}
    for pair in filter(str.strip, secrets[name].split(",")):
        register_secret(f"a header of {name}", pair.split("=", 1)[-1].strip())
        if not (header := parse_env_headers(pair, liberal=True)):
            raise ConfigError(f"{name} must be NAME=VALUE pairs separated by commas, such as Authorization=Bearer ...")
        headers |= header
    for value in headers.values():
        register_secret(f"a header of {name}", value)
    return headers


def traces_address(endpoint: str) -> str:
    """Where traces go: a collector's base address, as its manual gives it, with the path of OTLP."""
    return endpoint if endpoint.endswith(PATH) else endpoint.rstrip("/") + PATH


def _exporter(address: str, headers: Mapping[str, str]) -> Exporter:
    import requests
    from opentelemetry.exporter.otlp.proto.http import Compression
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace.export import SpanExportResult

    session = requests.Session()
    session.max_redirects = 0  # What is sent goes to the configured address only.
    # Headers are never empty: an empty mapping would have the exporter read those of other collectors from OTEL_*.
    all_headers = {"user-agent": "chimera", **headers}
    exporter = OTLPSpanExporter(
        address, headers=all_headers, timeout=SECONDS, session=session, compression=Compression.Gzip
    )
    return lambda spans: exporter.export(spans) is SpanExportResult.SUCCESS


def _readable(span: GenAiSpan, run: str) -> "ReadableSpan":
    """A span in the form of OpenTelemetry's SDK."""
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

    def place(span_id: str) -> SpanContext:
        return SpanContext(int(span.trace_id, 16), int(span_id, 16), False, TraceFlags(TraceFlags.SAMPLED))

    attributes = dict(span.attributes) if span.error is None else {**span.attributes, "error.type": span.error}
    return ReadableSpan(
        span.name,
        context=place(span.span_id),
        parent=None if span.parent_id is None else place(span.parent_id),
        resource=Resource({"service.name": "chimera", "service.instance.id": run}),
        attributes=redact_tree(attributes),
        kind=SpanKind.CLIENT if span.client else SpanKind.INTERNAL,
        status=Status(StatusCode.UNSET if span.error is None else StatusCode.ERROR),
        start_time=int(span.start * 1e9),
        end_time=int(max(span.start, span.end) * 1e9),
    )
