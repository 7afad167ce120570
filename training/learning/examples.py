"""Collects examples to imitate from answers to recorded prompts, for algorithms that choose the answers themselves."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from chimera.core.errors import RunError
from training.algorithms.selection import Candidate, Example, Selected
from training.learning.experience import Call, Conversation
from training.learning.states import State
from training.tune.render import Row


class Examples:
    """Different examples that are short enough, in the order in which they are added.

    Attributes:
        too_long: How many were left out for their length.
    """

    def __init__(self, render: Callable[[Conversation], tuple[Row, ...]], longest: int) -> None:
        self._render = render
        self._longest = longest
        self._found: dict[tuple[Row, ...], Example] = {}
        self.too_long = 0

    def __len__(self) -> int:
        return len(self._found)

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
            elif rows not in self._found:
                self._found[rows] = Example(Candidate(record, record.reward, talk), rows)
                most -= 1

    def selected(self, figures: Mapping[str, Any]) -> Selected:
        examples = tuple(self._found.values())
        of_role = dict(Counter(example.candidate.role for example in examples))
        counts = {"too_long": self.too_long, "selected": len(examples), "selected_by_role": of_role}
        return Selected(examples, {**figures, **counts})


def check_enough(phase: str, told: str, found: int, least: int, *, draws: bool = True) -> None:
    """Raise RunError if a phase has too few examples of answers to prompts.

    Args:
        told: What it has, in words.
        draws: Whether more answers to each prompt would give more examples.
    """
    if found < least:
        more = f"raise {phase}.answers, " if draws else ""
        raise RunError(
            f"{phase}: {told}, and {phase}.min_examples is {least}: lower it, {more}or have these weights answer more "
            f"tasks ({phase}.tasks)"
        )
