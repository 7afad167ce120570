"""The rule by which a body of evidence answers a question: each study votes, and better studies have more weight.

It is modelled on vote counting by the direction of effect (Cochrane Handbook, chapter 12) and on GRADE, which places
randomised before observational evidence and has a rule of thumb that fewer than 400 participants are imprecise. It
simplifies both: Cochrane's votes have no weights and leave significance out, and GRADE counts the participants of all
studies together.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, cast

if TYPE_CHECKING:
    from chimera.core.types import YesNoMaybe

Design = Literal["trial", "cohort"]

PRECISE = 400
"""Participants from which on a result counts as precise (a rule of thumb of GRADE)."""


@dataclass(frozen=True, slots=True)
class Vote:
    """One study's answer with its weight. `maybe` is for neither side; None: the study does not count."""

    study: str
    answer: "YesNoMaybe | None"
    weight: int


def weight(design: Design, participants: int) -> int:
    """1, 2 or 4: a trial has twice the weight of a cohort, and a precise study twice that of an imprecise one."""
    return (2 if design == "trial" else 1) * (2 if participants >= PRECISE else 1)


def handed_vote(line: str) -> Vote:
    """The vote of a finding as the refiner is handed it: `12 large trial yes`; in any other form it does not count."""
    if (parts := re.fullmatch(r"(\d+) (large|small) (trial|cohort) (yes|no|maybe)", line)) is None:
        return Vote("", None, 0)
    number, size, design, answer = parts.groups()
    return Vote(number, cast("YesNoMaybe", answer), weight(cast("Design", design), PRECISE if size == "large" else 1))


def points(votes: Iterable[Vote]) -> tuple[int, int]:
    """The total weights of the votes for yes and for no."""
    yes = no = 0
    for vote in votes:
        if vote.answer == "yes":
            yes += vote.weight
        elif vote.answer == "no":
            no += vote.weight
    return yes, no


def weigh(votes: Iterable[Vote]) -> "YesNoMaybe":
    """The side with more points; maybe if they are equal, which they also are if no study counts."""
    yes, no = points(votes)
    return "maybe" if yes == no else "yes" if yes > no else "no"


def clauses(lines: Sequence[str], votes: Sequence[Vote]) -> list[str]:
    """Findings as the refiner weighs them: each line, and after it, if it counts, its weight, and which answer leads by
    how many points so far."""
    sums = [(weigh(votes[:end]), *points(votes[:end])) for end in range(1, len(votes) + 1)]
    return [
        line if vote.answer is None else f"{line} {vote.weight} {leads} {abs(yes - no)}"
        for line, vote, (leads, yes, no) in zip(lines, votes, sums, strict=True)
    ]
