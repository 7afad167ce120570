"""A logged choice, with its reward."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self


@dataclass(frozen=True, slots=True)
class BanditEvent:
    """One logged choice among hypotheses, or whether juniors search once more, with its reward.

    Attributes:
        goal: The research question; part of the context x.
        hypotheses: The juniors' hypotheses, each with its `author`; part of x. The authors are the actions. Where
            findings are combined: `agents.findings.SEARCH_AGAIN`.
        author: The action a that was taken.
        preferred: The author that the supervisor's model preferred; None if it was not asked.
        propensities: Probability of each author under the policy that chose; None if not known.
        reward: The rollout's reward r.
        sources: The passages that the authors had seen; part of x.
        hindsight: What the rollout would have earned with each author's hypothesis, by author, if the answer had been
            that hypothesis's and nothing else had changed; None if that is not known.
        cues: How things stood in numbers, where findings are combined; part of x.
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
    hindsight: Mapping[str, float] | None = None
    cues: Mapping[str, float] = field(default_factory=dict)

    def less(self, cost: float) -> Self:
        """The same choice where the rollout would have cost as much more, whatever was chosen."""
        hindsight = self.hindsight and {author: reward - cost for author, reward in self.hindsight.items()}
        return replace(self, reward=self.reward - cost, hindsight=hindsight)
