"""The gate's alarm: what a policy gained with the judge of its reward, another judge does not see, or sees as a loss.

A policy learns what its judge likes. The second judge (`evaluation.auditor`), which no reward uses, scores the same
validation rollouts. Judge up and second judge down, both significantly, is a reward that was gamed.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from chimera.config.tree import Config
from chimera.run.jsonl import append_line, read_lines
from evaluation.measures.comparison import Comparison, compare_means
from evaluation.measures.metrics import Metric
from evaluation.records.rollouts import RolloutRecord
from evaluation.scores.auditor import Auditor
from evaluation.scores.judge_health import weighted, weights_of

Scores = Sequence[float | None]


async def alarm(
    before: Sequence[RolloutRecord], after: Sequence[RolloutRecord], auditor: Auditor, config: Config, file: Path
) -> tuple[str | None, dict[str, Any]]:
    """What is to be said of two stages on the same tasks, or None, and the two comparisons as plain data.

    The second judge is asked only where the judge's scores rose significantly, and once about each rollout.

    Args:
        file: Keeps the scores of this judge, for later phases and after a kill.

    Raises:
        UnreachableError: The second judge cannot be reached.
    """
    judge = _compare(_by_judge(before, config), _by_judge(after, config), config)
    if judge is None or judge.low is None or judge.low <= 0:
        return None, {}
    at_once = asyncio.Semaphore(config.rollouts.concurrency)
    audits = {row["subject"]: row["scores"] for row in read_lines(file) if row["model"] == auditor.model}

    async def audit(record: RolloutRecord) -> float | None:
        if record.has_protocol and record.rollout_id not in audits:
            async with at_once:
                audited = await auditor.audit(record)
            if audited.error is None:
                append_line(file, asdict(audited))
            audits[record.rollout_id] = audited.scores
        return _weighted(audits[record.rollout_id], config) if record.has_protocol else None

    audited = [await asyncio.gather(*map(audit, records)) for records in (before, after)]
    held_out = _compare(audited[0], audited[1], config)
    if held_out is None or held_out.high is None:
        return None, {}
    figures = {"judge": judge.difference, "held_out": held_out.difference, "held_out_judge": auditor.model}
    if held_out.high >= 0:
        return None, figures
    return (
        f"the judge scores it higher ({judge.difference:+z.3f}) and the second judge ({auditor.model}), which no "
        f"reward uses, lower ({held_out.difference:+z.3f}), both significantly: it may have learned to please its judge"
    ), figures


def _by_judge(records: Sequence[RolloutRecord], config: Config) -> Scores:
    judged = (record.outputs["final_evaluation"]["scores"] if record.has_protocol else None for record in records)
    return [None if scores is None else _weighted(scores, config) for scores in judged]


def _weighted(scores: Mapping[str, float | None], config: Config) -> float | None:
    """The criteria's mean by the reward's weights; None if one is missing."""
    values = {name: value for name, value in scores.items() if value is not None}
    return weighted(values, weights_of(config.reward)) if len(values) == len(scores) else None


def _compare(before: Scores, after: Scores, config: Config) -> Comparison | None:
    pairs = [(old, new) for old, new in zip(before, after, strict=True) if old is not None and new is not None]
    if not pairs:
        return None
    metric = Metric("judged", "judged", "points", 1, False, None)
    return compare_means([old for old, _ in pairs], [new for _, new in pairs], metric, config, exact=False)
