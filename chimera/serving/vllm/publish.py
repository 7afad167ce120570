"""One set of weights behind one or more vLLM replicas: answers calls, and puts new weights live while it serves.

A publish closes the gate, so that new calls wait; pauses every replica, which ends the calls under way; loads the
weights, forgets what was computed with the old ones, and resumes; asks each replica for a probe prompt; and opens the
gate. So an answer is by one version only, and its stamp is true. Where a replica fails, the old weights are loaded
again. A replica that has ended is replaced: its calls are made again, and a publish waits for it and begins anew.

A LoRA adapter of the weights that the replicas have is loaded beside them instead (`chimera.serving.vllm.adapters`).
Calls name it from when the probe has proven it; calls under way end with the name that they began with.

Where servers share GPUs with the learner, they sleep while it computes: the gate is closed, calls under way end, and
the servers keep their weights in the main memory until they are woken.
"""

import asyncio
import itertools
import shutil
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chimera.config.sections.models import Precision
from chimera.core.errors import ConfigError, ModelError
from chimera.serving.connections import HttpAnswer
from chimera.serving.vllm.adapters import ServedAdapter, base_of, copy_adapter, load, unload
from chimera.serving.vllm.probe import Expected, Learner, Probe, learner_log_probs
from chimera.serving.vllm.replicas import Replica, ask_all, least_busy
from chimera.serving.vllm.weights import prepare

SLEEP, WAKE = "/sleep?level=1&mode=wait", "/wake_up"
"""Level 1 keeps the weights in the main memory and forgets what was computed with them."""
ROUTE_S = 900.0
"""Seconds for one of vLLM's own routes. A pause waits for the calls under way."""


@dataclass(frozen=True, slots=True)
class Published:
    """What a publish did: seconds by stage, and how far each replica's probe is from the learner's."""

    seconds: Mapping[str, float]
    apart: Sequence[float]


@dataclass(frozen=True, slots=True)
class Loaded:
    """Weights as they are served.

    Attributes:
        version: Their version.
        source: The model's folder.
        prepared: The folder that vLLM reads: the model itself, or the weights that its adapter changes.
        adapter: The adapter that is loaded beside these.
    """

    version: str
    source: Path
    prepared: Path
    adapter: ServedAdapter | None = None

    @property
    def base(self) -> Path:
        """The model's folder whose weights the servers have."""
        return self.adapter.base if self.adapter else self.source

    @property
    def adapter_name(self) -> str | None:
        return self.adapter.name if self.adapter else None


