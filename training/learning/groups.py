"""Groups of answers to one state, each with its worth: what algorithms learn from without running the society again."""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import correlation, fmean
from typing import Literal

from pydantic import Field, field_validator

from chimera.config.pipeline import PhaseSettings
from training.learning.base import Bench
from training.learning.experience import Call
from training.learning.states import State
from training.learning.values import RELATIVE, Values, Worth


class BranchSettings(PhaseSettings):
    """Settings of algorithms that learn from several answers to recorded prompts."""

    tasks: int = Field(
        default=0, ge=0, le=1_000_000, description="training tasks to answer first; 0 takes all earlier rollouts"
    )
    reward: dict[str, float] = Field(
        default={"alignment": 1.0},
        description="weights of the parts that its roles earn; empty: the whole reward; on the command line, parts of "
        "a file or a resumed run that are not named stay, and 0 leaves one out",
    )
    value: Literal["auto", "direct", "replay"] = Field(
        default="auto",
        description="direct: an answer's parts are read from itself; replay: from the rest of the society, which runs "
        "with it; auto: direct where the parts allow it",
    )

    def needs_rollouts(self) -> bool:
        return self.tasks == 0

    @field_validator("reward")
    @classmethod
    def _without_zeros(cls, reward: dict[str, float]) -> dict[str, float]:
        weights = {name: weight for name, weight in reward.items() if weight}
        if reward and not weights:
            raise ValueError(f"{reward} leaves no part: give one a weight, or set {{}} for the whole reward")
        return weights


@dataclass(frozen=True, slots=True)
class Valued:
    """One answer and its worth."""

    call: Call
    worth: Worth


@dataclass(frozen=True, slots=True)
class AnswerGroup:
    """The answers to one state that have a worth, all by the weights that were live.

    Attributes:
        answers: The answers, in the order in which they were drawn.
        left_out: Numbers of answers without worth: `stale` by other weights, `unvalued` without a value.
    """

    state: State
    answers: tuple[Valued, ...]
    left_out: Mapping[str, int]

    @property
    def informs(self) -> bool:
        """True if its answers differ in value; nothing can be learned from comparing equals."""
        return len({valued.worth.value for valued in self.answers}) > 1

    @property
    def different(self) -> list[Valued]:
        """The answers whose tokens differ, in the order in which they were drawn."""
        return list({valued.call.response_ids: valued for valued in reversed(self.answers)}.values())[::-1]

    @property
    def right(self) -> float | None:
        """Share of answers that are right, which one that cannot be read is not; None without any."""
        right = self.state.right
        hits = [(answer := valued.call.answer) is not None and right(answer) == 1 for valued in self.answers]
        return fmean(hits) if hits else None


async def grow(
    bench: Bench, values: Values, states: Sequence[State], k: int, *, seed: int, version: str
) -> list[AnswerGroup]:
    """`k` answers to each state, by the weights that are live, with their worth; in the order of the states.

    Args:
        states: Of roles that use one slot.
        seed: The same seed, weights and states give the same answers.
        version: The slot's version that is live. An answer by another is left out.

    Raises:
        RunError: A call cannot be asked again.
        ModelError: The model's server failed.
    """

    async def group(state: State) -> AnswerGroup:
        answers = await answer_group(values, state, await bench.branch(state.call, k, seed=seed), version)
        nonlocal done
        done += 1
        advance(done, "")
        return answers

    done = 0
    with bench.view.work(f"{k} answers to each prompt", len(states)) as advance:
        return list(await asyncio.gather(*map(group, states)))


async def answer_group(values: Values, state: State, drawn: Sequence[Call], version: str) -> AnswerGroup:
    """The answers to a state that were drawn from weights of that version, with their worth."""
    answers = [call for call in drawn if call.weights_version == version]
    worths = await values.of_group(state, answers)
    having = tuple(Valued(call, worth) for call, worth in zip(answers, worths, strict=True) if worth is not None)
    return AnswerGroup(state, having, {"stale": len(drawn) - len(answers), "unvalued": len(answers) - len(having)})


def group_figures(groups: Sequence[AnswerGroup]) -> dict[str, float]:
    """Counts of states and answers, and means over answers, for a phase's metrics."""
    answers = [valued for group in groups for valued in group.answers]
    left_out = Counter[str]()
    for group in groups:
        left_out.update(group.left_out)
    parts: dict[str, list[float]] = {}
    for valued in answers:
        for name, value in valued.worth.parts.items():
            parts.setdefault(name, []).append(value)
    return {
        "branches/states": len(groups),
        "branches/informative": sum(group.informs for group in groups),
        "branches/answers": len(answers),
        **{f"branches/{name}": count for name, count in left_out.items()},
        **{f"branches/how/{how}": count for how, count in Counter(valued.worth.how for valued in answers).items()},
        **({"branches/value": fmean(valued.worth.value for valued in answers)} if answers else {}),
        **{f"branches/parts/{name}": fmean(amounts) for name, amounts in parts.items()},
        **_about_judge(answers),
    }


def _about_judge(answers: Sequence[Valued]) -> dict[str, float]:
    """Of the relative judge how far its scores change with an answer's place, and how they go with its length."""
    compared = [valued for valued in answers if valued.worth.moved is not None]
    if len(compared) < 2:
        return {}
    moved = fmean(valued.worth.moved or 0.0 for valued in compared)
    lengths = [len(valued.call.answer.model_dump_json()) if valued.call.answer else 0 for valued in compared]
    scores = [valued.worth.parts[RELATIVE] for valued in compared]
    varies = len(set(lengths)) > 1 and len(set(scores)) > 1
    length = {"branches/judge/length": correlation(lengths, scores)} if varies else {}
    return {"branches/judge/place": moved, **length}
