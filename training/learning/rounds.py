"""Rollouts that a phase waits for together."""

import random
from collections.abc import Sequence

from chimera.core.errors import ConfigError, RunError
from chimera.data.tasks import Dataset
from evaluation.records.rollouts import RolloutInput
from training.learning.base import Bench
from training.learning.episodes import Episode


async def all_of(bench: Bench, title: str, inputs: Sequence[RolloutInput]) -> list[Episode]:
    """Run the society on `inputs`, shown as `title` in the live view. Returns the episodes in the order of their ends.

    Raises:
        RunError: No rollout succeeded.
    """
    found: list[Episode] = []
    with bench.view.phase(title, len(inputs), bench.versions):
        async for episode in bench.rollouts(inputs):
            found.append(episode.on_disk())
            bench.view.add(episode.record)
    if all(episode.record.status == "failed" for episode in found):
        raise RunError(f"all {len(found)} rollouts failed; the first: {found[0].record.error}")
    return found


def draw_inputs(phase: str, tasks: int, dataset: Dataset, seed: int, repeats: int = 1) -> list[RolloutInput]:
    """Rollouts of `tasks` training tasks, one round of all tasks after another.

    Tasks are drawn without replacement. Equal seeds draw equal tasks.

    Raises:
        ConfigError: There are too few training tasks.
    """
    if tasks > len(dataset.train):
        raise ConfigError(f"{phase}.tasks={tasks}, but there are {len(dataset.train)} training tasks: ask for fewer")
    drawn = random.Random(f"{seed}/{phase}").sample(dataset.train, tasks)
    return [RolloutInput.of(task, phase, repeat, seed) for repeat in range(repeats) for task in drawn]
