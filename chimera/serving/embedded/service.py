"""The logical models of one server process: the weights behind each, and how they are replaced."""

import asyncio
import itertools
import json
import threading
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Mapping
from concurrent.futures import Future, wait
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chimera.config.sections.models import ModelConfig, Precision, ServingConfig
from chimera.core.errors import ConfigError
from chimera.serving.devices import decoding_device, release_memory
from chimera.serving.embedded.answers import Answers
from chimera.serving.embedded.protocol import (
    BadRequest,
    ChatRequest,
    NotFound,
    envelope,
    no_embedded_model,
    unknown_model,
)
from chimera.serving.embedded.streams.chunks import Chunks

if TYPE_CHECKING:
    from chimera.serving.embedded.checkpoint import Checkpoint
    from chimera.serving.embedded.completion import TextSide
    from chimera.serving.embedded.decoding.batcher import Batcher, DecodingJob, FinishedJob, Lane

SPARE_CACHE_BYTES = 256 * 2**20
"""Memory limit of the rows of one engine that only keep prefixes for reuse, in bytes."""

RUBRIC_VERSION = "rubric"
CANDIDATE = "~"
"""Separates slot and version in the model name of a candidate."""


Listen = Callable[..., None]
"""Called with the binding that answers, the index of a choice, and what `Listener` of the batcher is told."""


@dataclass(slots=True)
class Binding:
    """The weights behind one model name; replaced as a whole when a slot's weights change.

    `number` tells these weights from all others that this server has loaded.
    """

    number: int
    version: str
    folder: Path
    dtype: Precision
    lane: "Lane"
    text: "TextSide"
    running: "set[Future[FinishedJob]]" = field(default_factory=set)


