"""Distillation: a teacher answers the recorded prompts of the roles, and the roles' weights learn to answer like it.

The teachers are in `training.algorithms.teachers`. No label is used to choose an answer, and answers that quote
what the role has not read are left out.
"""

import asyncio
from collections import Counter
from functools import partial
from typing import Annotated, ClassVar

from pydantic import Field

from agents.roles import ROLES
from agents.schemas import Hypothesis
from chimera.config.loader import When
from chimera.config.tree import Config
from chimera.core.errors import ConfigError
from chimera.data.tasks import Dataset
from chimera.run.policies import Part
from training.algorithms.teachers import FAULTS, Lesson, Teacher
from training.learning.base import Bench, Learned, PhasePlan
from training.learning.examples import Examples, Render, Selected, check_enough
from training.learning.fine_tuning import TuneSettings, check_batches
from training.learning.states import check_tasks, check_teacher, check_varied, collect_states


class DistilSettings(TuneSettings):
    """Fine-tuning of roles on a teacher's answers to their prompts."""

    tasks: int = Field(
        default=0, ge=0, le=1_000_000, description="training tasks to answer first; 0 takes all earlier rollouts"
    )
    teacher: Teacher = Field(
        default="vote", description="who answers: the same weights at temperature 0, their majority, or others"
    )
    slot: Annotated[str, When.equal("teacher", "slot")] = Field(
        default="", description="teacher=slot: whose model answers (models.<slot>)"
    )
    answers: Annotated[int, When.equal("teacher", "vote")] = Field(
        default=8, ge=2, le=100_000, description="teacher=vote: answers to each prompt"
    )

    def asks(self) -> tuple[str, ...]:
        return (self.slot,) if self.teacher == "slot" and self.slot else ()

    def needs_rollouts(self) -> bool:
        return self.tasks == 0


class Distil:
    """Has a teacher answer, and fine-tunes the roles' weights on its answers."""

    Settings = DistilSettings
    part: ClassVar[Part | None] = "weights"

    def check(self, plan: PhasePlan, settings: DistilSettings, config: Config, dataset: Dataset) -> None:
        check_batches(plan, settings)
        check_tasks(plan, settings.tasks, dataset, config.seed)
        if settings.teacher == "slot" and settings.slot in ("", plan.slot):
            raise ConfigError(
                f"{plan.name}.slot is {settings.slot!r}: name the slot that teaches {plan.slot} (models.<slot>), "
                f"or set {plan.name}.teacher to greedy or vote"
            )
        if settings.teacher == "slot":
            check_teacher(plan, "slot", settings.slot, [ROLES[role].schema for role in plan.roles], config)
        if settings.teacher == "vote":
            check_varied(plan, config, "takes a vote")
        faults = [f"{role} gives none" for role in plan.roles if not issubclass(ROLES[role].schema, Hypothesis)]
        faults += ["society.quotes=numbered writes quotes as numbers"] * (config.society.quotes == "numbered")
        faults += ["with society.graph.choose=combine there are findings"] * (config.society.graph.choose == "combine")
        if settings.teacher == "society" and faults:
            raise ConfigError(f"{plan.name}.teacher=society teaches hypotheses in plain text, and {faults[0]}")

    async def learn(self, plan: PhasePlan, settings: DistilSettings, bench: Bench) -> Learned:
        return await bench.fine_tune(plan, settings, partial(draw, plan, settings, bench))


async def draw(plan: PhasePlan, settings: DistilSettings, bench: Bench, render: Render) -> Selected:
    """The teacher's answers to recorded prompts, one to each; raises RunError if fewer than `min_examples` are left."""
    states = await collect_states(plan, settings.tasks, bench)
    lesson = Lesson(bench, plan.slot, settings.slot, settings.answers)
    taught = await asyncio.gather(*(lesson.of(settings.teacher, state) for state in states))
    examples, counts, informative = Examples(render, settings.max_length), Counter(dict.fromkeys(FAULTS, 0)), 0
    for state, answered in zip(states, taught, strict=True):
        if isinstance(answered, str):
            counts[answered] += 1
        else:
            before, now = state.call.answer, answered.answer
            informative += now is not None and (before is None or now.stance != before.stance)
            examples.add(state, [answered], 1)
    summary = f"{counts.total()} of {len(states)} answers are left out, {len(examples)} are learned"
    bench.view.note(f"{plan.name}: {summary}; {informative} say something else than the role had said")
    check_enough(plan.name, summary, len(examples), settings.min_examples, draws=False)
    return examples.selected({"states": len(states), "informative": informative, **counts, **bench.spent()})
