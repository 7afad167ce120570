"""The gather phase: the society as it is answers training tasks; everything later is learned from these rollouts."""

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING

from chimera.config.tree import Config
from chimera.core.errors import ConfigError, RunError
from chimera.data.tasks import Dataset
from evaluation.records.rollouts import RolloutInput, RolloutRecord
from training.phases import PhaseResult
from training.summary import summarize

if TYPE_CHECKING:
    from training.lab.lab import Lab


class Gather:
    """`gather.tasks` training tasks, `gather.repeats` rollouts of each."""

    name = "gather"
    learns = False

    def check(self, config: Config, dataset: Dataset) -> None:
        """Raise ConfigError if more tasks are asked for than there are."""
        choose(dataset, config)

    async def run(self, lab: "Lab") -> PhaseResult:
        """Gather the rollouts.

        Raises:
            RunError: Not one rollout succeeded.
        """
        inputs = choose(lab.dataset, lab.config)
        records: list[RolloutRecord] = []
        with lab.view.phase(self.name, len(inputs), lab.policy_versions):
            async for record in lab.rollouts(inputs):
                records.append(record)
                lab.view.add(record)
        if all(record.status == "failed" for record in records):
            raise RunError(f"all {len(records)} rollouts failed; the first: {records[0].error}")
        lab.metrics.protocols(self.name, records)
        return PhaseResult(summarize(records))


def choose(dataset: Dataset, config: Config) -> Sequence[RolloutInput]:
    """The rollouts to run: tasks drawn without replacement, the same for the same seed; repeats one round at a time.

    Raises:
        ConfigError: There are fewer training tasks than `gather.tasks`.
    """
    if config.gather.tasks > len(dataset.train):
        raise ConfigError(
            f"gather.tasks={config.gather.tasks}, but there are {len(dataset.train)} training tasks: ask for fewer"
        )
    drawn = random.Random(f"{config.seed}/gather").sample(dataset.train, config.gather.tasks)
    return [
        RolloutInput.of(task, Gather.name, repeat, config.seed)
        for repeat in range(config.gather.repeats)
        for task in drawn
    ]
