"""Best of n: of each task's rollouts the one with the highest reward, whose conversations the roles imitate.

    pipeline:
      gather: {tasks: 160, repeats: 4}
      mine:   {algorithm: "examples.my_algorithm:Mine", roles: juniors}
"""

import asyncio
from typing import ClassVar

from training.algorithms.sft.phase import Sft, fine_tune, read_candidates
from training.algorithms.sft.settings import SftSettings
from training.learning.base import Bench, Learned, PhasePlan
from training.learning.episodes import Episode


class Mine(Sft):
    """Supervised fine-tuning on the best rollout of each task."""

    Settings: ClassVar[type[SftSettings]] = SftSettings

    async def learn(self, plan: PhasePlan, settings: SftSettings, bench: Bench) -> Learned:
        """Select, train, and leave the new weights to the gate."""

        async def chosen():
            from training.algorithms.sft.render import Renderer
            from training.algorithms.sft.select import select

            best: dict[str, Episode] = {}
            for episode in await bench.episodes():
                known, reward = best.get(episode.record.task_id), episode.record.reward
                if reward is not None and (known is None or reward > (known.record.reward or 0)):
                    best[episode.record.task_id] = episode
            found = [one for episode in best.values() for one in read_candidates(episode, plan.roles)]
            live = bench.versions[plan.slot]
            own = [one for one in found if one.conversation.weights_version == live]
            bench.view.note(f"{plan.name}: {len(found) - len(own)} conversations by other weights are left out")
            render = Renderer(bench.weights(plan.slot), bench.config.society.max_tool_calls).rows
            return await asyncio.to_thread(select, own, render, settings, plan.name)

        return await fine_tune(plan, settings, bench, chosen)
