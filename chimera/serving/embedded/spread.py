"""A server whose embedded models decode in several processes, because one process keeps only one core busy.

This process takes the requests, keeps answers and grades by rubrics. Each decoding process is a whole embedded server
that only this process calls: it has all weights, and its share of the rows. The turns of a conversation go to one
process, which has their beginning in its cache; a new conversation goes to the process with the fewest answers under
way.
"""

import asyncio
import hashlib
import itertools
import json
import os
import sys
import threading
from collections import Counter, OrderedDict
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, aclosing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chimera.config.sections.models import ModelConfig, ServingConfig
from chimera.core.errors import ModelError
from chimera.processes.children import ERROR
from chimera.serving.connections import BadAnswerError, Connections, HttpAnswer, NoAnswerError
from chimera.serving.embedded.answers import Answers
from chimera.serving.embedded.protocol import ApiError, ChatRequest, Unavailable, no_embedded_model, unknown_model
from chimera.serving.embedded.service import CANDIDATE, Service, chunks_for
from chimera.serving.process import ServerProcess

LOOK_S = 0.2
ANSWER_S = 86_400.0
"""Seconds for one answer. Clients have limits of their own, and a request ends with its client."""
REMEMBERED = 4096
"""Conversations of which it is known which process has their beginning."""
OPENING = 2
"""How many messages all turns of a conversation share: instructions and task."""


class RelayedError(ApiError):
    """An error of a decoding process, as it gave it."""

    def __init__(self, status: int, error: Mapping[str, Any]) -> None:
        super().__init__(str(error.get("message")), param=error.get("param"), code=error.get("code"))
        self.status, self.kind = status, str(error.get("type"))


