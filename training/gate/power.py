"""Operating characteristic of the gate's rule: how often it rolls back a policy with a given true change.

Each task's answer becomes right with probability (c + t) / 2 and wrong with (c - t) / 2, where t is the true change in
the share of right answers and c the share of answers that change; c is at least |t|. The rule is applied to draws of
the gate's number of tasks. So no task changes by a fraction of an answer, which is what few tasks would turn on.
A significant loss of reward is decided by a t-test here, which agrees with the gate's exchange test where that can
reach the level at all.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import bdtr, stdtrit

from chimera.config.tree import Config
from evaluation.records.rollouts import RolloutRecord
from training.watch.summary import aligned

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
        deviation: Standard deviation of a task's change in right answers when the true change is 0.
        rolled_back: Share of cases that are rolled back, by true change in the share of right answers.
    """

    tasks: int
    deviation: float
    rolled_back: dict[float, float]

    def dump(self) -> dict[str, Any]:
        return asdict(self) | {"rolled_back": {f"{100 * true:+g}": share for true, share in self.rolled_back.items()}}

    def words(self) -> str:
        lost = [100 * self.rolled_back[-loss] for loss in LOSSES]
        gained = [100 * self.rolled_back[gain] for gain in GAINS]
        return (
            f"with {self.tasks} tasks, true losses of {_listed([100 * loss for loss in LOSSES])} points are rolled "
            f"back in {_listed(lost)} % of cases, true gains of {_listed([100 * gain for gain in GAINS])} points in "
            f"{_listed(gained)} %"
        )


def expected(tasks: int, config: Config) -> Power:
    """The expected power before any comparison, if as many answers change as in recorded runs."""
    return _power(tasks, TYPICAL_DEVIATION**2, np.zeros(1), config)


def observed(before: Sequence[RolloutRecord], after: Sequence[RolloutRecord], config: Config) -> Power | None:
    """The power with the variance of these pairs; None if no answer became right or wrong, so it is unknown."""
    changes = [
        [float(aligned(new) or False) - float(aligned(old) or False), new.reward - old.reward]
        for old, new in zip(before, after, strict=True)
        if old.reward is not None and new.reward is not None
    ]
    if len(changes) < 2 or not any(answer for answer, _ in changes):
        return None
    answers, rewards = np.array(changes).T
    others = rewards - config.reward.alignment * answers
    return _power(len(changes), float(np.mean(answers != 0)), others - others.mean(), config)


def _power(tasks: int, changed: float, others: NDArray[np.float64], config: Config) -> Power:
    """The power of the rule against one rival.

    Args:
        tasks: Number of compared tasks, two or more.
        changed: Share of answers that change when the true change is 0.
        others: Changes of the rest of a task's reward, with mean 0; they are drawn apart from the answers' changes.
    """
    generator = np.random.default_rng(config.seed)
    chances = generator.random((DRAWS, tasks))
    noise = others[generator.integers(len(others), size=(DRAWS, tasks))]
    shares: dict[float, float] = {}
    for true in (*(-loss for loss in LOSSES), *GAINS):
        moved = max(changed, abs(true))
        answers = (chances >= 1 - (moved + true) / 2).astype(np.int8) - (chances < (moved - true) / 2)
        rewards = config.reward.alignment * answers + noise
        past = (answers.mean(axis=1) <= -config.gate.margin_alignment) | (rewards.mean(axis=1) <= -config.gate.margin)
        level = 1 - config.evaluation.confidence
        shares[true] = float((past | _fewer_right(answers, level) | _lower_reward(rewards, level)).mean())
    return Power(tasks, sqrt(changed), shares)


def _fewer_right(answers: NDArray[np.int8], level: float) -> NDArray[np.bool_]:
    """Where McNemar's exact test, which the gate uses, shows that fewer answers are right."""
    gained, lost = (answers > 0).sum(axis=1), (answers < 0).sum(axis=1)
    return (lost > gained) & (2 * bdtr(np.minimum(gained, lost), gained + lost, 0.5) < level)


def _lower_reward(rewards: NDArray[np.float64], level: float) -> NDArray[np.bool_]:
    """Where a t-test shows a lower reward, and the gate's exchange of that many changes could show it."""
    n = rewards.shape[1]
    errors = rewards.std(axis=1, ddof=1) / sqrt(n)
    within_reach = 2.0 ** (1 - np.count_nonzero(rewards, axis=1)) < level
    return within_reach & (rewards.mean(axis=1) < float(stdtrit(n - 1, level / 2)) * errors)


def _listed(values: Sequence[float]) -> str:
    words = [f"{value:.0f}" for value in values]
    return f"{', '.join(words[:-1])} and {words[-1]}"
