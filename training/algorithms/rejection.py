"""Rejection fine-tuning: several answers to each recorded prompt of the roles, of which the best ones are imitated.

An answer must be right: it says what follows from what the role has read (the task's label or, where several studies
answer a task, what those say that the role has found or was handed), and its quotes stand there. Among right answers
those that are worth most come first (`reward`), because a right answer may be a guess: with alignment alone as reward,
fine-tuning on all different right answers taught the bundled model nothing. Answers are branches
(`training.learning.base.Bench.branch`): each costs one call of a model and not a rollout.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar, Literal

from pydantic import Field

from agents.roles import ROLES
from agents.schemas import Answer
from chimera.config.tree import Config
from chimera.core.errors import ConfigError
from chimera.core.quotes import missing_quotes
from chimera.data.tasks import Dataset
from chimera.run.policies import Part
from training.learning.base import Bench, Learned, PhasePlan
from training.learning.examples import Examples, Render, Selected, check_enough
from training.learning.experience import Call
from training.learning.fine_tuning import TuneSettings, check_batches
from training.learning.groups import BranchSettings, Valued, group_figures, grow
from training.learning.states import State, check_tasks, collect_states
from training.learning.values import Values, how_valued


class RejectionSettings(TuneSettings, BranchSettings):
    """Fine-tuning of roles on their own best answers, of several to each prompt."""

    answers: int = Field(default=8, ge=1, le=100_000, description="answers to each prompt")
    keep: int = Field(default=1, ge=1, le=100_000, description="answers to one prompt that are learned, at most")
    right: Literal["both", "label", "quotes", "any"] = Field(
        default="both",
        description="an answer is right if it says what the label says, if its quotes are true, or both; any: the best "
        "answers are learned, right or not",
    )


class Rejection:
    """Draws answers, keeps the right ones, and fine-tunes the roles' weights on them."""

    Settings = RejectionSettings
    part: ClassVar[Part | None] = "weights"

    def check(self, plan: PhasePlan, settings: RejectionSettings, config: Config, dataset: Dataset) -> None:
        check_batches(plan, settings)
        needed = {"both": ("stance", "quotes"), "label": ("stance",), "quotes": ("quotes",)}.get(settings.right, ())
        for role in plan.roles:
            lacking = [name for name in needed if getattr(ROLES[role].schema, name) is getattr(Answer, name)]
            if "stance" in lacking or lacking == ["quotes"] == list(needed):
                raise ConfigError(
                    f"{plan.name}.right={settings.right} cannot tell which answers of {role} are right: they have no "
                    f"{lacking[0]} (agents.schemas); set {plan.name}.right=any, or leave {role} out of "
                    f"{plan.name}.roles"
                )
        how_valued(plan, settings.reward, settings.value, config)
        check_tasks(plan, settings.tasks, dataset, config.seed)

    async def learn(self, plan: PhasePlan, settings: RejectionSettings, bench: Bench) -> Learned:
        return await bench.fine_tune(plan, settings, partial(draw, plan, settings, bench))


async def draw(plan: PhasePlan, settings: RejectionSettings, bench: Bench, render: Render) -> Selected:
    """Different right answers to recorded prompts, at most `keep` to each.

    Raises:
        RunError: Fewer than `min_examples` are left.
    """
    version = bench.versions[plan.slot]
    states = await collect_states(plan, settings.tasks, bench)
    values = Values(settings.reward, how_valued(plan, settings.reward, settings.value, bench.config), bench)
    groups = await grow(bench, values, states, settings.answers, seed=bench.config.seed, version=version)
    examples, right = Examples(render, settings.max_length), 0
    for group in groups:
        good = [valued for valued in group.answers if is_right(valued.call, group.state, settings.right)]
        right += len(good)
        examples.add(group.state, best_first(good), settings.keep)
    counts: dict[str, Any] = {**group_figures(groups), "branches/right": right}
    drawn, stale = counts["branches/answers"], sum(group.left_out["stale"] for group in groups)
    summary = f"{right} of {drawn} answers to {len(states)} prompts are right, {len(examples)} are learned"
    bench.view.note(f"{plan.name}: {summary}; {stale} answers by other weights than {version} are left out")
    check_enough(plan.name, summary, len(examples), settings.min_examples)
    return examples.selected({**counts, **bench.spent()})


def best_first(answers: Sequence[Valued]) -> list[Call]:
    """The answers by their worth, those of equal worth in the order in which they were drawn."""
    return [valued.call for valued in sorted(answers, key=lambda valued: -valued.worth.value)]


def is_right(call: Call, state: State, right: str) -> bool:
    """True if an answer to `state` can be read, says what is right, and quotes only what the role has read."""
    answer = call.answer
    if answer is None:
        return False
    fits = right in ("quotes", "any") or state.right(answer) == 1
    return fits and (right in ("label", "any") or not missing_quotes(answer.quotes, call.passages))
