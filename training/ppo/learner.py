"""The engine of a PPO phase, in a thread of its own: in this process, in several, or on the nodes of a cluster."""

import asyncio
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from chimera.core.errors import ConfigError
from chimera.run.policies import Policy
from chimera.run.seals import seal
from training.learning.base import Bench, PhasePlan
from training.ppo.engine.batch import Sample
from training.ppo.tokens import record_update
from training.ppo.verl.settings import PpoSettings

if TYPE_CHECKING:
    from training.ppo.engine.base import TrainingEngine
    from training.ppo.ranks.ranks import Ranks

P = ParamSpec("P")
R = TypeVar("R")
RANKS_STARTED = "ranks_started"
"""The ledger's event: `ranks` processes with `shards` were started."""
STOP_SECONDS = 1.0
"""Time that a stop waits for the update in progress. After it the update ends with the process."""


class Learner:
    """The engine of one phase, for the event loop.

    Args:
        weights: The phase's first weights.
    """

    def __init__(self, plan: PhasePlan, settings: PpoSettings, bench: Bench, weights: Path) -> None:
        self._plan, self._settings, self._bench, self._weights = plan, settings, bench, weights
        self._thread = Background(f"{plan.name}-engine")
        self._engine: TrainingEngine | None = None
        self._opened: asyncio.Future[None] | None = None

    def open(self, checkpoint: Path | None) -> None:
        """Begin to open the engine, as it was at `checkpoint`. Its first rollouts run meanwhile."""
        self._opened = self._thread.start(self._open, checkpoint)

    async def ready(self) -> None:
        """Wait until the engine is open; raises as `open_engine`, or RunError if the checkpoint is broken."""
        assert self._opened is not None
        await self._opened

    async def update(self, samples: Sequence[Sample], step: int) -> Mapping[str, float]:
        """Learn from one step's samples, and record its tokens; returns metrics by VeRL's names."""
        record = partial(record_update, self._bench.run.path, self._plan.name, step, self._settings)
        return await self._thread.start(self.engine.update, samples, step, record)

    async def export(self, policy: Policy) -> None:
        """Write the weights as `policy`, and record their hashes in the ledger."""
        await self._thread.start(self._export, policy)

    async def save(self, write: Callable[[Callable[[Path], None]], None]) -> None:
        """Call `write` with what writes the engine's state into a folder, when the engine rests."""
        await self.ready()
        await self._thread.start(write, self.engine.save)

    def close(self) -> None:
        if self._opened is not None:
            self._opened.cancel()
        self._thread.finish(self._close, STOP_SECONDS)

    @property
    def engine(self) -> "TrainingEngine":
        assert self._engine is not None  # `ready` was awaited.
        return self._engine

    def _open(self, checkpoint: Path | None) -> None:
        """Import VeRL and load the model. This takes seconds."""
        # Works only before torch is loaded. Idle OpenMP threads that spin would slow the model server down manyfold.
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
        self._engine = open_engine(self._weights, self._plan, self._settings, self._bench)
        if checkpoint is not None:
            self._engine.load(checkpoint)

    def _export(self, policy: Policy) -> None:
        self.engine.export(self._bench.run.path / policy.folder)
        seal(self._bench.run, policy.folder)

    def _close(self) -> None:
        if self._engine is not None:
            self._engine.close()


def open_engine(weights: Path, plan: PhasePlan, settings: PpoSettings, bench: Bench) -> "TrainingEngine":
    """The engine that begins with `weights`. This takes seconds.

    Raises:
        ConfigError: VeRL refuses a setting, the model cannot be trained, or there are fewer GPUs than ranks.
        RunError: Another engine is open in this process, or ranks cannot be started.
    """
    options: dict[str, Any] = {
        "seed": bench.config.seed,
        "total_steps": settings.steps,
        "temperature": bench.config.models[plan.slot].temperature,
        "phase": plan.name,
    }
    if settings.ranks == 1:
        from training.ppo.engine.update import PpoEngine

        return PpoEngine(weights, settings, **options)
    from training.ppo.ranks.ranks import RanksEngine

    start = _here(plan, settings, bench) if bench.config.cluster.address is None else _placed(settings, bench)
    engine = RanksEngine(weights, settings, start, **options)
    bench.run.ledger(RANKS_STARTED, phase=plan.name, ranks=settings.ranks, shards=settings.shards)
    return engine


def _here(plan: PhasePlan, settings: PpoSettings, bench: Bench) -> "Callable[[], Ranks]":
    """Starts the ranks on this machine; raises ConfigError if there are fewer GPUs than ranks."""
    import torch

    from training.ppo.ranks.here import LocalRanks

    if 0 < (gpus := torch.cuda.device_count()) < settings.ranks:
        raise ConfigError(f"{plan.name}.ranks={settings.ranks}: each rank needs a GPU, and {gpus} can be seen here")
    return partial(LocalRanks, settings.ranks, bench.run.path / "logs", plan.name)


def _placed(settings: PpoSettings, bench: Bench) -> "Callable[[], Ranks]":
    """Starts the ranks on the cluster's nodes."""
    from training.ppo.ranks.placed import PlacedRanks

    return partial(PlacedRanks, bench.config.cluster, settings.ranks, bench.run.path)


class Background:
    """One thread that does jobs in the order of `start`. Call it from one event loop.

    asyncio joins its own threads when the program ends, so a stop would wait for an update to finish. This thread is
    not joined: when the caller is cancelled, its job continues and ends with the process.
    """

    def __init__(self, name: str) -> None:
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def start(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> "asyncio.Future[R]":
        """Queue a job. The future gets its result or its exception. A job whose future is cancelled is not begun."""
        ending: Future[R] = Future()
        future = asyncio.wrap_future(ending)

        def job() -> None:
            # A cancelled future tells `ending` only when the event loop goes on.
            if future.cancelled() or not ending.set_running_or_notify_cancel():
                return
            try:
                ending.set_result(function(*args, **kwargs))
            except BaseException as error:  # noqa: BLE001  it is raised again where the result is awaited
                ending.set_exception(error)

        self._jobs.put(job)
        return future

    def finish(self, last: Callable[[], None], seconds: float) -> None:
        """Call `last` after all jobs, then end the thread. Waits at most `seconds`."""
        self._jobs.put(last)
        self._jobs.put(None)
        self._thread.join(seconds)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()
