"""Alignment: whether the answer is the answer key's, and whether the decision corresponds to it.

The answer (yes, no, maybe) is what the evidence says, and `aligned` is the measure. The decision (GO, NO-GO, UNDECIDED)
also depends on the reviews: a protocol that was vetoed gets NO-GO whatever the evidence says. The stricter reading
`decision_aligned_two_way` counts only GO on yes and NO-GO on no, so that UNDECIDED and maybe are misses: with
PubMedQA's label mix no system can pass 89 % there.
"""

from chimera.core.types import DECISION_OF_LABEL, Decision, Label


def aligned(answer: Label, label: Label) -> bool:
    """True if the answer is the answer key's."""
    return answer == label


def decision_aligned(decision: Decision, label: Label) -> bool:
    """True if the decision corresponds to the label: GO to yes, NO-GO to no, UNDECIDED to maybe."""
    return decision == DECISION_OF_LABEL[label]


def decision_aligned_two_way(decision: Decision, label: Label) -> bool:
    """True if GO met yes or NO-GO met no; UNDECIDED and maybe are misses."""
    return label != "maybe" and decision_aligned(decision, label)
