"""STaR: roles learn from their right answers, and from answers that a hint made right, in rounds (arXiv 2203.14465).

    for round in 1 .. rounds:
        several answers of the live weights to each recorded prompt; of each the right ones worth most are kept
        where none is right: asked again with the label as a hint in the prompt; right answers are kept
        the FIRST weights of the phase are fine-tuned on what was kept, so no round's mistakes pile up
        the new weights go live as <slot>@<phase>-<round>

What is learned is the recorded prompt with the answer: the hint is in no example. A continued run finds recorded
answers and finished rounds, and goes on after them.
"""

import asyncio
import json
import random
from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar

from pydantic import Field

from agents.roles import ROLES
from agents.schemas import Answer
from agents.visit.prompting import Message, dump
from chimera.config.tree import Config
from chimera.core.errors import ConfigError
from chimera.data.tasks import Dataset
from chimera.run.policies import Part
from training.algorithms.rejection import RejectionSettings, best_first, is_right
from training.learning.base import Bench, Learned, PhasePlan
from training.learning.examples import Examples, FirstWeights, Render, Selected, check_enough
from training.learning.fine_tuning import check_batches
from training.learning.groups import AnswerGroup, Valued, answer_group, group_figures, grow
from training.learning.states import State, check_tasks, collect_states
from training.learning.values import Values, how_valued

HINT = "hint"
"""The key of the label in the JSON object of a prompt. A model that was never shown it seldom makes use of it."""


class StarSettings(RejectionSettings):
    """Rounds of fine-tuning on right answers. Tasks of its own are answered once, by the first weights."""

    rounds: int = Field(default=2, ge=1, le=1000, description="rounds; each answers with the last one's weights")
    hints: int = Field(
        default=4, ge=0, le=100_000, description="answers with the label as a hint, to prompts without a right answer"
    )


class Star:
    """Rounds of drawing, keeping, rationalising, and fine-tuning the phase's first weights."""

    Settings = StarSettings
    part: ClassVar[Part | None] = "weights"

    def check(self, plan: PhasePlan, settings: StarSettings, config: Config, dataset: Dataset) -> None:
        check_batches(plan, settings)
        if settings.right not in ("both", "label"):
            raise ConfigError(
                f"{plan.name}.right={settings.right} does not ask what the label says, and {plan.name} keeps answers "
                f"that say it: set {plan.name}.right to both or label, or use the algorithm rejection"
            )
        for role in plan.roles:
            if ROLES[role].schema.stance is Answer.stance:
                raise ConfigError(
                    f"{plan.name} cannot tell which answers of {role} are right: they say nothing to the question "
                    f"(agents.schemas); leave {role} out of {plan.name}.roles"
                )
        how_valued(plan, settings.reward, settings.value, config)
        check_tasks(plan, settings.tasks, dataset, config.seed)

    async def learn(self, plan: PhasePlan, settings: StarSettings, bench: Bench) -> Learned:
        start, learned = FirstWeights(bench.weights(plan.slot), bench.versions[plan.slot]), Learned()
        figures: dict[str, Any] = {}
        states = await collect_states(plan, settings.tasks, bench)
        for number in range(1, settings.rounds + 1):
            if learned.policy is not None:
                await bench.publish(learned.policy)
            name, chosen = f"{plan.name}-{number}", partial(draw, plan, settings, bench, states, number)
            learned = await bench.fine_tune(plan, settings, chosen, name=name, start=start)
            figures |= {f"round_{number}/{key}": value for key, value in learned.figures.items()}
        return Learned({"rounds": settings.rounds, **figures, **bench.spent()}, learned.policy)


async def draw(
    plan: PhasePlan, settings: StarSettings, bench: Bench, states: Sequence[State], number: int, render: Render
) -> Selected:
    """One round's examples: different right answers of the live weights to `states`, at most `keep` to each.

    Raises:
        RunError: Fewer than `min_examples` are left.
    """
    version, title = bench.versions[plan.slot], f"{plan.name}: round {number}"
    values = Values(settings.reward, how_valued(plan, settings.reward, settings.value, bench.config), bench)
    groups = await grow(bench, values, states, settings.answers, seed=bench.config.seed, version=version)
    good = {group.state.name: _right(group.state, group.answers, settings) for group in groups}
    unsolved = [group.state for group in groups if not good[group.state.name]]
    helped = await asyncio.gather(*(hinted(bench, values, state, settings.hints, version) for state in unsolved))
    from_hints = {group.state.name: _right(group.state, group.answers, settings) for group in helped}
    examples = Examples(render, settings.max_length)
    for group in groups:
        name = group.state.name
        examples.add(group.state, best_first(good[name] or from_hints[name]), settings.keep)
    counts: dict[str, Any] = {
        **group_figures(groups),
        "branches/right": sum(map(len, good.values())),
        "unsolved": len(unsolved),
        "hinted/answers": sum(len(group.answers) for group in helped),
        **{f"hinted/{why}": sum(group.left_out[why] for group in helped) for why in ("stale", "unvalued")},
        "hinted/right": sum(map(len, from_hints.values())),
        "hinted/solved": sum(map(bool, from_hints.values())),
    }
    summary = (
        f"{len(states) - len(unsolved)} of {len(states)} prompts have a right answer, a hint gives "
        f"{counts['hinted/solved']} more, {len(examples)} answers are learned"
    )
    stale = sum(group.left_out["stale"] for group in (*groups, *helped))
    bench.view.note(f"{title}: {summary}; {stale} answers by other weights than {version} are left out")
    check_enough(plan.name, summary, len(examples), settings.min_examples)
    return examples.selected(counts)


def _right(state: State, answers: Sequence[Valued], settings: StarSettings) -> list[Valued]:
    return [valued for valued in answers if is_right(valued.call, state, settings.right)]


async def hinted(bench: Bench, values: Values, state: State, k: int, version: str) -> AnswerGroup:
    """`k` answers of the live weights to the prompt with the label as a hint, as answers to the prompt itself.

    They have no token ids: they were sampled after other tokens than those of the prompt.

    Args:
        version: The slot's version that is live. An answer by another is left out.

    Raises:
        ModelError: The model's server failed.
    """
    call = state.call
    assert call.asked is not None  # States are calls of a trace.
    messages = with_hint(call.asked.messages, state.label)
    offered = {"tools": call.asked.tools or (), "response_format": call.asked.response_format}
    slot = bench.config.slot(call.role)
    draws = [random.Random(f"{bench.config.seed}/{HINT}/{state.name}/{number}").getrandbits(31) for number in range(k)]
    completions = await asyncio.gather(*(bench.ask(slot, messages, seed=seed, **offered) for seed in draws))
    return await answer_group(values, state, [call.answered(completion) for completion in completions], version)


def with_hint(messages: Sequence[Message], label: str) -> list[Message]:
    """The messages of a prompt with one more key in the JSON object of its first user message, before the goal."""
    copies = [dict(message) for message in messages]
    first = next(message for message in copies if message["role"] == "user")
    payload = json.loads(first["content"])
    goal = payload.pop("goal")
    first["content"] = dump({**payload, HINT: label, "goal": goal})
    return copies