@dataclass(slots=True, eq=False)
class _Decoder:
    """One decoding process, and the number of answers that it is writing."""

    server: ServerProcess
    busy: int = 0

    def call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Call one of its own routes; raises ApiError."""
        try:
            response = self.server.send(method, path, body)
        except ModelError as error:
            raise Unavailable(str(error)) from error
        return _read(response.status_code, response.content)


def _read(status: int, content: bytes) -> dict[str, Any]:
    body = json.loads(content)
    if status != 200:
        raise RelayedError(status, body.get("error", body))
    return body


class SpreadService:
    """All embedded and rubric models of one server; the embedded ones decode in several processes.

    It serves what `Service` serves, with the same errors.

    Args:
        log_file: The processes append their output here.

    Raises:
        ChimeraError: A process did not start.
    """

    def __init__(
        self, models: Mapping[str, ModelConfig], serving: ServingConfig, processes: int, log_file: Path
    ) -> None:
        embedded = {key: model for key, model in models.items() if model.kind == "embedded"}
        self._rubrics = Service({key: model for key, model in models.items() if model.kind == "rubric"}, serving)
        self._graders = [entry["id"] for entry in self._rubrics.describe()]
        self._answers = Answers(serving.answers)
        self._homes: OrderedDict[str, _Decoder] = OrderedDict()
        self._connections = Connections()
        self._swap_lock = threading.Lock()
        self._swaps: Counter[str] = Counter()
        self._closing = False
        share = serving.model_copy(update={"processes": 1, "slots": -(-serving.slots // processes), "answers": 0})
        with ExitStack() as stack:
            servers: list[ServerProcess] = []
            for number in range(1, processes + 1):
                servers.append(ServerProcess(embedded, share, log_file, name=f"decoding process {number}"))
                stack.callback(servers[-1].stop)
            for server in servers:
                try:
                    server.wait_until_ready()
                except ModelError as error:
                    # Its last line: the whole message would be one of a server in a server.
                    raise ModelError(str(error).splitlines()[-1]) from error
            self._processes = stack.pop_all()
        self._decoders = [_Decoder(server) for server in servers]
        entries = self._decoders[0].call("GET", "/v1/models")["data"]
        self._entries: dict[str, dict[str, Any]] = {entry["id"]: entry for entry in entries}
        self._loads = itertools.count()
        self._numbers = {key: next(self._loads) for key in self._entries}
        threading.Thread(target=self._watch, name="watch of the decoding processes", daemon=True).start()

    def _watch(self) -> None:
        """End this process when a decoding process has ended: half a server would be a silent one."""
        while True:
            for decoder in self._decoders:
                decoder.server.join(LOOK_S)
                if self._closing:
                    return
                if (ending := decoder.server.ended()) is not None:
                    print(f"{ERROR}{ending}", file=sys.stderr, flush=True)
                    os._exit(ModelError.exit_code)

    async def aclose(self) -> None:
        """Stop decoding; unfinished requests end with an error."""
        self._closing = True
        await asyncio.to_thread(self._processes.close)
        await self._connections.aclose()

    def describe(self) -> list[dict[str, Any]]:
        """One entry for each logical model, as `Service.describe` gives it."""
        return [*self._entries.values(), *self._rubrics.describe()]

    def counters(self) -> dict[str, int]:
        """Totals of all decoding processes since the start."""
        totals: Counter[str] = Counter()
        for counted in self._everywhere("GET", "/health"):
            totals.update(counted["counters"])
        return {**totals, "reused_answers": self._answers.reused}

    def load_weights(self, key: str, folder: Path, version: str | None = None) -> str:
        """Put the weights in `folder` behind the logical model `key`, in every process; returns their version.

        Returns after the last running request on the old weights. Until then a request gets the old or the new ones,
        and its answer says which. If one process refuses them, the others get the old ones back.

        Raises:
            ApiError: `key` is no embedded model, or the folder's weights cannot replace the old ones.
        """
        with self._swap_lock:
            if key not in self._entries:
                raise no_embedded_model(key, self._entries)
            entry, version = self._entries[key], version or f"{key}@{self._swaps[key] + 1}"
            old = {"model": key, "folder": entry["folder"], "version": entry["weights_version"]}
            new = {"model": key, "folder": str(folder), "version": version}
            # What is asked until the end may be answered by either weights.
            self._numbers[key] = next(self._loads)
            try:
                self._all_or_none("/admin/weights", new, lambda decoder: decoder.call("POST", "/admin/weights", old))
            finally:
                self._numbers[key] = next(self._loads)
            self._swaps[key] += 1
            self._entries[key] = {**entry, "weights_version": version, "folder": str(folder)}
            return version

    def add_candidate(self, key: str, folder: Path, version: str) -> str:
        """Serve the weights in `folder` in addition to those of `key`; returns their model name.

        Raises:
            ApiError: As for `Service.add_candidate`.
        """
        with self._swap_lock:
            body = {"model": key, "folder": str(folder), "version": version}
            name = f"{key}{CANDIDATE}{version}"
            self._all_or_none(
                "/admin/candidates", body, lambda decoder: decoder.call("DELETE", "/admin/candidates", {"model": name})
            )
            self._numbers[name] = next(self._loads)
            return name

    def remove_candidate(self, name: str) -> None:
        """Stop serving a candidate; running requests finish first; raises ApiError if there is no such candidate."""
        with self._swap_lock:
            if CANDIDATE in name:
                self._numbers.pop(name, None)
            self._everywhere("DELETE", "/admin/candidates", {"model": name})

    def _everywhere(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
        """Call all processes at once. Raises the first error, after the last of them has answered."""
        return [call.result() for call in self._called(method, path, body)]

    def _all_or_none(self, path: str, body: Mapping[str, Any], undo: Callable[[_Decoder], object]) -> None:
        """Post to all processes; if one refuses, `undo` it where it was done, and raise that process's error."""
        calls = self._called("POST", path, body)
        error = next((call.exception() for call in calls if call.exception() is not None), None)
        if error is not None:
            for decoder, call in zip(self._decoders, calls, strict=True):
                if call.exception() is None:
                    undo(decoder)
            raise error

    def _called(self, method: str, path: str, body: Mapping[str, Any] | None) -> list[Future[dict[str, Any]]]:
        """The ended calls, one a process."""
        with ThreadPoolExecutor(len(self._decoders)) as pool:
            return [pool.submit(decoder.call, method, path, body) for decoder in self._decoders]

    async def complete(self, request: ChatRequest) -> dict[str, Any]:
        """Answer one chat request.

        Raises:
            ApiError: the request cannot be served.
        """
        if request.model in self._graders:
            return await self._rubrics.complete(request)
        number = self._number(request.model)
        key = self._answers.key(request, number)
        if (response := await self._answers.find(key)) is not None:
            return response
        with self._on_a_decoder(request) as (server, body):
            answer = await self._connections.send(
                f"{server.url}/v1/chat/completions", server.api_key, body, limit_s=ANSWER_S
            )
        response = _read(answer.status, answer.content)
        if self._numbers.get(request.model) == number:  # Otherwise other weights may have answered than the key names.
            self._answers.keep(key, response)
        return response

    async def stream(self, request: ChatRequest) -> AsyncGenerator[dict[str, Any], None]:
        """The chunks of an answer, as `Service.stream` gives them; those of a decoding process are passed on."""
        if request.model in self._graders:
            async for chunk in self._rubrics.stream(request):
                yield chunk
            return
        key = self._answers.key(request, self._number(request.model))
        if (response := await self._answers.find(key)) is not None:
            for chunk in chunks_for(request, response).rest(response):
                yield chunk
            return
        with self._on_a_decoder(request) as (server, body):
            url = f"{server.url}/v1/chat/completions"
            async with aclosing(self._connections.events(url, server.api_key, body, limit_s=ANSWER_S)) as events:
                async for event in events:
                    if event == b"[DONE]":
                        return
                    chunk = _read(event.status, event.content) if isinstance(event, HttpAnswer) else json.loads(event)
                    if "error" in chunk:
                        raise RelayedError(Unavailable.status, chunk["error"])
                    yield chunk
            raise Unavailable(f"{server.name} broke off its answer")

    def _number(self, name: str) -> int:
        """The number of the weights of a slot or candidate; raises ApiError if there is no such model."""
        if name not in self._numbers:
            raise unknown_model(name, [*self._numbers, *self._graders])
        return self._numbers[name]

    @contextmanager
    def _on_a_decoder(self, request: ChatRequest) -> Iterator[tuple[ServerProcess, bytes]]:
        """The process that answers `request`, and the body to send to it."""
        decoder, answers = self._decoder(request), request.n or 1
        decoder.busy += answers
        try:
            yield decoder.server, request.model_dump_json(by_alias=True, exclude_unset=True).encode()
        except (BadAnswerError, NoAnswerError, TimeoutError) as error:
            raise Unavailable(f"{decoder.server.name} gave no answer: {error}") from error
        finally:
            decoder.busy -= answers

    def _decoder(self, request: ChatRequest) -> _Decoder:
        """The process that has the beginning of the conversation; for a new one the least busy."""
        opening = [request.model, *(message.text for message in request.messages[:OPENING])]
        digest = hashlib.sha256("\0".join(opening).encode("utf-8", "surrogatepass")).hexdigest()
        home = self._homes.pop(digest, None) or min(self._decoders, key=lambda decoder: decoder.busy)
        self._homes[digest] = home
        if len(self._homes) > REMEMBERED:
            self._homes.popitem(last=False)
        return home
