"""The gate's comparison of two stages: one function for training's gate and for a report on the same rollouts.

So one comparison has one verdict.
"""

from collections.abc import Sequence
from dataclasses import replace

from chimera.config.tree import Config
from evaluation.measures.comparison import Comparison, compare_means, judged
from evaluation.measures.metrics import metrics_of
from evaluation.records.rollouts import RolloutRecord

GATED = ("reward", "alignment")
"""The metrics that the gate decides by."""


def as_gate(
    before: Sequence[RolloutRecord], after: Sequence[RolloutRecord], name: str, config: Config
) -> Comparison | None:
    """Compare one metric of two stages as the gate decides: one test, without correction.

    Args:
        before: One rollout of each task.
        after: The other stage's rollouts, in the same order.
        name: The metric: one of `GATED`.

    Returns:
        The comparison with its verdict; None if no task has a value in both.
    """
    metric = next(candidate for candidate in metrics_of(config) if candidate.name == name)
    assert metric.value is not None
    values = [(metric.value(old), metric.value(new)) for old, new in zip(before, after, strict=True)]
    pairs = [(old, new) for old, new in values if old is not None and new is not None]
    if not pairs:
        return None
    sides = [old for old, _ in pairs], [new for _, new in pairs]
    comparison = compare_means(*sides, metric, config, exact=metric.binary)
    return replace(judged(comparison, metric, comparison.p, config), by_gate=True)
