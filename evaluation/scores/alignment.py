"""Alignment: does the answer match the label, and does the decision correspond to the label?

The answer (yes, no, maybe) states the evidence, and `aligned` measures it. The decision (GO, NO-GO, UNDECIDED) also
depends on the reviews: a vetoed protocol gets NO-GO whatever the evidence says. The stricter measure
`decision_aligned_two_way` counts only GO on yes and NO-GO on no, so UNDECIDED and maybe are misses: with PubMedQA's
label mix no system can exceed 89 %. Other labels, such as the options A to E, correspond to no decision, so tasks with
such options have no aligned decision.
"""

from chimera.core.types import DECISION_OF_LABEL, Decision, Label


def aligned(answer: Label, label: Label) -> bool:
    return answer == label


def decision_aligned(decision: Decision, label: Label) -> bool:
    """True if the decision corresponds to the label: GO to yes, NO-GO to no, UNDECIDED to maybe."""
    return decision == DECISION_OF_LABEL[label]


def decision_aligned_two_way(decision: Decision, label: Label) -> bool:
    """True for GO on yes or NO-GO on no. UNDECIDED and maybe are misses."""
    return label != "maybe" and decision_aligned(decision, label)
