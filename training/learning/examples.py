"""What a fine-tuning (`training.learning.base.Bench.fine_tune`) learns from: conversations as rows of tokens."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from chimera.core.errors import RunError
from evaluation.records.rollouts import RolloutRecord
from training.learning.experience import Call, Conversation
from training.learning.states import State

NOT_LEARNED = -100
"""PyTorch's label for tokens without a loss."""
Key = tuple[str, str, int]
"""Phase, task and repeat of a rollout. Unlike the id it is equal when a run is repeated, so it breaks ties."""


@dataclass(frozen=True, slots=True)
class Row:
    """One sequence to train on: token ids (T) and, for each, whether it is learned (T)."""

    ids: tuple[int, ...]
    learned: tuple[bool, ...]

    @property
    def labels(self) -> list[int]:
        """The ids where they are learned, NOT_LEARNED elsewhere (T)."""
        return [token if learned else NOT_LEARNED for token, learned in zip(self.ids, self.learned, strict=True)]


Render = Callable[[Conversation], tuple[Row, ...]]
"""Renders a conversation for the model that learns. Turns share a row if the tokens of one continue the other's."""


@dataclass(frozen=True, slots=True)
class FirstWeights:
    """The weights that a fine-tuning starts from: their folder and their version."""

    folder: Path
    version: str


class TrainingData(Protocol):
    """What one fine-tuning learns from; its length is the number of conversations or pairs.

    Attributes:
        figures: Counts of how it was chosen, for the phase's figures.
    """

    @property
    def figures(self) -> Mapping[str, Any]: ...

    def __len__(self) -> int: ...

    def lines(self) -> Sequence[Mapping[str, Any]]:
        """JSON objects with `input_ids` and `labels`, one for each row; of pairs see `Bench.fine_tune`."""
        ...

    def held_out(self) -> Sequence[Mapping[str, Any]]:
        """The same of pairs that are not trained on."""
        ...


@dataclass(frozen=True, slots=True)
class Candidate:
    """One conversation of a rollout that has a reward."""

    record: RolloutRecord
    reward: float
    conversation: Conversation

    @property
    def role(self) -> str:
        return self.conversation.role

    @property
    def key(self) -> Key:
        return self.record.phase, self.record.task_id, self.record.repeat

    @property
    def place(self) -> tuple[str, Key, int]:
        """Sort key that does not depend on which rollout ended first."""
        return self.role, self.key, self.conversation.visit


@dataclass(frozen=True, slots=True)
class Example:
    """One selected conversation as token rows."""

    candidate: Candidate
    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True)
class Selected:
    """Selected examples, a `TrainingData`, in an order that depends only on the rollouts."""

    examples: tuple[Example, ...]
    figures: Mapping[str, Any]

    def __len__(self) -> int:
        return len(self.examples)

    def lines(self) -> list[dict[str, Any]]:
        """One line for each row of tokens, with the rollout that it comes from."""
        return [
            {
                "phase": example.candidate.record.phase,
                "task_id": example.candidate.record.task_id,
                "repeat": example.candidate.record.repeat,
                "role": example.candidate.role,
                "reward": example.candidate.reward,
                "input_ids": row.ids,
                "labels": row.labels,
            }
            for example in self.examples
            for row in example.rows
        ]

    def held_out(self) -> list[dict[str, Any]]:
        return []


class Examples:
    """Collects different answers to recorded prompts that are short enough, in the order in which they are added.

    Attributes:
        too_long: How many were left out for their length.
    """

    def __init__(self, render: Render, longest: int) -> None:
        self._render = render
        self._longest = longest
        self._by_rows: dict[tuple[Row, ...], Example] = {}
        self.too_long = 0

    def __len__(self) -> int:
        return len(self._by_rows)

    def add(self, state: State, answers: Iterable[Call], most: int) -> None:
        """Add readable answers to the prompt of `state`, the first `most` that are new and short enough."""
        record = state.episode.record
        assert record.reward is not None  # Others are no states.
        for answer in answers:
            if most == 0:
                break
            talk = state.conversation.answered_by(answer)
            rows = self._render(talk)
            if max(len(row.ids) for row in rows) > self._longest:
                self.too_long += 1
            elif rows not in self._by_rows:
                self._by_rows[rows] = Example(Candidate(record, record.reward, talk), rows)
                most -= 1

    def selected(self, figures: Mapping[str, Any]) -> Selected:
        examples = tuple(self._by_rows.values())
        of_role = dict(Counter(example.candidate.role for example in examples))
        counts = {"too_long": self.too_long, "selected": len(examples), "selected_by_role": of_role}
        return Selected(examples, {**figures, **counts})


def check_enough(phase: str, summary: str, count: int, least: int, *, draws: bool = True) -> None:
    """Raise RunError if a phase has too few examples of answers to prompts.

    Args:
        summary: What it has, in words.
        draws: True if more answers to each prompt would give more examples.
    """
    if count < least:
        more = f"raise {phase}.answers, " if draws else ""
        raise RunError(
            f"{phase}: {summary}, and {phase}.min_examples is {least}: lower it, {more}or have these weights answer "
            f"more tasks ({phase}.tasks)"
        )
