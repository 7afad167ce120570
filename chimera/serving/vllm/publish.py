"""One set of weights behind one or more vLLM replicas: answers calls, and puts new weights live while it serves.

A publish closes the gate, so that new calls wait; pauses every replica, which ends the calls under way; loads the
weights, forgets what was computed with the old ones, and resumes; asks each replica for a probe prompt; and opens the
gate. So an answer is by one version only, and its stamp is true. Where a replica fails, the old weights are loaded
again.
"""

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chimera.config.sections.models import Precision
from chimera.core.errors import ConfigError, ModelError, boundary
from chimera.serving.connections import HttpAnswer
from chimera.serving.vllm.probe import (
    TOLERANCE,
    apart,
    learner_log_probs,
    probe_request,
    probe_tokens,
    server_log_probs,
)
from chimera.serving.vllm.replicas import Replica, least_busy
from chimera.serving.vllm.weights import prepare

ROUTE_S = 900.0
"""Seconds for one of vLLM's own routes. A pause waits for the calls under way."""


@dataclass(frozen=True, slots=True)
class Published:
    """What a publish did: seconds by stage, and how far each replica's probe is from the learner's."""

    seconds: Mapping[str, float]
    apart: Sequence[float]


@dataclass(frozen=True, slots=True)
class Loaded:
    """Weights as they are served: the version, the model's folder, and the folder that vLLM reads."""

    version: str
    source: Path
    prepared: Path


class ServedWeights:
    """One set of weights and its replicas.

    Args:
        name: The slots that use it, as named in errors.
        replicas: The servers, already answering.
        first: What they serve now.
        dtype: The numbers that they compute with.
        folder: Where folders for vLLM are made.
        learner: Computes the learner's log-probabilities.
    """

    def __init__(
        self,
        name: str,
        replicas: Sequence[Replica],
        first: Loaded,
        dtype: Precision,
        folder: Path,
        learner: Callable[[Path, Sequence[int], Precision], list[float]] = learner_log_probs,
    ) -> None:
        self.name = name
        self._replicas = list(replicas)
        self._live = first
        self._dtype: Precision = dtype
        self._folder = folder
        self._learner = learner
        self._numbers = itertools.count(1)
        self._broken: str | None = None
        self._publishing = asyncio.Lock()
        self._open = asyncio.Event()
        self._open.set()
        self._idle = asyncio.Event()
        self._idle.set()
        self._running = 0

    @property
    def version(self) -> str:
        """The version of the weights that answer."""
        return self._live.version

    @property
    def source(self) -> Path:
        """The model's folder."""
        return self._live.source

    async def check(self) -> None:
        """Make sure that the replicas serve the weights of the folder.

        Raises:
            ConfigError: They serve other weights.
        """
        try:
            await self._prove(await self._expected(self._live.source))
        except ModelError as error:
            raise ConfigError(f"{error}; the folder is models.*.path={self._live.source}") from error

    async def answer(self, request: Mapping[str, Any], limit_s: float) -> tuple[HttpAnswer, str]:
        """The answer of the least busy replica, and the version of the weights that gave it.

        Raises:
            ModelError: No replica answered, or the weights are not known since a publish failed.
        """
        async with self._turn() as version:
            replica = least_busy(self._replicas)
            sent = {**request, "model": replica.model}
            if replica.on_cpu:
                # vLLM 0.32's engine on a CPU ends when it decodes several requests with seeds together ("CPU Generator
                # does not use offset").
                sent.pop("seed", None)
            answers = request.get("n") or 1
            replica.busy += answers
            try:
                answer = await replica.send("/v1/chat/completions", sent, limit_s=limit_s)
            finally:
                replica.busy -= answers
            if version != self.version:
                raise ModelError(f"weights of {self.name} changed from {version} to {self.version} during an answer")
            return answer, version

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[str]:
        while not self._open.is_set():
            await self._open.wait()
        if self._broken is not None:
            raise ModelError(self._broken)
        self._running += 1
        self._idle.clear()
        try:
            yield self.version
        finally:
            self._running -= 1
            if not self._running:
                self._idle.set()

    async def publish(self, source: Path, version: str) -> Published:
        """Put the weights in `source` behind all replicas; returns when they answer.

        Raises:
            ConfigError: The folder holds no model.
            ModelError: A replica did not take them, or serves others now. The old weights answer again, or nothing
                does if they could not be loaded either.
        """
        async with self._publishing:
            started = time.perf_counter()
            target = self._folder / str(next(self._numbers))
            new = Loaded(version, source, await asyncio.to_thread(prepare, source, target))
            expected = await self._expected(source)
            seconds = {"write": time.perf_counter() - started}
            self._open.clear()
            try:
                found = await self._load(new, expected, seconds)
                self._live = new
            except ModelError as error:
                await self._return(error)
                raise ModelError(f"{self.name} stays at {self.version}: {error}") from error
            finally:
                self._open.set()
            return Published({stage: round(spent, 3) for stage, spent in seconds.items()}, found)

    async def _load(
        self, new: Loaded, expected: tuple[list[int], list[float]], seconds: dict[str, float]
    ) -> list[float]:
        started = time.perf_counter()

        async def stage(name: str, path: str, body: Mapping[str, Any] | None = None) -> None:
            nonlocal started
            await self._all(path, body)
            seconds[name] = time.perf_counter() - started
            started = time.perf_counter()

        await stage("pause", "/pause?mode=wait")
        await self._idle.wait()  # What paused servers have answered is on its way.
        reload = {"method": "reload_weights", "kwargs": {"weights_path": str(new.prepared)}}
        await stage("reload", "/collective_rpc", reload)
        await stage("cache", "/reset_prefix_cache")
        await stage("version", "/update_weight_version", {"new_version": new.version})
        await stage("resume", "/resume")
        found = await self._prove(expected)
        seconds["prove"] = time.perf_counter() - started
        return found

    async def _return(self, error: ModelError) -> None:
        """Load the old weights again."""
        try:
            await self._load(self._live, await self._expected(self._live.source), {})
        except ModelError as second:
            self._broken = (
                f"nobody knows which weights {self.name} has: new ones could not be published ({error}), and the old "
                f"ones not be loaded again ({second}); see the servers' logs, and continue the run with --resume"
            )

    async def _all(self, path: str, body: Mapping[str, Any] | None) -> None:
        await asyncio.gather(*(replica.ask(path, body, limit_s=ROUTE_S) for replica in self._replicas))

    async def _expected(self, source: Path) -> tuple[list[int], list[float]]:
        with boundary(ModelError, f"the model in {source} cannot be computed"):
            tokens = await asyncio.to_thread(probe_tokens, source)
            return tokens, await asyncio.to_thread(self._learner, source, tokens, self._dtype)

    async def _prove(self, expected: tuple[list[int], list[float]]) -> list[float]:
        """How far each replica's log-probabilities of the probe are from the learner's.

        Raises:
            ModelError: One is further than `TOLERANCE`.
        """
        tokens, learner = expected
        found: list[float] = []
        for replica in self._replicas:
            told = await replica.ask("/v1/completions", probe_request(replica.model, tokens), limit_s=ROUTE_S)
            distance = apart(server_log_probs(told, tokens, replica.name), learner)
            if not distance <= TOLERANCE[self._dtype]:
                raise ModelError(
                    f"{replica.name} does not serve the weights in the folder: its log-probabilities of a probe prompt "
                    f"are {distance:.2g} from the learner's on average, and {TOLERANCE[self._dtype]:g} is tolerated "
                    f"({self._dtype})"
                )
            found.append(distance)
        return found
