"""One logged choice of the supervisor: what the bandit learns from."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from training.rollouts import RolloutRecord

Hypotheses = tuple[Mapping[str, Any], ...]
"""What the juniors proposed: "author", "evidence", "comparison", "claim" and "answer" of each."""


@dataclass(frozen=True, slots=True)
class BanditEvent:
    """One choice and what came of it: context x (`goal`, `hypotheses`), action a (`author`), reward r.

    Attributes:
        task_id: The task; choices on one task are not independent of each other.
        goal: The question.
        hypotheses: The actions that could have been taken.
        author: The action a that was taken.
        preferred: What the supervisor's model preferred; None when it was not asked.
        propensities: Probability of each author under the policy that drew a; None when it is not known.
        policy: Who drew a.
        reward: The rollout's reward r.
    """

    task_id: str
    goal: str
    hypotheses: Hypotheses
    author: str
    preferred: str | None
    propensities: Mapping[str, float] | None
    policy: str
    reward: float

    @property
    def authors(self) -> tuple[str, ...]:
        """The actions, in the order of `hypotheses`."""
        return tuple(str(hypothesis["author"]) for hypothesis in self.hypotheses)


def event_of(record: RolloutRecord) -> BanditEvent | None:
    """The choice in a finished rollout; None when it failed before a choice, or has no reward to learn from."""
    if record.reward is None or "selection" not in record.outputs:
        return None
    selection = record.outputs["selection"]
    return BanditEvent(
        task_id=record.task_id,
        goal=record.outputs["research_goal"],
        hypotheses=tuple(record.outputs["initial_hypotheses"]),
        author=selection["author"],
        preferred=selection["preferred"],
        propensities=selection["propensities"],
        policy=selection["policy"],
        reward=record.reward,
    )


def events_of(records: Iterable[RolloutRecord]) -> list[BanditEvent]:
    """The choices of `records`, in their order; rollouts without one are left out."""
    return [event for record in records if (event := event_of(record)) is not None]
