"""Rollouts that a phase waits for together."""

from collections.abc import Sequence

from chimera.core.errors import RunError
from evaluation.records.rollouts import RolloutInput
from training.learning.base import Bench
from training.learning.episodes import Episode


async def all_of(bench: Bench, title: str, inputs: Sequence[RolloutInput]) -> list[Episode]:
    """Run the society on `inputs` under `title` in the live view; the episodes in the order in which they ended.

    Raises:
        RunError: Not one rollout succeeded.
    """
    found: list[Episode] = []
    with bench.view.phase(title, len(inputs), bench.versions):
        async for episode in bench.rollouts(inputs):
            found.append(episode.on_disk())
            bench.view.add(episode.record)
    if all(episode.record.status == "failed" for episode in found):
        raise RunError(f"all {len(found)} rollouts failed; the first: {found[0].record.error}")
    return found
