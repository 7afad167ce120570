"""The gateway: attributes each model call to its rollout, forwards it, and records the exchange before answering.

Every answer that a caller got is in the store. So nothing is lost when the gateway is killed: a caller without an
answer asks again. A failed call is passed on with the server's status and text, and the caller may repeat it.
"""

import asyncio
import json
import re
import sys
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from typing import Any

import aiohttp
import uvicorn

from chimera.core.errors import ModelError
from chimera.core.ports import listen_together
from chimera.serving.client import Endpoint
from chimera.serving.connections import MAX_BYTES, BadAnswerError, Connections, NoAnswerError
from chimera.serving.door import Door, hosts_of
from chimera.serving.embedded.service import CANDIDATE
from chimera.serving.providers import ProviderModels, chat_model
from chimera.serving.refused import REFUSALS, RefusedFields, with_codes
from chimera.serving.tls import context_for, server_context
from training.lab.gateway.exchanges import Exchange, Exchanges, RefusedError, StoreAwayError
from training.lab.gateway.spec import GatewaySpec

PATH = re.compile(r"/rollout/([\w.-]+)/attempt/([\w.-]+)/v1/chat/completions")
STOP_SECONDS = 1
MOST_SAID = 4000
"""Most bytes of a refusal that are looked at."""
STORE_AWAY = 3
"""Exit code of a gateway that can no longer write to the store. Restarting it would not help."""
PASSED_ON = ("content-type", "retry-after", "retry-after-ms")

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Reply:
    """The response to the caller."""

    status: int
    body: bytes
    headers: Mapping[str, str]


