"""One set of weights behind one or more vLLM replicas: answers calls, and puts new weights live while it serves.

A publish closes the gate, so that new calls wait; pauses every replica, which ends the calls under way; loads the
weights, forgets what was computed with the old ones, and resumes; asks each replica for a probe prompt; and opens the
gate. So an answer is by one version only, and its stamp is true. Where a replica fails, the old weights are loaded
again. A replica that has ended is replaced: its calls are made again, and a publish waits for it and begins anew.
"""

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chimera.config.sections.models import Precision
from chimera.core.errors import ConfigError, ModelError
from chimera.serving.connections import HttpAnswer
from chimera.serving.vllm.probe import Expected, Learner, Probe, learner_log_probs
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

    Attributes:
        live: The weights that answer.
    """

    def __init__(
        self,
        name: str,
        replicas: Sequence[Replica],
        first: Loaded,
        dtype: Precision,
        folder: Path,
        learner: Learner = learner_log_probs,
    ) -> None:
        self.name = name
        self._replicas = list(replicas)
        self.live = first
        self._folder = folder
        self._probe = Probe(dtype, learner)
        self._numbers = itertools.count(1)
        self._broken: str | None = None
        self._publishing = asyncio.Lock()
        self._open = asyncio.Event()
        self._open.set()
        self._idle = asyncio.Event()
        self._idle.set()
        self._running = 0
        self._replaced = asyncio.Condition()

    @property
    def version(self) -> str:
        """The version of the weights that answer."""
        return self.live.version

    async def check(self) -> None:
        """Make sure that the replicas serve the weights of the folder.

        Raises:
            ConfigError: They serve other weights.
        """
        try:
            await self._probe.ask(await self._probe.expect(self.live.source), self._replicas)
        except ModelError as error:
            raise ConfigError(f"{error}; the folder is models.*.path={self.live.source}") from error

    async def replace(self, number: int, replica: Replica) -> float:
        """Take `replica`, which has begun with the live weights, for one that has ended; returns how far its probe is.

        Raises:
            ModelError: It serves other weights.
        """
        (found,) = await self._probe.ask(await self._probe.expect(self.live.source), [replica])
        async with self._replaced:
            self._replicas[number] = replica
            self._replaced.notify_all()
        return found

    async def answer(self, request: Mapping[str, Any], limit_s: float) -> tuple[HttpAnswer, str]:
        """The answer of the least busy replica, and the version of the weights that gave it.

        Raises:
            ModelError: No replica answered, or the weights are not known since a publish failed.
        """
        while (found := await self._asked(request, limit_s)) is None:
            pass
        return found

    async def _asked(self, request: Mapping[str, Any], limit_s: float) -> tuple[HttpAnswer, str] | None:
        """As `answer`; None if the replica has ended meanwhile."""
        async with self._replaced:
            await self._replaced.wait_for(lambda: not all(one.ended() for one in self._replicas))
        async with self._turn() as version:
            replica = least_busy([one for one in self._replicas if not one.ended()] or self._replicas)
            sent = {**request, "model": replica.model}
            if replica.on_cpu:
                # vLLM 0.32's engine on a CPU ends when it decodes several requests with seeds together ("CPU Generator
                # does not use offset").
                sent.pop("seed", None)
            answers = request.get("n") or 1
            replica.busy += answers
            try:
                answer = await replica.send("/v1/chat/completions", sent, limit_s=limit_s)
            except ModelError:
                if await replica.ends():
                    return None
                raise
            finally:
                replica.busy -= answers
            if answer.status >= 500 and await replica.ends():
                return None
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
            expected = await self._probe.expect(source)
            seconds = {"write": time.perf_counter() - started}
            self._open.clear()
            try:
                found = await self._load_whole(new, expected, seconds)
                self.live = new
            except ModelError as error:
                await self._return(error)
                raise ModelError(f"{self.name} stays at {self.version}: {error}") from error
            finally:
                self._open.set()
            return Published({stage: round(spent, 3) for stage, spent in seconds.items()}, found)

    async def _load_whole(self, new: Loaded, expected: Expected, seconds: dict[str, float]) -> list[float]:
        """As `_load`, and again when a replica that has ended meanwhile is replaced by one with the old weights."""
        while True:
            async with self._replaced:
                await self._replaced.wait_for(lambda: not any(one.ended() for one in self._replicas))
            try:
                found = await self._load(new, expected, seconds)
            except ModelError:
                if not any(await asyncio.gather(*(one.ends() for one in self._replicas))):
                    raise
                continue
            if not any(one.ended() for one in self._replicas):
                return found

    async def _load(self, new: Loaded, expected: Expected, seconds: dict[str, float]) -> list[float]:
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
        found = await self._probe.ask(expected, self._replicas)
        seconds["prove"] = time.perf_counter() - started
        return found

    async def _return(self, error: ModelError) -> None:
        """Load the old weights again."""
        try:
            await self._load(self.live, await self._probe.expect(self.live.source), {})
        except ModelError as second:
            self._broken = (
                f"nobody knows which weights {self.name} has: new ones could not be published ({error}), and the old "
                f"ones not be loaded again ({second}); see the servers' logs, and continue the run with --resume"
            )

    async def _all(self, path: str, body: Mapping[str, Any] | None) -> None:
        asking = [replica.ask(path, body, limit_s=ROUTE_S) for replica in self._replicas]
        # All are awaited, so that nothing of a publish that fails is under way when it is made again.
        for done in await asyncio.gather(*asking, return_exceptions=True):
            if isinstance(done, BaseException):
                raise done
