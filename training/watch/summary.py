"""Pure functions for figures about rollouts, which the view, the ledger and the metrics show."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any

from evaluation.records.rollouts import RolloutRecord
from evaluation.scores import alignment


def mean(values: Sequence[float]) -> float | None:
    return fmean(values) if values else None


def aligned(record: RolloutRecord) -> bool | None:
    """True if the answer is the label; None if there is no answer."""
    return None if record.answer is None else alignment.aligned(record.answer, record.label)


def tokens_used(record: RolloutRecord, judge: str) -> Iterator[tuple[str, int, int]]:
    """Each slot with the tokens that its model read and wrote in a rollout; last those of the slot that judged it."""
    for slot, used in record.tokens.items():
        yield slot, used["prompt"], used["completion"]
    yield judge, record.counts.get("judge_prompt_tokens", 0), record.counts.get("judge_completion_tokens", 0)


def dollars(used: Sequence[tuple[str, int, int]], prices: Mapping[str, Sequence[float]]) -> float:
    """US dollars for tokens by slot; one without a price in `evaluation.prices` costs nothing."""
    priced = ((read, written, prices[slot]) for slot, read, written in used if slot in prices)
    return sum(read * price[0] + written * price[1] for read, written, price in priced) / 1e6


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
