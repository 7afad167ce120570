"""Estimates a policy's reward from actions that other policies took and logged with propensities.

For n choices with context x_i, action a_i, propensity p_i of that action, reward r_i, the target policy's probability
pi(a | x) and a model q(x, a) of rewards, with weights w_i = pi(a_i | x_i) / p_i:

    IPS    mean_i w_i r_i                                                   (Horvitz and Thompson 1952)
    SNIPS  sum_i w_i r_i / sum_i w_i                                        (Swaminathan and Joachims 2015)
    DR     mean_i [ sum_a pi(a | x_i) q(x_i, a) + w_i (r_i - q(x_i, a_i)) ]  (Dudik et al. 2014)

IPS is unbiased if every action that the target may take has a propensity above 0. DR is unbiased too, for any q that
was not learned from these choices, and has less variance with a good q. SNIPS is consistent, and adding a constant to
all rewards shifts it by that constant. Intervals are normal, from the variance of the mean of each estimate's terms.
Choices on one task are dependent, so their terms are summed first (cluster-robust variance).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.floating[Any]]


@dataclass(frozen=True, slots=True)
class Estimate:
    """A policy's expected reward per choice, with the ends of its interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Log:
    """Logged choices among the same number K of actions.

    Attributes:
        actions: Index of the action taken, (n,).
        propensities: Probability of that action under the policy that drew it, (n,), above 0.
        rewards: Reward of each choice, (n,).
        clusters: Cluster name of each choice, (n,). Choices of one cluster are dependent.

    Raises:
        ValueError: Sizes differ, a propensity is not in (0, 1], or there are fewer than two clusters.
    """

    actions: NDArray[np.intp]
    propensities: Array
    rewards: Array
    clusters: Sequence[str]

    @classmethod
    def of(
        cls, actions: ArrayLike, propensities: ArrayLike, rewards: ArrayLike, clusters: Sequence[str] | None = None
    ) -> "Log":
        """Make a log from array-likes. Without `clusters` all choices are independent."""
        taken = np.asarray(actions, dtype=np.intp)
        names = [str(number) for number in range(len(taken))] if clusters is None else list(clusters)
        return cls(taken, np.asarray(propensities, dtype=float), np.asarray(rewards, dtype=float), names)

    def __post_init__(self) -> None:
        sizes = {len(self.actions), len(self.propensities), len(self.rewards), len(self.clusters)}
        if len(sizes) != 1:
            raise ValueError(f"actions, propensities, rewards and clusters differ in number: {sorted(sizes)}")
        if not ((self.propensities > 0) & (self.propensities <= 1)).all():
            raise ValueError(f"a logged propensity must be in (0, 1], the least is {self.propensities.min()}")
        if len(set(self.clusters)) < 2:
            raise ValueError("an interval needs choices from at least two clusters")

    def weights(self, target: Array) -> Array:
        """The weights w (n,), given the target policy's probabilities (n, K)."""
        return target[np.arange(len(self.actions)), self.actions] / self.propensities


def effective_sample_size(weights: Array) -> float:
    """Effective number of choices behind an estimate: (sum w)^2 / sum w^2 (Kish 1965); 0 if all weights are 0."""
    squares = float(np.square(weights).sum())
    return float(weights.sum()) ** 2 / squares if squares > 0 else 0.0


def ips(log: Log, target: Array, *, confidence: float = 0.95) -> Estimate:
    """Estimate by inverse propensity scoring; `target` holds pi(a | x), (n, K)."""
    return _mean(log.weights(target) * log.rewards, log, confidence)


def snips(log: Log, target: Array, *, confidence: float = 0.95) -> Estimate:
    """Estimate by self-normalised inverse propensity scoring; its interval linearises the ratio.

    Raises:
        ValueError: The target takes none of the logged actions.
    """
    weights = log.weights(target)
    if not weights.sum() > 0:
        raise ValueError("the target policy takes none of the logged actions: nothing is known of its value")
    value = float((weights * log.rewards).sum() / weights.sum())
    around = weights * (log.rewards - value) / weights.mean()
    deviation = _mean(around, log, confidence)
    return Estimate(value, value + deviation.low, value + deviation.high)


def doubly_robust(log: Log, target: Array, outcomes: Array, *, confidence: float = 0.95) -> Estimate:
    """The doubly robust estimate; `outcomes` holds q(x, a), (n, K)."""
    return _mean(doubly_robust_terms(log, target, outcomes), log, confidence)


def doubly_robust_gain(
    log: Log, target: Array, reference: Array, outcomes: Array, *, confidence: float = 0.95
) -> Estimate:
    """How much more `target` earns than `reference` (n, K): the paired difference of their doubly robust terms."""
    difference = doubly_robust_terms(log, target, outcomes) - doubly_robust_terms(log, reference, outcomes)
    return _mean(difference, log, confidence)


def doubly_robust_terms(log: Log, target: Array, outcomes: Array) -> Array:
    """The terms (n,) whose mean is the doubly robust estimate."""
    logged = outcomes[np.arange(len(log.actions)), log.actions]
    return (target * outcomes).sum(axis=1) + log.weights(target) * (log.rewards - logged)


def on_policy(log: Log, *, confidence: float = 0.95) -> Estimate:
    """Mean reward of the logging policies."""
    return _mean(log.rewards, log, confidence)


def _mean(terms: Array, log: Log, confidence: float) -> Estimate:
    """Mean of the terms, with a cluster-robust normal interval."""
    mean = float(terms.mean())
    _, cluster = np.unique(np.asarray(log.clusters), return_inverse=True)
    sums = np.bincount(cluster, weights=terms - mean)
    variance = len(sums) / (len(sums) - 1) * float(np.square(sums).sum()) / len(terms) ** 2
    half = NormalDist().inv_cdf((1 + confidence) / 2) * variance**0.5
    return Estimate(mean, mean - half, mean + half)
