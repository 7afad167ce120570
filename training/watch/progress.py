"""What a view counts: activities, and the rollouts of a phase."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from evaluation.records.rollouts import RolloutRecord


@dataclass
class Rollouts:
    """The rollouts of a phase so far, and the newest policy versions among them."""

    versions: Mapping[str, str]
    records: list[RolloutRecord] = field(default_factory=list)

    def add(self, record: RolloutRecord) -> None:
        self.records.append(record)
        self.versions = record.policy_versions or self.versions


@dataclass(eq=False)
class Activity:
    """Something that goes on.

    Attributes:
        since: When it began.
        total: Number of its steps; 0 if they are not counted.
        rollouts: Those of a phase.
        least: The time left is known once so many steps are done.
        note: About the last step.
        shown: When a line about it was printed.
    """

    text: str
    since: float
    total: int = 0
    rollouts: Rollouts | None = None
    done: int = 0
    least: int = 1
    note: str = ""
    shown: float | None = None

    def left(self, now: float) -> float | None:
        """Seconds until it ends, if it goes on at the mean speed of its own; None if that is not known."""
        if not self.total or self.done < max(1, self.least) or self.done >= self.total:
            return None
        return (now - self.since) / self.done * (self.total - self.done)
