"""Writes exchanges into the store as spans. Exchanges that are ready together share a request."""

import asyncio
import logging
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import aiohttp
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from evaluation.traces.spans import EXCHANGE, exchange_attributes

GATHER_SECONDS = 0.01
"""Exchanges that end within this time share a request, because a request costs the store more than an exchange."""
RETRY_SECONDS = 0.25
REQUEST_SECONDS = 10.0

logger = logging.getLogger(__name__)


class StoreAwayError(Exception):
    """The store no longer accepts exchanges."""


class RefusedError(Exception):
    """The store refuses an exchange: no runner of this run holds its attempt."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """One model call: request and response as the JSON objects of an OpenAI chat completion.

    Times are nanoseconds since 1970.
    """

    rollout_id: str
    attempt_id: str
    request: Mapping[str, Any]
    response: Mapping[str, Any]
    started: int
    ended: int


class Exchanges:
    """Writes exchanges into the store. One task sends; exchanges that arrive meanwhile wait for the next request.

    Args:
        patience: Seconds without success after which the store counts as unreachable.
    """

    def __init__(self, session: aiohttp.ClientSession, store_url: str, store_key: str, patience: float) -> None:
        self._session = session
        self._url = f"{store_url}/v1/traces"
        self._headers = {"authorization": f"Bearer {store_key}", "content-type": "application/x-protobuf"}
        self._patience = patience
        self._waiting: list[tuple[Exchange, asyncio.Future[None]]] = []
        self._arrived = asyncio.Event()
        self._failure: StoreAwayError | None = None

    async def record(self, exchange: Exchange) -> None:
        """Write `exchange` and return when it is in the store.

        Raises:
            RefusedError: No runner holds its attempt.
            StoreAwayError: The store accepted nothing in time, or refuses this process.
        """
        if self._failure is not None:
            raise self._failure
        stored: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((exchange, stored))
        self._arrived.set()
        # The exchange took place even if the caller disconnects, so it is still recorded.
        await asyncio.shield(stored)

    async def run(self) -> None:
        """Send until cancelled.

        Raises:
            StoreAwayError: See `record`. Every caller that waits in `record` gets it too.
        """
        while True:
            await self._arrived.wait()
            await asyncio.sleep(GATHER_SECONDS)
            self._arrived.clear()
            batch, self._waiting = self._waiting, []
            try:
                await self._store(batch)
            except StoreAwayError as error:
                self._failure = error
                for _, stored in batch + self._waiting:
                    _settle(stored, error)
                raise

    async def _store(self, batch: list[tuple[Exchange, asyncio.Future[None]]]) -> None:
        """Send a batch. If the store refuses it, send each exchange alone, so that valid ones are kept."""
        try:
            await self._send(encode([exchange for exchange, _ in batch]))
        except RefusedError as error:
            if len(batch) == 1:
                _settle(batch[0][1], error)
                return
            for one in batch:
                await self._store([one])
            return
        for _, stored in batch:
            _settle(stored, None)

    async def _send(self, body: bytes) -> None:
        timeout = aiohttp.ClientTimeout(total=min(REQUEST_SECONDS, self._patience or REQUEST_SECONDS))
        first = time.monotonic()
        while True:
            try:
                async with self._session.post(self._url, data=body, headers=self._headers, timeout=timeout) as answer:
                    if answer.status == 200:
                        # aiohttp closes the connection of an answer that nobody reads, and each TLS handshake costs.
                        with suppress(aiohttp.ClientError, TimeoutError):
                            await answer.read()
                        return
                    said = f"answered {answer.status}: {(await answer.text())[:200]}"
                    if answer.status == 403:
                        raise RefusedError(f"the run's store {said}")
                    if answer.status < 500:
                        raise StoreAwayError(f"the run's store {said}")
            except TimeoutError:
                said = f"did not answer within {timeout.total:g} s"
            except (aiohttp.ClientError, OSError) as error:
                said = f"cannot be reached ({type(error).__name__})"
            if time.monotonic() - first > self._patience:
                raise StoreAwayError(
                    f"the run's store has taken no exchange for {self._patience:g} s (gateway.store_timeout_s): it "
                    f"{said}; answers that could not be recorded were not given"
                )
            logger.warning("the store %s; trying again", said)
            await asyncio.sleep(RETRY_SECONDS)


def _settle(stored: asyncio.Future[None], error: Exception | None) -> None:
    if stored.done():
        return
    if error is None:
        stored.set_result(None)
    else:
        stored.set_exception(error)
        stored.exception()  # Mark the exception as retrieved: the caller may be gone.


def encode(batch: list[Exchange]) -> bytes:
    """The body of an OTLP request with one span per exchange, in the form that `evaluation.traces.calls` reads."""
    request = ExportTraceServiceRequest()
    for one in batch:
        resource = request.resource_spans.add()
        for name, value in (("rollout_id", one.rollout_id), ("attempt_id", one.attempt_id)):
            resource.resource.attributes.add(key=f"agentlightning.{name}").value.string_value = value
        span = resource.scope_spans.add().spans.add(name=EXCHANGE, kind=Span.SPAN_KIND_CLIENT)
        span.trace_id, span.span_id = os.urandom(16), os.urandom(8)
        span.start_time_unix_nano, span.end_time_unix_nano = one.started, one.ended
        for name, value in exchange_attributes(one.request, one.response).items():
            _set(span.attributes.add(key=name).value, value)
    return request.SerializeToString()


def _set(target: Any, value: str | int | float) -> None:
    match value:
        case bool():
            target.bool_value = value
        case int() if abs(value) < 2**63:
            target.int_value = value
        case float():
            target.double_value = value
        case _:
            # Models can answer half a surrogate pair, which UTF-8 cannot encode.
            target.string_value = str(value).encode("utf-8", "backslashreplace").decode()
