"""Opens the engine of a PPO phase: in this process, in several, or on the nodes of a cluster."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chimera.core.errors import ConfigError
from training.algorithms.ppo.checkpoints import Checkpoints
from training.algorithms.ppo.settings import PpoSettings
from training.learning.base import Bench, PhasePlan

if TYPE_CHECKING:
    from training.cluster.team import Team
    from training.engines.base import TrainingEngine

RANKS_STARTED = "ranks_started"
"""The ledger's event: `ranks` processes with `shards` were started, at first or after a loss."""


def open_engine(
    weights: Path, plan: PhasePlan, settings: PpoSettings, bench: Bench, checkpoints: Checkpoints
) -> "TrainingEngine":
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
        from training.engines.local import PpoEngine

        return PpoEngine(weights, settings, **options)
    from training.cluster.team_engine import TeamEngine

    place = _here if bench.config.cluster.address is None else _on_ray
    start_team = place(plan, settings, bench)

    def start() -> "Team":
        team = start_team()
        bench.run.ledger(RANKS_STARTED, phase=plan.name, ranks=team.ranks, shards=settings.shards)
        if team.ranks < settings.ranks:
            note(f"the Ray cluster has room for {team.ranks} of {settings.ranks} ranks, which work alone")
        return team

    def note(text: str) -> None:
        bench.view.warn(f"{plan.name}: {text}")

    return TeamEngine(weights, settings, team=start, newest=checkpoints.newest_engine, note=note, **options)


def _here(plan: PhasePlan, settings: PpoSettings, bench: Bench) -> "Callable[[], Team]":
    """Starts the ranks on this machine; raises ConfigError if there are fewer GPUs than ranks."""
    import torch

    from training.cluster.team import Team

    if 0 < (gpus := torch.cuda.device_count()) < settings.ranks:
        raise ConfigError(f"{plan.name}.ranks={settings.ranks}: each rank needs a GPU, and {gpus} can be seen here")
    return partial(Team, settings.ranks, bench.run.path / "logs", plan.name)


def _on_ray(plan: PhasePlan, settings: PpoSettings, bench: Bench) -> "Callable[[], Team]":
    """Starts as many of the ranks as there is room for on the cluster."""
    from training.cluster.ray.ranks import team_on_ray

    return partial(team_on_ray, bench.config.cluster, settings.ranks, bench.run.path / "logs", plan.name)
