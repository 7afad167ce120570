"""Pairs of answers to one prompt, of which one is preferred. Pure.

Both answers of a pair have the same prompt tokens, because they are branches of one recorded call.
"""

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from training.learning.experience import Call
from training.learning.groups import AnswerGroup
from training.learning.states import State

Kind = Literal["worth", "keeps"]


@dataclass(frozen=True, slots=True)
class AnswerPair:
    """Two answers to one state.

    Attributes:
        kind: worth: the preferred answer is worth more; keeps: it keeps a right answer that the prompt handed over,
            where the other one changes it.
    """

    state: State
    chosen: Call
    rejected: Call
    kind: Kind

    @property
    def length(self) -> int:
        """Tokens of the prompt with the longer answer."""
        return len(self.state.call.prompt_ids) + max(len(self.chosen.response_ids), len(self.rejected.response_ids))

    def row(self) -> dict[str, Any]:
        """The pair as the trainer reads it: token ids as the server read and sampled them, and where it comes from."""
        record = self.state.episode.record
        return {
            **{"phase": record.phase, "task_id": record.task_id, "repeat": record.repeat},
            **{"role": self.state.call.role, "kind": self.kind},
            "prompt_ids": self.state.call.prompt_ids,
            "chosen_ids": self.chosen.response_ids,
            "rejected_ids": self.rejected.response_ids,
        }


@dataclass(frozen=True, slots=True)
class PairSet:
    """A `training.learning.examples.TrainingData` of pairs.

    Attributes:
        held: Pairs that are not trained on.
    """

    train: tuple[AnswerPair, ...]
    held: tuple[AnswerPair, ...]
    figures: Mapping[str, Any]

    def __len__(self) -> int:
        return len(self.train)

    def lines(self) -> list[dict[str, Any]]:
        return [pair.row() for pair in self.train]

    def held_out(self) -> list[dict[str, Any]]:
        return [pair.row() for pair in self.held]


def by_worth(group: AnswerGroup, most: int) -> list[AnswerPair]:
    """At most `most` pairs of a state: the best answer before the worst, the second best before the second worst...

    No answer stands in two pairs, and no pair has answers of equal worth.
    """
    ranked = sorted(group.different, key=lambda valued: -valued.worth.value)
    ends = zip(ranked[: len(ranked) // 2], reversed(ranked), strict=False)
    pairs = [(best, worst) for best, worst in ends if best.worth.value > worst.worth.value]
    return [AnswerPair(group.state, best.call, worst.call, "worth") for best, worst in pairs[:most]]


def that_keep(group: AnswerGroup) -> Iterator[AnswerPair]:
    """Pairs of an answer that keeps the right hypothesis of the prompt and one that changes it, the clearest first.

    None where the prompt hands over none, or a wrong one. An answer that cannot be read is in no such pair.
    """
    handed = group.state.call.handed
    if handed is None or handed != group.state.label:
        return
    ranked = sorted(group.different, key=lambda valued: -valued.worth.value)
    stances = [(valued.call, answer.stance) for valued in ranked if (answer := valued.call.answer) is not None]
    keeping = [call for call, stance in stances if stance == handed]
    for changing in (call for call, stance in reversed(stances) if stance != handed):
        for call in keeping:
            yield AnswerPair(group.state, call, changing, "keeps")


def all_pairs(groups: Sequence[AnswerGroup], most: int, keep_right: float, seed: int) -> list[AnswerPair]:
    """Pairs by worth of all groups, and beside them one of each state that keeps what is right.

    Args:
        most: Pairs by worth of one state, at most.
        keep_right: Number of pairs that keep what is right, at most, as a share of the others. If there are more, it is
            drawn which ones are left out.
    """
    worth = [pair for group in groups for pair in by_worth(group, most)]
    identities = {_identity(pair) for pair in worth}
    further = (next((pair for pair in that_keep(group) if _identity(pair) not in identities), None) for group in groups)
    keeping = [pair for pair in further if pair is not None]
    limit = round(keep_right * len(worth))
    if len(keeping) > limit:
        drawn = sorted(random.Random(f"{seed}/keep").sample(range(len(keeping)), limit))
        keeping = [keeping[place] for place in drawn]
    return worth + keeping


def hold_out(states: Iterable[State], share: float, seed: int) -> Callable[[AnswerPair], bool]:
    """Draws the states whose pairs are not trained on; returns what tells such pairs.

    Whole tasks are drawn until the share of states is reached: roles of one task read the same text.
    """
    of_task: dict[str, int] = {}
    for state in states:
        task = state.episode.record.task_id
        of_task[task] = of_task.get(task, 0) + 1
    tasks, left = sorted(of_task), share * sum(of_task.values())
    random.Random(f"{seed}/held out").shuffle(tasks)
    held: set[str] = set()
    for task in tasks:
        if left <= 0:
            break
        held.add(task)
        left -= of_task[task]
    return lambda pair: pair.state.episode.record.task_id in held


def _identity(pair: AnswerPair) -> tuple[object, ...]:
    return pair.state.name, pair.chosen.response_ids, pair.rejected.response_ids
