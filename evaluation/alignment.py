"""Decision alignment: whether GO / NO-GO / UNDECIDED corresponds to the answer key's yes / no / maybe.

`aligned` is the measure; `aligned_two_way` is the stricter reading in which only GO on yes and NO-GO on no count, so
that UNDECIDED and maybe are misses: with PubMedQA's label mix no system can pass 89 % there.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from chimera.types import DECISION_OF_LABEL, LABELS, Decision, Label


def aligned(decision: Decision, label: Label) -> bool:
    """Whether the decision corresponds exactly to the label (three-way)."""
    return decision == DECISION_OF_LABEL[label]


def aligned_two_way(decision: Decision, label: Label) -> bool:
    """Whether GO met yes or NO-GO met no; UNDECIDED and maybe are misses."""
    return label != "maybe" and aligned(decision, label)


@dataclass(frozen=True, slots=True)
class Alignment:
    """Shares in [0, 1] over `count` finished tasks.

    `by_label` holds the three-way share among the tasks of each label that occurs; `decisions` counts each decision.
    """

    count: int
    exact: float
    two_way: float
    by_label: dict[Label, float]
    decisions: dict[Decision, int]

    @property
    def macro(self) -> float:
        """Mean of the shares by label: a system that always says GO gets one third when all labels occur."""
        return sum(self.by_label.values()) / len(self.by_label)


def decision_alignment(pairs: Iterable[tuple[Decision, Label]]) -> Alignment:
    """Alignment over pairs of decision and label.

    Raises:
        ValueError: There are no pairs, so there is no share.
    """
    rows = list(pairs)
    if not rows:
        raise ValueError("decision alignment needs at least one finished task, got none")
    by_label: dict[Label, float] = {}
    for label in LABELS:
        hits = [aligned(decision, label) for decision, found in rows if found == label]
        if hits:
            by_label[label] = sum(hits) / len(hits)
    return Alignment(
        count=len(rows),
        exact=sum(aligned(*row) for row in rows) / len(rows),
        two_way=sum(aligned_two_way(*row) for row in rows) / len(rows),
        by_label=by_label,
        decisions={decision: sum(row[0] == decision for row in rows) for decision in DECISION_OF_LABEL.values()},
    )
