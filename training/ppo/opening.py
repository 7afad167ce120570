"""Opens the engine of a PPO phase: in this process, in several, or on the nodes of a cluster."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chimera.core.errors import ConfigError
from training.learning.base import Bench, PhasePlan
from training.ppo.settings import PpoSettings

if TYPE_CHECKING:
    from training.ppo.engine.base import TrainingEngine
    from training.ppo.ranks.ranks import Ranks

RANKS_STARTED = "ranks_started"
"""The ledger's event: `ranks` processes with `shards` were started."""


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
