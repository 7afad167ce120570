"""Figures about rollouts, and the same tasks in two stages."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

from evaluation.view.reading.rows import RolloutRow


@dataclass(frozen=True, slots=True)
class Figures:
    """Figures about some rollouts. A mean of no values is None.

    Attributes:
        right: Share of answers that are the label; a rollout without an answer counts as not right. None if all failed.
        reward: Mean of the rewards that are known.
        unscored: Rollouts that succeeded and have no reward.
    """

    rollouts: int
    failed: int
    vetoed: int
    unscored: int
    right: float | None
    reward: float | None

    @classmethod
    def of(cls, rows: Sequence[RolloutRow]) -> "Figures":
        return cls(
            rollouts=len(rows),
            failed=sum(row.failed for row in rows),
            vetoed=sum(row.veto is not None for row in rows),
            unscored=sum(row.reward is None and not row.failed for row in rows),
            right=None if all(row.failed for row in rows) else mean(float(row.right or False) for row in rows),
            reward=mean(row.reward for row in rows if row.reward is not None),
        )


@dataclass(frozen=True, slots=True)
class TaskPair:
    """One task in two stages; of each side the last rollout with its repeat."""

    left: RolloutRow
    right: RolloutRow

    @property
    def difference(self) -> float | None:
        """Reward of the right minus reward of the left; None if one has none."""
        old, new = self.left.reward, self.right.reward
        return None if old is None or new is None else new - old

    @property
    def change(self) -> str:
        """What became of the answer: "mended", "lost", "both right" or "both wrong"."""
        sides = bool(self.left.right), bool(self.right.right)
        return {(False, True): "mended", (True, False): "lost", (True, True): "both right"}.get(sides, "both wrong")


def mean(values: Iterable[float]) -> float | None:
    numbers = list(values)
    return fmean(numbers) if numbers else None


def pair_up(left: Sequence[RolloutRow], right: Sequence[RolloutRow]) -> list[TaskPair]:
    """The tasks that both sides answered, largest loss in reward first; those without a reward last.

    Tasks with equal ids and different labels are of different data, and no pairs.
    """
    there = {(row.task_id, row.repeat, row.label): row for row in right}
    pairs = [
        TaskPair(left_row, other)
        for left_row in {(row.task_id, row.repeat): row for row in left}.values()
        if (other := there.get((left_row.task_id, left_row.repeat, left_row.label)))
    ]
    return sorted(pairs, key=lambda pair: (pair.difference is None, pair.difference or 0.0, pair.left.task_id))
