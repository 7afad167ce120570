"""What paired comparisons of two policies rest on: the ends of a bootstrap interval, and the exact sign test.

Pairing removes the difficulty of the tasks from the comparison, and with it most of the variance.
"""

from math import comb

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, stdtrit


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
