"""Scores whether a hypothesis's comparison supports its answer. The comparison is trusted; no source is read."""

import math
import re
from typing import Literal

from chimera.core.types import Label
from chimera.rubric.payload import ReviewedHypothesis
from chimera.rubric.words import ASKS_HIGHER, ASKS_LOWER

Significance = Literal["significant", "borderline", "not significant"]

_P_VALUE = re.compile(r"\bp\s*([=<>≤≥])\s*(\d*[.,·]?\d+)(?:(?:e|\s*[x×*·]\s*10\s?[\^(]?)([-−–]\d+))?", re.IGNORECASE)
_AS_IN_PYTHON = str.maketrans(",·−–", "..--")
_INTERVAL = re.compile(
    r"\bCI:?\s*([-−]?(?:\d+(?:\.\d+)?|\.\d+))\s*(?:to|,|;|–)\s*([-−]?(?:\d+(?:\.\d+)?|\.\d+))", re.IGNORECASE
)
_RATIO = re.compile(r"(?i:\bratios?\b)|\b(?:OR|RR|HR)\b")
_NOT_SIGNIFICANT = re.compile(
    r"\b(?:not|no|non|without)[- ]?(?:statistically )?significan|\bin-?significan|no (?:clear )?difference",
    re.IGNORECASE,
)
_BORDERLINE = re.compile(r"borderline|inconclusive|unclear|trend|conflicting|mixed", re.IGNORECASE)
_SIGNIFICANT = re.compile(r"significan", re.IGNORECASE)
_ASKED = re.compile(r"\basked:?\s+(lower|higher)", re.IGNORECASE)
_FOUND = re.compile(r"\bfound:?\s+(lower|higher)", re.IGNORECASE)
_OPPOSITE = re.compile(r"\bopposite|\bcontrary|\bother direction", re.IGNORECASE)


def coherence(hypothesis: ReviewedHypothesis, goal: str) -> float:
    """Score in [0, 1]: how well the comparison supports the answer; 0.5 if it says too little to tell.

    The mean of two checks. The direction that the comparison calls asked is the goal's. The answer is one that its
    clauses imply (yes: significant in the asked direction; no: significant in the other or not significant; maybe:
    borderline, or clauses that disagree). A comparison implies none of a task's own options: 0.5.
    """
    if not hypothesis.states_direction:
        return 0.5
    checks: list[float] = []
    aim = _ASKED.search(hypothesis.comparison)
    lower, higher = bool(ASKS_LOWER.search(goal)), bool(ASKS_HIGHER.search(goal))
    if aim and lower != higher:
        checks.append(float((aim[1].lower() == "lower") == lower))
    implied = implied_answers(hypothesis.comparison)
    if implied:
        checks.append(float(hypothesis.answer in implied or (len(implied) > 1 and hypothesis.answer == "maybe")))
    return math.fsum(checks) / len(checks) if checks else 0.5


def implied_answers(comparison: str) -> frozenset[Label]:
    """The answers that the clauses of a comparison imply, each read alone; empty if none can be read.

    Significance comes from p-values and intervals, or from words if there are no numbers. A clause whose words
    contradict its numbers implies nothing.
    """
    aim = _ASKED.search(comparison)
    answers: set[Label] = set()
    for clause in comparison.split(";"):
        level = _significance(clause)
        finding = _FOUND.search(clause)
        if level is None:
            continue
        opposite = bool(_OPPOSITE.search(clause)) or bool(aim and finding and aim[1].lower() != finding[1].lower())
        answers.add("maybe" if level == "borderline" else "yes" if level == "significant" and not opposite else "no")
    return frozenset(answers)


def _significance(clause: str) -> Significance | None:
    """The significance that a clause states by numbers and words; None if they contradict each other or say nothing."""
    worded, counted = _said(clause), _counted(clause)
    if counted is None or worded is None:
        return counted or worded
    return counted if worded == counted or (worded, counted) == ("not significant", "borderline") else None


def _said(clause: str) -> Significance | None:
    if _NOT_SIGNIFICANT.search(clause):
        return "not significant"
    if _BORDERLINE.search(clause):
        return "borderline"
    return "significant" if _SIGNIFICANT.search(clause) else None


def _counted(clause: str) -> Significance | None:
    """Significance by the p-value (below 0.05, below 0.10), or else by whether the interval excludes its null value."""
    p_value, interval = _P_VALUE.search(clause), _INTERVAL.search(clause)
    if p_value:
        value = float(f"{p_value[2]}e{p_value[3] or 0}".translate(_AS_IN_PYTHON))
        if p_value[1] in "<≤":
            return "significant" if value <= 0.05 else "borderline" if value <= 0.10 else None
        if p_value[1] in ">≥":
            return "not significant" if value >= 0.05 else None
        return "significant" if value < 0.05 else "borderline" if value < 0.10 else "not significant"
    if interval:
        low, high = (float(bound.translate(_AS_IN_PYTHON)) for bound in interval.groups())
        null = 1.0 if _RATIO.search(clause) else 0.0
        return "significant" if (low - null) * (high - null) > 0 else "not significant"
    return None
