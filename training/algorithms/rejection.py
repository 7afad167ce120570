"""Rejection fine-tuning: several answers to each recorded prompt of the roles, of which the right ones are imitated.

An answer is right if it says what the task's label says, and if its quotes stand in what the role has read. Answers
are branches (`training.learning.base.Bench.branch`): each costs one call of a model and not a rollout.
"""

import asyncio
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from agents.quoting import texts_read
from agents.roles import ROLES
from agents.schemas import Answer
from chimera.config.tree import Config
from chimera.core.errors import ConfigError, RunError
from chimera.core.quotes import missing_quotes
from chimera.core.types import Label
from chimera.data.tasks import Dataset
from chimera.run.policies import Part
from training.algorithms import gather
from training.algorithms.sft.phase import Sft, fine_tune, read_candidates
from training.algorithms.sft.settings import SftSettings
from training.learning.base import Bench, Learned, PhasePlan
from training.learning.experience import Call
from training.learning.rounds import all_of

if TYPE_CHECKING:
    from training.algorithms.sft.select import Candidate, Selected


class RejectionSettings(SftSettings):
    """Fine-tuning of roles on their own right answers, of several to each prompt."""

    tasks: int = Field(
        default=0, ge=0, le=1_000_000, description="training tasks to answer first; 0 takes all earlier rollouts"
    )
    answers: int = Field(default=8, ge=1, le=128, description="answers to each prompt in one draw")
    seeds: int = Field(default=1, ge=1, le=1000, description="draws, each with a seed of its own")
    keep: int = Field(default=2, ge=1, le=100_000, description="right answers to one prompt that are learned, at most")
    right: Literal["both", "label", "quotes"] = Field(
        default="both", description="an answer is right if it says what the label says, if its quotes are true, or both"
    )

    def unused(self) -> Mapping[str, str]:
        """Keys that select by the reward of rollouts, and LoRA's scale without LoRA."""
        others = ("select", "quantile", "threshold", "credited", "true_quotes")
        return {**super().unused(), **dict.fromkeys(others, "rejection selects answers by `right`")}


class Rejection:
    """Draws answers, keeps the right ones, and fine-tunes the roles' weights on them."""

    Settings = RejectionSettings
    part: ClassVar[Part | None] = "weights"

    def check(self, plan: PhasePlan, settings: RejectionSettings, config: Config, dataset: Dataset) -> None:
        """Raise ConfigError if nothing tells a role's right answers, there are too few tasks, or batches are uneven."""
        Sft().check(plan, settings, config, dataset)
        gather.choose(plan.name, gather.GatherSettings(tasks=max(1, settings.tasks)), dataset, config.seed)
        needed = "quotes" if settings.right == "quotes" else "stance"
        for role in plan.roles:
            if getattr(ROLES[role].schema, needed) is getattr(Answer, needed):
                raise ConfigError(
                    f"{plan.name}.right={settings.right} cannot tell which answers of {role} are right: they have no "
                    f"{needed} (agents.schemas); leave {role} out of {plan.name}.roles"
                )

    async def learn(self, plan: PhasePlan, settings: RejectionSettings, bench: Bench) -> Learned:
        """Draw, keep, train; raises RunError if too few answers are right, or the process that trains ended early."""

        async def chosen() -> "Selected":
            return await draw(plan, settings, bench)

        return await fine_tune(plan, settings, bench, chosen)


async def draw(plan: PhasePlan, settings: RejectionSettings, bench: Bench) -> "Selected":
    """Different right answers to the prompts of recorded visits, at most `keep` to each.

    Raises:
        RunError: Fewer than `min_examples` are left.
    """
    from training.algorithms.sft.render import Renderer
    from training.algorithms.sft.select import Example, Selected

    version = bench.versions[plan.slot]
    render = Renderer(bench.weights(plan.slot), bench.config.society.max_tool_calls).rows
    found = await _prompts(plan, settings, bench)
    own = sorted((one for one in found if one[1].weights_version == version), key=lambda one: one[0].place)
    seeds = [bench.config.seed + number for number in range(settings.seeds)]
    asked = (bench.branch(call, settings.answers, seed=seed) for _, call in own for seed in seeds)
    drawn = await asyncio.gather(*asked)
    counts, kept, rows = Counter(prompts=len(own), stale=len(found) - len(own)), list[Example](), set[Any]()
    for number, (prompt, _) in enumerate(own):
        most = len(kept) + settings.keep
        for answer in (one for answers in drawn[number * len(seeds) :][: len(seeds)] for one in answers):
            fresh = answer.weights_version == version
            right = fresh and is_right(answer, prompt.record.label, settings.right)
            counts.update(answers=1, stale=not fresh, right=right)
            if right and len(kept) < most:
                talk = prompt.conversation.answered_by(answer)
                example = Example(replace(prompt, conversation=talk), render(talk))
                if example.rows not in rows and max(len(row.ids) for row in example.rows) <= settings.max_length:
                    rows.add(example.rows)
                    kept.append(example)
    told = f"{counts['right']} of {counts['answers']} answers to {len(own)} prompts are right, {len(kept)} are learned"
    bench.view.note(f"{plan.name}: {told}; {counts['stale']} calls by other weights than {version} are left out")
    if len(kept) < settings.min_examples:
        raise RunError(
            f"{plan.name}: {told}, and {plan.name}.min_examples is {settings.min_examples}: lower it, raise "
            f"{plan.name}.answers, or have these weights answer more tasks ({plan.name}.tasks)"
        )
    of_role = dict(Counter(example.candidate.role for example in kept))
    return Selected(tuple(kept), {**counts, "selected": len(kept), "selected_by_role": of_role, **bench.spent()})


async def _prompts(plan: PhasePlan, settings: RejectionSettings, bench: Bench) -> "list[tuple[Candidate, Call]]":
    """Each visit that was answered at once, in a rollout with a reward, and the call that answered."""
    if settings.tasks:
        tasks = gather.GatherSettings(tasks=settings.tasks)
        episodes = await all_of(bench, plan.name, gather.choose(plan.name, tasks, bench.dataset, bench.config.seed))
    else:
        episodes = await bench.episodes()
    found: list[tuple[Candidate, Call]] = []
    for episode in episodes:
        if episode.record.reward is None or episode.record.untraced_calls:
            continue
        calls = await asyncio.to_thread(episode.calls, plan.roles)
        last = {(call.role, call.visit): call for call in calls if call.outcome}
        visits = await asyncio.to_thread(read_candidates, episode, plan.roles)
        found += [(visit, last[visit.role, visit.conversation.visit]) for visit in visits]
    return found


def is_right(call: Call, label: Label, right: str) -> bool:
    """True if an answer can be read, says what the label says, and quotes only what the role has read."""
    answer = call.answer
    if answer is None or call.asked is None:
        return False
    said = right == "quotes" or answer.stance == label
    return said and (right == "label" or not missing_quotes(answer.quotes, texts_read(call.asked.messages)))