class Service:
    """All embedded and rubric models of one server process."""

    def __init__(self, models: Mapping[str, ModelConfig], serving: ServingConfig) -> None:
        self._serving = serving
        self._rubrics = [key for key, model in models.items() if model.kind == "rubric"]
        self._bindings: dict[str, Binding] = {}
        self._candidates: dict[str, Binding] = {}
        self._swaps: Counter[str] = Counter()
        self._loaded = itertools.count()
        self._answers = Answers(serving.answers)
        self._lock = threading.Lock()
        self._swap_lock = threading.Lock()
        self._batcher: Batcher | None = None
        embedded: dict[str, tuple[str, Precision]] = {
            key: (model.path, model.dtype) for key, model in models.items() if model.kind == "embedded"
        }
        if embedded:
            try:
                self._start(embedded)
            except BaseException:
                self.close()
                raise

    def _start(self, models: Mapping[str, tuple[str, Precision]]) -> None:
        """Load each folder in each precision once."""
        from chimera.serving.embedded.checkpoint import load_checkpoint
        from chimera.serving.embedded.completion import TextSide
        from chimera.serving.embedded.decoding.batcher import Batcher

        self._batcher = Batcher(self._serving.threads)
        shared: dict[tuple[str, Precision], Binding] = {}
        for key, model in models.items():
            if model not in shared:
                checkpoint = load_checkpoint(*model)
                text = TextSide(checkpoint, self._serving)
                lane = self._lane(checkpoint, text, model[1])
                shared[model] = Binding(
                    next(self._loaded), f"{checkpoint.name}@0", checkpoint.folder, model[1], lane, text
                )
            self._bindings[key] = replace(shared[model], running=set())
        release_memory()

    def _lane(self, checkpoint: "Checkpoint", text: "TextSide", dtype: Precision) -> "Lane":
        import psutil
        import torch

        from chimera.serving.embedded.decoding.batcher import Lane
        from chimera.serving.embedded.decoding.engine import Engine, cache_bytes_per_row
        from chimera.serving.embedded.decoding.matrices import arithmetic

        device = decoding_device(sum(weight.numel() for weight in checkpoint.weights.values()))
        number = arithmetic(getattr(torch, dtype), device).itemsize
        slots, row = self._serving.slots, cache_bytes_per_row(checkpoint.shape, text.context, number)
        memory = psutil.virtual_memory().total if device == "cpu" else torch.cuda.mem_get_info()[1]
        if slots * row > memory:
            raise ConfigError(
                f"serving.slots={slots} requests of {text.context} tokens need {slots * row / 2**30:.0f} GiB of cache "
                f"for {checkpoint.folder}, and this machine has {memory / 2**30:.0f}: lower serving.slots or "
                "serving.context_length"
            )
        spares = min(slots, SPARE_CACHE_BYTES // row)
        engine = Engine(checkpoint.shape, checkpoint.weights, rows=slots + spares, context=text.context, device=device)
        return Lane(engine, slots, text.vocabulary)

    def close(self) -> None:
        """Stop decoding; unfinished requests end with an error."""
        if self._batcher is not None:
            self._batcher.close()

    async def aclose(self) -> None:
        """`close`, while the event loop goes on."""
        await asyncio.to_thread(self.close)

    def describe(self) -> list[dict[str, Any]]:
        """One entry for each logical model: id, kind, version of its weights, folder and context length."""
        about = {"object": "model", "created": 0, "owned_by": "chimera"}
        entries: list[dict[str, Any]] = [
            {
                **about,
                "id": key,
                "kind": "embedded",
                "weights_version": binding.version,
                "folder": str(binding.folder),
                "dtype": binding.dtype,
                "max_model_len": binding.text.context,
            }
            for key, binding in self._bindings.items()
        ]
        rubric = {**about, "kind": "rubric", "weights_version": RUBRIC_VERSION}
        return [*entries, *({**rubric, "id": key} for key in self._rubrics)]

    def counters(self) -> dict[str, int]:
        """Totals of the embedded models since the start."""
        decoded = asdict(self._batcher.counters) if self._batcher is not None else {}
        return {**decoded, "reused_answers": self._answers.reused}

    def load_weights(self, key: str, folder: Path, version: str | None = None) -> str:
        """Put the weights in `folder` behind the logical model `key`; returns their version.

        Running requests finish on the old weights; this call returns after the last of them. Requests that arrive in
        the meantime use the new weights. Other logical models keep their weights.

        Raises:
            NotFound: `key` is no embedded model.
            BadRequest: the folder's weights cannot replace the old ones.
        """
        with self._swap_lock:
            old = self._embedded(key)
            new = self._other_weights(key, folder, version or f"{key}@{self._swaps[key] + 1}")
            self._swaps[key] += 1
            with self._lock:
                self._bindings[key] = new
                running = set(old.running)
            wait(running)
            del old
            release_memory()
            return new.version

    def add_candidate(self, key: str, folder: Path, version: str) -> str:
        """Serve the weights in `folder` in addition to those of `key`; returns their model name.

        The weights of `key` do not change. The candidate is served until `remove_candidate`.

        Raises:
            NotFound: `key` is no embedded model.
            BadRequest: The folder cannot be used in its place.
        """
        name = f"{key}{CANDIDATE}{version}"
        with self._swap_lock:
            new = self._other_weights(key, folder, version)
            with self._lock:
                self._candidates[name] = new
        return name

    def remove_candidate(self, name: str) -> None:
        """Stop serving a candidate; running requests finish first; raises NotFound if there is no such candidate."""
        with self._lock:
            if name not in self._candidates:
                raise NotFound(f"no candidate {name!r} to remove: there are {sorted(self._candidates)}")
            running = set(self._candidates.pop(name).running)
        wait(running)

    def _other_weights(self, key: str, folder: Path, version: str) -> Binding:
        """Load the weights in `folder`; their tokenizer must be the same as that of `key`."""
        from chimera.serving.embedded.checkpoint import load_checkpoint

        old = self._embedded(key)
        try:
            checkpoint = load_checkpoint(str(folder), old.dtype)
        except ConfigError as error:
            raise BadRequest(f"weights of {key!r} stay {old.version}: {error}", param="folder") from error
        if checkpoint.tokenizer.get_vocab(with_added_tokens=True) != old.text.tokens:
            raise BadRequest(
                f"weights of {key!r} stay {old.version}: the tokenizer in {folder} differs from the running one; "
                "start a new server for another model",
                param="folder",
            )
        lane = self._lane(checkpoint, old.text, old.dtype)
        return Binding(next(self._loaded), version, checkpoint.folder, old.dtype, lane, old.text)

    def _embedded(self, key: str) -> Binding:
        if key not in self._bindings:
            raise no_embedded_model(key, self._bindings)
        return self._bindings[key]

    def _bound(self, name: str) -> Binding:
        """The binding of the model `name`: a slot or a candidate."""
        binding = self._bindings.get(name) or self._candidates.get(name)
        if binding is None:
            raise unknown_model(name, [*self._bindings, *self._candidates, *self._rubrics])
        return binding

    async def complete(self, request: ChatRequest, listen: Listen | None = None) -> dict[str, Any]:
        """Answer one chat request; `listen` is called on another thread while it is written.

        Raises:
            ApiError: the request cannot be served; see `chimera.serving.embedded.protocol`.
        """
        if request.model in self._rubrics:
            return _grade(request)
        bound = self._bound(request.model)
        key = self._answers.key(request, bound.number)
        if (stored := await self._answers.find(key)) is not None:
            return stored
        text = bound.text
        from chimera.serving.embedded.completion import make_jobs, make_response

        jobs = make_jobs(request, text)
        binding, futures = self._submit(request.model, jobs, listen)
        waiting = [asyncio.wrap_future(future) for future in futures]
        try:
            answers = await asyncio.gather(*waiting)
        finally:
            for future in futures:
                future.cancel()
        response = make_response(request, text, binding.version, jobs[0].prompt, answers)
        if binding is bound:  # Otherwise new weights have answered, which the key does not name.
            self._answers.keep(key, response)
        return response

    async def stream(self, request: ChatRequest) -> AsyncGenerator[dict[str, Any], None]:
        """The chunks of the answer to one chat request, while it is written; closing the generator ends the work.

        Raises:
            ApiError: As for `complete`, almost always before the first chunk.
        """
        reports: asyncio.Queue[Any] = asyncio.Queue()
        loop, chunks = asyncio.get_running_loop(), None

        def listen(*report: Any) -> None:
            with suppress(RuntimeError):  # The loop is closed, and so nobody listens any more.
                loop.call_soon_threadsafe(reports.put_nowait, report)

        answer = asyncio.ensure_future(self.complete(request, listen))
        answer.add_done_callback(lambda _: reports.put_nowait(None))
        try:
            while (report := await reports.get()) is not None:
                binding, index, text, tokens, scores = report
                from chimera.serving.embedded.completion import token_fields

                fields = token_fields(request, binding.text, tokens, scores)
                chunks = chunks or chunks_for(request, envelope(request.model, binding.version, 0, 0, 0))
                for chunk in chunks.grown(index, text, len(tokens), fields):
                    yield chunk
            response = await answer
        finally:
            answer.cancel()
            await asyncio.wait([answer])
        for chunk in (chunks or chunks_for(request, response)).rest(response):
            yield chunk

    def _submit(
        self, key: str, jobs: "list[DecodingJob]", listen: Listen | None
    ) -> "tuple[Binding, list[Future[FinishedJob]]]":
        assert self._batcher is not None
        with self._lock:
            binding = self._bound(key)
            futures = [job.done for job in jobs]
            for future in futures:
                binding.running.add(future)
                future.add_done_callback(binding.running.discard)
            for index, job in enumerate(jobs):
                job.listener = partial(listen, binding, index) if listen else None
                self._batcher.submit(binding.lane, job)
        return binding, futures


def chunks_for(request: ChatRequest, head: Mapping[str, Any]) -> Chunks:
    """What makes the chunks of the answer to `request`; `head` as in `Chunks`."""
    from chimera.serving.embedded.dialogue.manners import OPEN

    offered = bool(request.tools) and request.tool_choice != "none"
    options = request.stream_options
    return Chunks(head, mark=OPEN if offered else None, usage=bool(options and options.include_usage))


def _grade(request: ChatRequest) -> dict[str, Any]:
    """Answer as the deterministic grader that the response format names."""
    from chimera.rubric.grader import grade

    form = request.response_format
    if form is None or form.json_schema is None:
        raise BadRequest(
            f"model {request.model!r} is a rubric, which knows its task by response_format.json_schema.name: send one",
            param="response_format",
        )
    question = next((message.text for message in request.messages if message.role == "user"), None)
    try:
        payload = json.loads(question or "")
        content = json.dumps(grade(form.json_schema.name, payload), ensure_ascii=False, separators=(",", ":"))
    except (ValueError, KeyError, TypeError) as error:
        raise BadRequest(
            f"rubric {form.json_schema.name!r} cannot grade this conversation: {type(error).__name__}: {error}",
            param="messages",
        ) from error
    response = envelope(request.model, RUBRIC_VERSION, 0, 0, 0)
    for index in range(request.n or 1):
        choice: dict[str, Any] = {
            "index": index,
            "message": {"role": "assistant", "content": content},
            "finish_reason": "stop",
            "logprobs": None,
        }
        response["choices"].append(choice | ({"token_ids": []} if request.return_token_ids else {}))
    return response | ({"prompt_token_ids": []} if request.return_token_ids else {})
