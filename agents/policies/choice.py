"""Who selects a hypothesis in one rollout, and with which probabilities.

The supervisor's model chooses until the bandit is trained; then the learned policy chooses. In training rollouts the
choice is mixed with uniform exploration: with exploration share e and K hypotheses, an author with probability q gets
propensity e / K + (1 - e) q. The choice is drawn from exactly these propensities, and they are logged, so off-policy
estimates need no estimated propensities.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

from agents.context import Candidates, Choice, Selector, SupervisorChoice

if TYPE_CHECKING:
    from agents.policies.bandit import BanditPolicy


@dataclass(frozen=True, slots=True)
class SelectionSpec:
    """Which selector a rollout uses.

    Attributes:
        policy: Version of the learned policy; None if the supervisor's model chooses.
        folder: Absolute path of that policy; None if the supervisor's model chooses.
        exploration: Share e of choices that are drawn uniformly.
    """

    policy: str | None
    folder: str | None
    exploration: float


def make_selector(spec: SelectionSpec, *, greedy: bool = False) -> Selector:
    """Make the selector that `spec` describes. A process reads a learned policy from disk once.

    Args:
        greedy: No exploration: take the model's choice, or the policy's best action. For held-out tasks.

    Raises:
        RunError: The policy's folder cannot be read.
    """
    if spec.policy is None or spec.folder is None:
        return SupervisorChoice() if greedy else ExploringSupervisor(spec.exploration)
    return LearnedSelector(_load(spec.folder, spec.policy), spec.policy, spec.exploration, greedy=greedy)


@lru_cache(maxsize=4)
def _load(folder: str, version: str) -> "BanditPolicy":
    from agents.policies.bandit import load_policy

    return load_policy(Path(folder))


class ExploringSupervisor:
    """Mixes the choice of the supervisor's model with uniform exploration of share `exploration`."""

    def __init__(self, exploration: float) -> None:
        self._exploration = exploration

    def propose(self, candidates: Candidates, seed: int | None) -> None:
        return

    def select(self, candidates: Candidates, preferred: str, seed: int | None) -> Choice:
        """Draw from the mixture of `preferred` and uniform chances."""
        authors = [str(hypothesis["author"]) for hypothesis in candidates.hypotheses]
        certain = {author: float(author == preferred) for author in authors}
        return draw(explored(certain, self._exploration), "supervisor", seed)


class LearnedSelector:
    """Mixes a learned policy with uniform exploration of share `exploration`; `greedy`: its best action."""

    def __init__(self, policy: "BanditPolicy", version: str, exploration: float, *, greedy: bool) -> None:
        self._policy = policy
        self._version = version
        self._exploration = exploration
        self._greedy = greedy

    def propose(self, candidates: Candidates, seed: int | None) -> Choice:
        authors = [str(hypothesis["author"]) for hypothesis in candidates.hypotheses]
        weights = self._policy.probabilities(candidates, greedy=self._greedy)
        probabilities = dict(zip(authors, map(float, weights), strict=True))
        share = 0.0 if self._greedy else self._exploration
        return draw(explored(probabilities, share), self._version, seed)

    def select(self, candidates: Candidates, preferred: str, seed: int | None) -> Choice:
        """The same as `propose`: this policy ignores the preference of the supervisor's model."""
        return self.propose(candidates, seed)


def explored(probabilities: Mapping[str, float], share: float) -> dict[str, float]:
    """Mix `probabilities` with uniform chances: `share` / K + (1 - `share`) q for each author."""
    even = share / len(probabilities)
    return {author: even + (1.0 - share) * weight for author, weight in probabilities.items()}


def draw(propensities: Mapping[str, float], policy: str, seed: int | None) -> Choice:
    """Draw one author with exactly `propensities`; the same seed of the run gives the same author."""
    at = Random(None if seed is None else f"{seed}/selection").random()
    below = 0.0
    author = ""
    for candidate, propensity in propensities.items():
        if propensity > 0.0:
            author = candidate
            below += propensity
            if at < below:
                break
    return Choice(author, policy, dict(propensities))