class ServedWeights:
    """One set of weights and its replicas.

    Args:
        name: The slots that use it, as named in errors.
        replicas: The servers, already answering.
        first: What they serve now.
        dtype: The numbers that they compute with.
        folder: Where folders for vLLM are made.
        learner: Computes the learner's log-probabilities.
        adapters: True if LoRA adapters are loaded beside the weights that they change.

    Attributes:
        live: The weights that answer.
        asleep: True while its servers sleep; calls wait.
    """

    def __init__(
        self,
        name: str,
        replicas: Sequence[Replica],
        first: Loaded,
        dtype: Precision,
        folder: Path,
        learner: Learner = learner_log_probs,
        *,
        adapters: bool = False,
    ) -> None:
        self.name = name
        self._replicas = list(replicas)
        self.live = first
        self._folder = folder
        self._adapters = adapters
        self._probe = Probe(dtype, learner)
        self._numbers = itertools.count(1)
        self._broken: str | None = None
        self._publishing = asyncio.Lock()
        self._open = asyncio.Event()
        self._open.set()
        self._running = Counter[ServedAdapter | None]()
        self._one_ended = asyncio.Event()
        self._replaced = asyncio.Condition()
        self._retiring: asyncio.Task[None] | None = None
        self.asleep = False

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
        if self.live.adapter:
            await load(self.live.adapter, [replica])
        expected = await self._probe.expect(self.live.source)
        (distance,) = await self._probe.ask(expected, [replica], self.live.adapter_name)
        async with self._replaced:
            self._replicas[number] = replica
            self._replaced.notify_all()
        return distance

    async def answer(self, request: Mapping[str, Any], limit_s: float) -> tuple[HttpAnswer, str]:
        """The answer of the least busy replica, and the version of the weights that gave it.

        Raises:
            ModelError: No replica answered, or the weights are not known since a publish failed.
        """
        while True:
            async with self._replaced:
                await self._replaced.wait_for(lambda: bool(self._alive()))
            async with self._turn() as live:
                replica = least_busy(self._alive() or self._replicas)
                sent = {**request, "model": live.adapter_name or replica.model}
                if replica.on_cpu:
                    # vLLM 0.32's engine on a CPU ends when it decodes several requests with seeds together ("CPU
                    # Generator does not use offset").
                    sent.pop("seed", None)
                answers = request.get("n") or 1
                replica.busy += answers
                try:
                    answer = await replica.send("/v1/chat/completions", sent, limit_s=limit_s)
                except ModelError:
                    if await replica.ends():
                        continue
                    raise
                finally:
                    replica.busy -= answers
                if answer.status >= 500 and await replica.ends():
                    continue
                if live.prepared != self.live.prepared:
                    raise ModelError(
                        f"weights of {self.name} changed from {live.version} to {self.version} during an answer"
                    )
                return answer, live.version

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[Loaded]:
        while not self._open.is_set():
            await self._open.wait()
        if self._broken is not None:
            raise ModelError(self._broken)
        live = self.live
        self._running[live.adapter] += 1
        try:
            yield live
        finally:
            self._running[live.adapter] -= 1
            self._one_ended.set()

    async def _until_ended(self, adapter: ServedAdapter | None = None) -> None:
        """Until no call of `adapter` is under way; no call at all if it is None."""
        while self._running[adapter] if adapter else self._running.total():
            self._one_ended.clear()
            await self._one_ended.wait()

    async def sleep(self) -> float:
        """End the calls under way and have the servers give their GPUs' memory away; returns the seconds that it took.

        Calls wait until `wake`, which is to be called also when this fails.

        Raises:
            ModelError: A server did not go to sleep.
        """
        async with self._publishing:
            started = time.perf_counter()
            self._open.clear()
            self.asleep = True
            await self._until_ended()
            if self._retiring:
                await self._retiring
            await self._tell_running(SLEEP)
            return time.perf_counter() - started

    async def wake(self) -> float:
        """Have the servers answer again; returns the seconds that it took. Does nothing if they are awake.

        Raises:
            ModelError: A server did not wake up; nothing answers any more.
        """
        async with self._publishing:
            started = time.perf_counter()
            if self.asleep:
                try:
                    await self._tell_running(WAKE)
                except ModelError as error:
                    self._broken = f"{self.name} does not wake up: {error}"
                    raise
                finally:
                    self.asleep = False
                    self._open.set()
            return time.perf_counter() - started

    async def _tell_running(self, path: str) -> None:
        """Post to all servers but those that have ended, which are started again when the others are awake."""
        alive = self._alive()
        # All are awaited: a server that still falls asleep must not be told to wake up.
        posts = [replica.tell(path, limit_s=ROUTE_S) for replica in alive]
        for replica, result in zip(alive, await asyncio.gather(*posts, return_exceptions=True), strict=True):
            if isinstance(result, BaseException) and not await replica.ends():
                raise result

    async def publish(self, source: Path, version: str) -> Published:
        """Put the weights in `source` behind all replicas, which must be awake; returns when they answer.

        Raises:
            ConfigError: The folder holds no model.
            ModelError: A replica did not take them, or serves others now. The old weights answer again, or nothing
                does if they could not be loaded either.
        """
        async with self._publishing:
            seconds: dict[str, float] = {}
            with _timed(seconds, "write"):
                if self._retiring:
                    await self._retiring  # So that never more than two adapters are in use.
                new = await asyncio.to_thread(self._prepared, source, version)
                expected = await self._probe.expect(source)
            put = self._put_beside if new.prepared == self.live.prepared else self._put_whole
            distances = await put(new, expected, seconds)
            return Published({stage: round(spent, 3) for stage, spent in seconds.items()}, distances)

    def _prepared(self, source: Path, version: str) -> Loaded:
        """Write what vLLM is to read: an adapter if the servers take one and `source` has one, else all weights."""
        target = self._folder / str(next(self._numbers))
        live = self.live
        if not self._adapters:
            return Loaded(version, source, prepare(source, target))
        if source.resolve() == live.base.resolve():
            return Loaded(version, source, live.prepared)
        base = base_of(source)
        if base is None:
            return Loaded(version, source, prepare(source, target))
        adapter = copy_adapter(source, base, target.with_name(f"{target.name}-adapter"), version)
        prepared = live.prepared if base.resolve() == live.base.resolve() else prepare(base, target)
        return Loaded(version, source, prepared, adapter)

    async def _put_beside(self, new: Loaded, expected: Expected, seconds: dict[str, float]) -> list[float]:
        """Load an adapter, or none, beside the weights that the replicas have. The live weights answer meanwhile."""
        try:
            distances = await self._until_whole(lambda: self._load_adapter(new, expected, seconds))
        except ModelError as error:
            if new.adapter:
                await self._forget(new.adapter)
            raise ModelError(f"{self.name} stays at {self.version}: {error}") from error
        old, self.live = self.live.adapter, new
        if old:
            self._retiring = asyncio.create_task(self._retire(old))
        return distances

    async def _put_whole(self, new: Loaded, expected: Expected, seconds: dict[str, float]) -> list[float]:
        """Load weights in place of those that the replicas have. Nothing answers meanwhile."""
        self._open.clear()
        try:
            distances = await self._until_whole(lambda: self._load(new, expected, seconds))
            old, self.live = self.live, new
        except ModelError as error:
            if new.adapter:
                await self._forget(new.adapter)
            await self._return(error)
            await asyncio.to_thread(shutil.rmtree, new.prepared, True)
            raise ModelError(f"{self.name} stays at {self.version}: {error}") from error
        finally:
            self._open.set()
        if old.adapter:
            await self._forget(old.adapter)
        await asyncio.to_thread(shutil.rmtree, old.prepared, True)  # A head of its own may be in it.
        return distances

    async def _retire(self, old: ServedAdapter) -> None:
        """Unload an adapter that answers no more, when no call uses it any more."""
        await self._until_ended(old)
        await self._forget(old)

    async def _forget(self, adapter: ServedAdapter) -> None:
        await unload(adapter, self._replicas)
        await asyncio.to_thread(shutil.rmtree, adapter.folder)

    async def _until_whole(self, loading: Callable[[], Awaitable[list[float]]]) -> list[float]:
        """The result of `loading`, which is made again when a replica that has ended meanwhile is replaced by one with
        the old weights."""
        while True:
            async with self._replaced:
                await self._replaced.wait_for(lambda: self._alive() == self._replicas)
            try:
                distances = await loading()
            except ModelError:
                if not any(await asyncio.gather(*(replica.ends() for replica in self._replicas))):
                    raise
                continue
            if self._alive() == self._replicas:
                return distances

    def _alive(self) -> list[Replica]:
        return [replica for replica in self._replicas if not replica.ended()]

    async def _load(self, new: Loaded, expected: Expected, seconds: dict[str, float]) -> list[float]:
        reload = {"method": "reload_weights", "kwargs": {"weights_path": str(new.prepared)}}
        stages = [
            ("pause", "/pause?mode=wait", None),
            ("reload", "/collective_rpc", reload),
            ("cache", "/reset_prefix_cache", None),
            ("version", "/update_weight_version", {"new_version": new.version}),
            ("resume", "/resume", None),
        ]
        for stage, path, body in stages:
            with _timed(seconds, stage):
                await ask_all(self._replicas, path, body, limit_s=ROUTE_S)
                if stage == "pause":
                    await self._until_ended()  # What paused servers have answered is on its way.
        return await self._load_adapter(new, expected, seconds)

    async def _load_adapter(self, new: Loaded, expected: Expected, seconds: dict[str, float]) -> list[float]:
        """Load the adapter of `new`, if it has one, and prove what the replicas serve by its name."""
        if new.adapter:
            with _timed(seconds, "load"):
                await unload(new.adapter, self._replicas)  # What a publish that is made again has left.
                await load(new.adapter, self._replicas)
        with _timed(seconds, "prove"):
            return await self._probe.ask(expected, self._replicas, new.adapter_name)

    async def _return(self, error: ModelError) -> None:
        """Load the old weights again."""
        try:
            await self._load(self.live, await self._probe.expect(self.live.source), {})
        except ModelError as second:
            self._broken = (
                f"nobody knows which weights {self.name} has: new ones could not be published ({error}), and the old "
                f"ones not be loaded again ({second}); see the servers' logs, and continue the run with --resume"
            )


@contextmanager
def _timed(seconds: dict[str, float], stage: str) -> Iterator[None]:
    """Write how long the `with` block took, unless it fails."""
    started = time.perf_counter()
    yield
    seconds[stage] = time.perf_counter() - started
