"""A choice among hypotheses that was logged, with what came of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class BanditEvent:
    """One choice among hypotheses and what came of it.

    Attributes:
        goal: The research question: with `hypotheses`, the context x.
        hypotheses: What there was to choose from, each with its `author`; the authors are the actions.
        author: The action a that was taken.
        preferred: What the supervisor's model would have chosen; None when it was not asked.
        propensities: Probability of each author under the policy that chose; None when it did not know them.
        policy: That policy's version.
        reward: The rollout's reward r.
        sources: The passages that the authors had seen, which also belong to x.
        task_id: The task.
    """

    goal: str
    hypotheses: Sequence[Mapping[str, Any]]
    author: str
    preferred: str | None
    propensities: Mapping[str, float] | None
    policy: str
    reward: float
    sources: Sequence[Mapping[str, str]]
    task_id: str | None = None
