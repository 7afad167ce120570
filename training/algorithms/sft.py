"""Supervised fine-tuning: roles imitate their own conversations from rollouts with a high reward."""

import asyncio
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

from chimera.config.tree import Config
from chimera.data.tasks import Dataset
from chimera.run.policies import Part
from training.learning.base import Bench, Learned, PhasePlan
from training.learning.examples import Candidate, Render, Selected
from training.learning.fine_tuning import SftSettings, check_batches
from training.learning.selection import candidates, select


class Sft:
    """Selects conversations, and fine-tunes the roles' weights on them."""

    Settings = SftSettings
    part: ClassVar[Part | None] = "weights"

    def check(self, plan: PhasePlan, settings: SftSettings, config: Config, dataset: Dataset) -> None:
        check_batches(plan, settings)

    async def learn(self, plan: PhasePlan, settings: SftSettings, bench: Bench) -> Learned:
        """Select and train.

        Raises:
            RunError: Too few conversations were selected, or the training process ended early.
        """
        return await bench.fine_tune(plan, settings, partial(choose, plan, settings, bench))


async def choose(plan: PhasePlan, settings: SftSettings, bench: Bench, render: Render) -> Selected:
    """Select conversations from earlier rollouts with a reward.

    Raises:
        RunError: A trace cannot be read, or too few conversations are left.
    """
    pool: list[Candidate] = []
    for episode in await bench.episodes():
        # One thread call per rollout: the event loop stays free, and an interrupted run waits for at most one trace.
        pool += await asyncio.to_thread(candidates, episode, plan.roles)
    version = bench.versions[plan.slot]
    current = [candidate for candidate in pool if candidate.conversation.weights_version == version]
    selection = await asyncio.to_thread(select, current, render, settings, plan.name)
    figures: dict[str, Any] = {**selection.figures, "stale": len(pool) - len(current)}
    of_role = ", ".join(f"{role} {count}" for role, count in figures["selected_by_role"].items())
    bench.view.note(
        f"{plan.name}: {figures['selected']} of {len(current)} conversations ({of_role}), mean reward "
        f"{figures['reward_of_selected']:.3f} (of all {figures['reward_of_candidates']:.3f})"
    )
    if figures["stale"]:
        bench.view.note(f"{plan.name}: {figures['stale']} conversations by other weights than {version} are left out")
    if figures["misquoting_kept"]:
        bench.view.warn(
            f"{plan.name}: too few of these conversations quote what they have read, so misquoting ones are learned "
            f"from too: gather more, or set {plan.name}.true_quotes=require"
        )
    return replace(selection, figures=figures)
