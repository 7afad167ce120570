"""Operating characteristic of the gate's rule: how often it rolls back a policy with a given true change.

The changes of the tasks are resampled and shifted to a true mean, and the rule is applied to each resample. "Worse" is
decided by a t-test here, which agrees with the gate's tests for this number of tasks.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from chimera.config.tree import Config
from evaluation.records.rollouts import RolloutRecord
from training.summary import aligned

LOSSES = (0.03, 0.05, 0.10)
GAINS = (0.0, 0.05, 0.08)
"""True changes in the share of right answers for which the gate reports its power."""
TYPICAL_DEVIATION = 0.475
"""Standard deviation of a task's change in right answers between two stages of recorded runs: 0.45 to 0.5."""
DRAWS = 4000


@dataclass(frozen=True, slots=True)
class Power:
    """How often the gate would roll back a stage.

    Attributes:
        tasks: Number of compared tasks.
        deviation: Standard deviation of a task's change in right answers.
        rolled_back: Share of cases that are rolled back, by true change in the share of right answers.
    """

    tasks: int
    deviation: float
    rolled_back: dict[float, float]

    def dump(self) -> dict[str, Any]:
        return asdict(self) | {"rolled_back": {f"{100 * true:+g}": one for true, one in self.rolled_back.items()}}

    def words(self) -> str:
        lost = [100 * self.rolled_back[-one] for one in LOSSES]
        gained = [100 * self.rolled_back[one] for one in GAINS]
        return (
            f"with {self.tasks} tasks, true losses of {_listed([100 * one for one in LOSSES])} points are rolled back "
            f"in {_listed(lost)} % of cases, true gains of {_listed([100 * one for one in GAINS])} points in "
            f"{_listed(gained)} %"
        )


def power(changes: NDArray[np.float64], config: Config) -> Power:
    """The power of the rule against one rival.

    Args:
        changes: Shape (tasks, 2): change in right answers and change in reward of each task.
        config: Has margins, confidence, and the reward of a right answer.

    Raises:
        ValueError: There are fewer than two tasks.
    """
    n = len(changes)
    if n < 2:
        raise ValueError(f"the gate's power needs two or more tasks, got {n}")
    drawn = np.random.default_rng(config.seed).integers(n, size=(DRAWS, n))
    centred = changes - changes.mean(axis=0)
    means = np.stack([column[drawn].mean(axis=1) for column in centred.T], axis=1)
    errors = np.stack([column[drawn].std(axis=1, ddof=1) for column in centred.T], axis=1) / sqrt(n)
    margins = np.array([config.gate.margin_alignment, config.gate.margin])
    critical = -float(stdtrit(n - 1, (1 - config.gate.confidence) / 2))
    worth = np.array([1.0, config.reward.alignment])
    found: dict[float, float] = {}
    for true in (*(-loss for loss in LOSSES), *GAINS):
        observed = means + true * worth
        refused = (observed <= -margins) | (observed < -critical * errors)
        found[true] = float(refused.any(axis=1).mean())
    return Power(n, float(changes[:, 0].std(ddof=1)), found)


def expected(tasks: int, config: Config) -> Power:
    """The expected power before any comparison, if as many answers change as in recorded runs."""
    changed = round(tasks * TYPICAL_DEVIATION**2 / 2)
    answers = np.repeat([1.0, -1.0, 0.0], [changed, changed, tasks - 2 * changed])
    return power(np.stack([answers, config.reward.alignment * answers], axis=1), config)


def observed(before: Sequence[RolloutRecord], after: Sequence[RolloutRecord], config: Config) -> Power | None:
    """The power with the variance of these pairs; None if no answer became right or wrong, so it is unknown."""
    changes = [
        [float(aligned(new) or False) - float(aligned(old) or False), new.reward - old.reward]
        for old, new in zip(before, after, strict=True)
        if old.reward is not None and new.reward is not None
    ]
    varied = len({right for right, _ in changes}) > 1
    return power(np.array(changes), config) if varied else None


def _listed(values: Sequence[float]) -> str:
    words = [f"{value:.0f}" for value in values]
    return f"{', '.join(words[:-1])} and {words[-1]}"
