"""Best of n: the roles imitate their conversations from each task's best rollouts.

pipeline:
  gather: {tasks: 160, repeats: 4}
  mine: {algorithm: "examples.my_algorithm:Mine", roles: juniors}
"""

from operator import attrgetter
from typing import ClassVar

from chimera.run.policies import Part
from training.learning.base import Bench, Learned, PhasePlan
from training.learning.examples import Render, Selected
from training.learning.fine_tuning import SftSettings, check_batches
from training.learning.selection import candidates, select


class Mine:
    """Supervised fine-tuning on the rollouts of each task that have its highest reward."""

    Settings: ClassVar[type[SftSettings]] = SftSettings
    part: ClassVar[Part | None] = "weights"

    def check(self, plan: PhasePlan, settings: SftSettings, config: object, dataset: object) -> None:
        """Refuse, before anything starts, what cannot run."""
        check_batches(plan, settings)

    async def learn(self, plan: PhasePlan, settings: SftSettings, bench: Bench) -> Learned:
        """Select, train, and leave the new weights to the gate."""

        async def choose(render: Render) -> Selected:
            pool = [case for episode in await bench.episodes() for case in candidates(episode, plan.roles)]
            current = [case for case in pool if case.conversation.weights_version == bench.versions[plan.slot]]
            best_last = sorted(current, key=attrgetter("reward"))
            highest = {case.record.task_id: case.reward for case in best_last}
            best = [case for case in current if case.reward == highest[case.record.task_id]]
            bench.view.note(f"{plan.name}: {len(best)} of {len(current)}; {len(pool) - len(current)} by other weights")
            return select(best, render, settings, plan.name)

        return await bench.fine_tune(plan, settings, choose)
