"""The choices that a run has logged, read from its rollouts: what the bandit learns from.

A rollout's record holds the same choice as its trace (`HierarchicalTraceAdapter.adapt_for_bandit`), and its task.
"""

from collections.abc import Iterable

from evaluation.records.rollouts import RolloutRecord
from training.learning.experience import BanditEvent


def event_of(record: RolloutRecord) -> BanditEvent | None:
    """The choice in a rollout; None when it failed before a choice, or has no reward to learn from."""
    if record.reward is None or "selection" not in record.outputs:
        return None
    selection = record.outputs["selection"]
    return BanditEvent(
        goal=record.outputs["research_goal"],
        hypotheses=record.outputs["initial_hypotheses"],
        author=selection["author"],
        preferred=selection["preferred"],
        propensities=selection["propensities"],
        policy=selection["policy"],
        reward=record.reward,
        sources=selection["sources"],
        task_id=record.task_id,
    )


def events_of(records: Iterable[RolloutRecord]) -> list[BanditEvent]:
    """The choices of `records`, in their order; rollouts without one are left out."""
    return [event for record in records if (event := event_of(record)) is not None]
