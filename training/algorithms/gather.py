"""Gathering: the current society answers training tasks. Other phases learn from these rollouts."""

from collections.abc import Mapping
from typing import ClassVar

from pydantic import Field

from chimera.config.pipeline import PhaseSettings
from chimera.config.tree import Config
from chimera.data.tasks import Dataset
from chimera.run.policies import Part
from training.learning.base import Bench, Learned, PhasePlan
from training.learning.states import all_of, check_tasks, draw_inputs
from training.watch.summary import summarize


class GatherSettings(PhaseSettings):
    """The society as it is answers training tasks."""

    learns_weights: ClassVar[bool] = False

    tasks: int = Field(default=120, ge=1, le=1_000_000, description="training tasks to answer")
    repeats: int = Field(default=1, ge=1, le=100_000, description="rollouts per task")

    def most(self) -> str:
        return f"{self.tasks * self.repeats:,} rollouts"

    def idle(self) -> Mapping[str, str]:
        return {} if self.roles else dict.fromkeys(("roles", "shared"), "gather trains no role")


class Gather:
    """`tasks` training tasks, `repeats` rollouts of each."""

    Settings = GatherSettings
    part: ClassVar[Part | None] = None

    def check(self, plan: PhasePlan, settings: GatherSettings, config: Config, dataset: Dataset) -> None:
        check_tasks(plan, settings.tasks, dataset, config.seed)

    async def learn(self, plan: PhasePlan, settings: GatherSettings, bench: Bench) -> Learned:
        """Gather the rollouts.

        Raises:
            RunError: No rollout succeeded.
        """
        inputs = draw_inputs(plan.name, settings.tasks, bench.dataset, bench.config.seed, settings.repeats)
        records = [episode.record for episode in await all_of(bench, plan.name, inputs)]
        bench.metrics.protocols(plan.name, records)
        return Learned(summarize(records))
