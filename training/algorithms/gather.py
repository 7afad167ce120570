"""Gathering: the current society answers training tasks. Other phases learn from these rollouts."""

import random
from collections.abc import Sequence
from typing import ClassVar

from pydantic import Field

from chimera.config.pipeline import PhaseSettings
from chimera.config.tree import Config
from chimera.core.errors import ConfigError
from chimera.data.tasks import Dataset
from chimera.run.policies import Part
from evaluation.records.rollouts import RolloutInput
from training.learning.base import Bench, Learned, PhasePlan
from training.learning.rounds import all_of
from training.summary import summarize


class GatherSettings(PhaseSettings):
    """The society as it is answers training tasks."""

    tasks: int = Field(default=160, ge=1, le=1_000_000, description="training tasks to answer")
    repeats: int = Field(default=1, ge=1, le=100_000, description="rollouts per task")


class Gather:
    """`tasks` training tasks, `repeats` rollouts of each."""

    Settings = GatherSettings
    part: ClassVar[Part | None] = None

    def check(self, plan: PhasePlan, settings: GatherSettings, config: Config, dataset: Dataset) -> None:
        """Raise ConfigError if there are too few training tasks."""
        choose(plan.name, settings, dataset, config.seed)

    async def learn(self, plan: PhasePlan, settings: GatherSettings, bench: Bench) -> Learned:
        """Gather the rollouts.

        Raises:
            RunError: No rollout succeeded.
        """
        inputs = choose(plan.name, settings, bench.dataset, bench.config.seed)
        records = [episode.record for episode in await all_of(bench, plan.name, inputs)]
        bench.metrics.protocols(plan.name, records)
        return Learned(summarize(records))


def choose(phase: str, settings: GatherSettings, dataset: Dataset, seed: int) -> Sequence[RolloutInput]:
    """The rollouts to run, one round of all tasks after another.

    Tasks are drawn without replacement. Equal seeds draw equal tasks.

    Raises:
        ConfigError: There are too few training tasks.
    """
    if settings.tasks > len(dataset.train):
        raise ConfigError(
            f"{phase}.tasks={settings.tasks}, but there are {len(dataset.train)} training tasks: ask for fewer"
        )
    drawn = random.Random(f"{seed}/{phase}").sample(dataset.train, settings.tasks)
    return [RolloutInput.of(task, phase, repeat, seed) for repeat in range(settings.repeats) for task in drawn]
