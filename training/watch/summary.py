"""Pure functions for figures about rollouts, which the view, the ledger and the metrics show."""

from collections import Counter
from collections.abc import Sequence
from statistics import fmean
from typing import Any

from evaluation.records.rollouts import RolloutRecord
from evaluation.scores import alignment


def mean(values: Sequence[float]) -> float | None:
    return fmean(values) if values else None


def aligned(record: RolloutRecord) -> bool | None:
    """True if the answer is the label; None if there is no answer."""
    return None if record.answer is None else alignment.aligned(record.answer, record.label)


def part_means(records: Sequence[RolloutRecord]) -> dict[str, float | None]:
    """Mean of each reward part over the rollouts in which it has a value, in the order of first appearance."""
    names = dict.fromkeys(name for record in records for name in record.parts)
    return {
        name: mean([value for record in records if (value := record.parts.get(name)) is not None]) for name in names
    }


def summarize(records: Sequence[RolloutRecord]) -> dict[str, Any]:
    """Counts and means of `records`. A mean of no values is None.

    `alignment_rate` counts a rollout without an answer as not aligned.
    """
    succeeded = [record for record in records if record.status == "succeeded"]
    return {
        "rollouts": len(records),
        "succeeded": len(succeeded),
        "failed": len(records) - len(succeeded),
        "unscored": sum(record.reward is None for record in succeeded),
        "reward": mean([record.reward for record in succeeded if record.reward is not None]),
        "alignment_rate": mean([float(aligned(record) or False) for record in records]),
        "vetoed": sum(record.veto is not None for record in succeeded),
        "parts": part_means(succeeded),
        "counts": dict(sum((Counter(record.counts) for record in records), Counter[str]())),
    }
