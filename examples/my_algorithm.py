"""Best of n: the roles imitate their conversations from each task's best rollouts.

pipeline:
  gather: {tasks: 160, repeats: 4}
  mine: {algorithm: "examples.my_algorithm:Mine", roles: juniors}
"""

import asyncio
from typing import ClassVar

from training.algorithms.selection import Selected, select
from training.algorithms.sft import Sft, fine_tune, read_candidates
from training.learning.base import Bench, Learned, PhasePlan
from training.learning.fine_tuning import SftSettings
from training.tune.render import Renderer


class Mine(Sft):
    """Supervised fine-tuning on the rollouts of each task that have its highest reward."""

    Settings: ClassVar[type[SftSettings]] = SftSettings

    async def learn(self, plan: PhasePlan, settings: SftSettings, bench: Bench) -> Learned:
        """Select, train, and leave the new weights to the gate."""

        async def chosen() -> Selected:
            found = [one for episode in await bench.episodes() for one in read_candidates(episode, plan.roles)]
            live = bench.versions[plan.slot]
            own = [one for one in found if one.conversation.weights_version == live]
            highest: dict[str, float] = {}
            for one in own:
                task = one.record.task_id
                highest[task] = max(one.reward, highest.get(task, one.reward))
            best = [one for one in own if one.reward == highest[one.record.task_id]]
            bench.view.note(f"{plan.name}: {len(best)} of {len(own)}; {len(found) - len(own)} are by other weights")
            render = Renderer(bench.weights(plan.slot), bench.config.society.max_tool_calls).rows
            return await asyncio.to_thread(select, best, render, settings, plan.name)

        return await fine_tune(plan, settings, bench, chosen)
