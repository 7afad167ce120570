"""Comparing two policies on the same tasks and seeds: the mean difference with its bootstrap interval.

Pairing removes the difficulty of the tasks from the comparison, and with it most of the variance.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import comb

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, stdtrit


@dataclass(frozen=True, slots=True)
class Difference:
    """`after` minus `before` over `n` pairs: mean and the two ends of its interval, in the unit of the values."""

    before: float
    after: float
    mean: float
    low: float
    high: float
    n: int

    def dump(self) -> dict[str, float | int]:
        return asdict(self)


def paired_difference(
    before: Sequence[float], after: Sequence[float], *, confidence: float, resamples: int, seed: int
) -> Difference:
    """The mean paired difference with its bootstrap interval.

    Args:
        before: One value for each pair.
        after: The other values, in the same order.
        confidence: Coverage of the interval, such as 0.95.

    Raises:
        ValueError: The lengths differ, or there are fewer than two pairs.
    """
    if len(before) != len(after) or len(before) < 2:
        raise ValueError(f"a paired difference needs two or more pairs, got {len(before)} and {len(after)} values")
    differences = np.asarray(after, dtype=float) - np.asarray(before, dtype=float)
    drawn = np.random.default_rng(seed).integers(len(differences), size=(resamples, len(differences)))
    means = differences[drawn].mean(axis=1)
    n = len(differences)
    low, high = expanded_percentiles(means, n, confidence)
    mean = [float(np.mean(values)) for values in (before, after, differences)]
    return Difference(mean[0], mean[1], mean[2], low, high, n)


def expanded_percentiles(drawn: NDArray[np.float64], n: int, confidence: float) -> tuple[float, float]:
    """The two ends of a bootstrap interval, from the statistic of each resample of `n` cases, `n` at least 2.

    The ends are expanded percentiles (Hesterberg 2015, section 4.3). Plain percentiles are too narrow for small
    samples: the bootstrap's variance is biased, and they correspond to a normal interval instead of Student's.
    """
    tail = float(ndtr(np.sqrt(n / (n - 1)) * stdtrit(n - 1, (1 - confidence) / 2)))
    low, high = np.quantile(drawn, [tail, 1 - tail])
    return float(low), float(high)


def sign_test(gained: int, lost: int) -> float:
    """Two-sided exact p-value of the hypothesis that gains and losses are equally likely (McNemar's exact test).

    Pairs without a change do not count.
    """
    n, smaller = gained + lost, min(gained, lost)
    return min(1.0, 2 * sum(comb(n, k) for k in range(smaller + 1)) / 2**n)