class ThinGateway:
    """The ASGI application. `Door` checks the key in front of it.

    Traces join calls with their exchanges by the response's id. Some servers give none, or draw them from a small
    range, so an answer of a server that is not ours gets an id of its own, which begins with the server's.

    Args:
        with_ids: Logical models whose servers are asked for token ids. Other servers may refuse the unknown option.
        tell: Called with a sentence for the user when a server does not take a field.
        scored: Logical models that are asked for the log-probabilities of tokens.
    """

    def __init__(
        self,
        endpoints: Mapping[str, Endpoint],
        with_ids: frozenset[str],
        exchanges: Exchanges,
        tell: Callable[[str], None],
        scored: frozenset[str] = frozenset(),
    ) -> None:
        self._endpoints = endpoints
        self._scored = scored
        self._with_ids = with_ids
        self._exchanges = exchanges
        self._tell = tell
        self._refused = RefusedFields()
        self._providers = ProviderModels()
        self._connections = Connections()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one ASGI request."""
        found = PATH.fullmatch(scope["path"])
        if found is None or scope["method"] != "POST":
            await _answer(send, _said(404, f"{scope['method']} {scope['path']}: there is no such route"))
            return
        body = await _body(receive)
        if body is None:
            await _answer(send, _said(413, f"the request has more than {MAX_BYTES} bytes"))
            return
        answering = asyncio.ensure_future(self._reply(found[1], found[2], body))
        leaving = asyncio.ensure_future(_disconnected(receive))
        try:
            await asyncio.wait([answering, leaving], return_when=asyncio.FIRST_COMPLETED)
            if answering.done():
                await _answer(send, answering.result())
        finally:
            leaving.cancel()
            answering.cancel()

    async def close(self) -> None:
        await self._connections.aclose()

    async def _reply(self, rollout_id: str, attempt_id: str, body: bytes) -> Reply:
        try:
            asked = json.loads(body)
            name, version = self._slot(asked["model"])
            endpoint = self._endpoints[name]
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return _said(400, f"the body must be a JSON object whose model is one of {', '.join(self._endpoints)}")
        asked["model"] = endpoint.model + version
        if name in self._with_ids:
            asked["return_token_ids"] = True
        if name in self._scored:
            asked["logprobs"] = True
        started = time.time_ns()
        asked, reply = await self._answered(name, endpoint, asked)
        if reply.status != 200:
            return reply
        try:
            answer = json.loads(reply.body)
        except (ValueError, RecursionError):
            answer = None
        if not isinstance(answer, dict):
            shown = reply.body[:100].decode("utf-8", "replace")
            return _said(502, f"{endpoint.place} answered 200 with what is no JSON object: {shown!r}")
        if name not in self._with_ids and isinstance(answer.get("id"), str | None):
            answer["id"] = f"{answer.get('id') or 'answer'}-{uuid.uuid4().hex[:12]}"
            reply = replace(reply, body=json.dumps(answer).encode())
        exchange = Exchange(rollout_id, attempt_id, asked, answer, started, time.time_ns())
        try:
            await self._exchanges.record(exchange)
        except RefusedError as error:
            return _said(403, str(error))
        except StoreAwayError as error:
            return _said(503, str(error))
        return reply

    def _slot(self, model: str) -> tuple[str, str]:
        """The slot that a caller asks for, and what follows it in the name of a candidate ("~" and its version)."""
        slot, mark, version = model.partition(CANDIDATE)
        return (slot, mark + version) if model not in self._endpoints and slot in self._with_ids else (model, "")

    async def _answered(
        self, name: str, endpoint: Endpoint, asked: Mapping[str, Any]
    ) -> tuple[Mapping[str, Any], Reply]:
        """The request as the server took it, and its reply. Fields that it does not take are left out."""
        while True:
            sent = self._refused.without(endpoint.place, asked)
            reply = await self._forward(endpoint, sent)
            if reply.status not in REFUSALS:
                return sent, reply
            said, field = _refusal(reply.body)
            lacking = self._refused.learn(endpoint.place, sent, said, field)
            if lacking is None:
                return sent, reply
            self._tell(f"models.{name} {lacking}")

    async def _forward(self, endpoint: Endpoint, request: Mapping[str, Any]) -> Reply:
        if endpoint.provider is not None:
            return await self._ask_provider(endpoint, request)
        url, body = f"{endpoint.base_url}/chat/completions", json.dumps(request).encode()
        try:
            answer = await self._connections.send(url, endpoint.api_key, body, limit_s=endpoint.timeout_s)
        except TimeoutError:
            return _said(504, f"{endpoint.place} did not answer within {endpoint.timeout_s:g} s")
        except BadAnswerError as error:
            return _said(502, f"{endpoint.place} {error}")
        except NoAnswerError:
            return _said(503, f"{endpoint.place} cannot be reached")
        if 300 <= answer.status < 400:
            place = answer.headers.get("location", "")
            return _said(502, f"{endpoint.place} redirects to {place!r}, which is not followed: name it there")
        kept = {name: answer.headers[name] for name in PASSED_ON if name in answer.headers}
        return Reply(answer.status, answer.content, kept)

    async def _ask_provider(self, endpoint: Endpoint, request: Mapping[str, Any]) -> Reply:
        try:
            answer = await self._providers.answer(endpoint, request, endpoint.place)
        except ModelError as error:
            return _said(503 if error.retriable else 400, str(error))
        return Reply(200, json.dumps(answer).encode(), {})


def serve(spec: GatewaySpec, port: int, ready: Connection) -> None:
    """The gateway process: serve until SIGTERM.

    Sends something through `ready` once it answers, and after that sentences for the user.
    """
    code = asyncio.run(_serve(spec, port, ready))
    if code:
        sys.exit(code)


async def _serve(spec: GatewaySpec, port: int, ready: Connection) -> int:
    with_ids = frozenset(name for name in spec.endpoints if spec.models[name].kind != "endpoint")
    trusted = context_for(spec.store_url, spec.tls.authority_path) or True
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0, ssl=trusted)) as session:
        exchanges = Exchanges(session, spec.store_url, spec.store_key, spec.gateway.store_timeout_s)
        gateway = ThinGateway(spec.endpoints, with_ids, exchanges, ready.send, spec.scored)
        for name, endpoint in spec.endpoints.items():
            if endpoint.provider is not None:  # Imports take seconds, in which no other call would be answered.
                chat_model(endpoint, f"models.{name}")
        config = uvicorn.Config(
            Door(gateway, spec.key, hosts_of(spec.host)),
            host=spec.host,
            port=port,
            lifespan="off",
            log_config=None,
            access_log=False,
            backlog=2048,
            timeout_graceful_shutdown=STOP_SECONDS,
            ssl_context_factory=(lambda *_: server_context(spec.tls)) if spec.tls.on else None,
        )
        server = uvicorn.Server(config)
        shared = [listen_together(port, host=spec.host)] if spec.gateway.processes > 1 else None
        # The main process ends this one by SIGTERM. No clean-up is needed: all answers are in the store.
        serving = asyncio.create_task(server.serve(shared))
        while not server.started and not serving.done():  # noqa: ASYNC110  uvicorn has no event for it
            await asyncio.sleep(0.01)
        recording = asyncio.create_task(exchanges.run())
        ready.send("ready")
        await asyncio.wait({serving, recording}, return_when=asyncio.FIRST_COMPLETED)
        server.should_exit = True
        with suppress(asyncio.CancelledError):
            await serving
        await gateway.close()
        if recording.done() and (error := recording.exception()) is not None:
            if not isinstance(error, StoreAwayError):
                raise error
            print(error, file=sys.stderr, flush=True)
            return STORE_AWAY
        recording.cancel()
        return 0


async def _body(receive: Receive) -> bytes | None:
    """The request's body; None if it is too long."""
    parts, size = [], 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return b""
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > MAX_BYTES:
            return None
        if not message.get("more_body", False):
            return b"".join(parts)


async def _disconnected(receive: Receive) -> None:
    """Return when the caller has closed its connection. The body must have been read before."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def _answer(send: Send, reply: Reply) -> None:
    headers = {"content-type": "application/json", **reply.headers, "content-length": str(len(reply.body))}
    encoded = [(key.lower().encode("latin-1"), value.encode("latin-1")) for key, value in headers.items()]
    await send({"type": "http.response.start", "status": reply.status, "headers": encoded})
    await send({"type": "http.response.body", "body": reply.body})


def _refusal(body: bytes) -> tuple[str, object]:
    """What a server said in a refusal, and the field that it names as the fault, if it names one apart."""
    said = body[:MOST_SAID].decode("utf-8", "replace")
    try:
        error = json.loads(body)["error"]
        return with_codes(error["message"], error), error.get("param")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return said, None


def _said(status: int, message: str) -> Reply:
    error = {"message": message, "type": "gateway_error", "param": None, "code": None}
    return Reply(status, json.dumps({"error": error}).encode(), {})
