"""The second judge without a model: a checklist for each criterion of the judge's prompt.

It follows the anchors of `evaluation.scores.judge.PROMPT` and shares no formula and no word list with the rubric that
may stand behind the first judge, so that agreement between the two is informative. Each observation is 1 if it holds,
0 if not, 0.5 in between, None if it does not apply. A criterion's score is their mean, or 0 if a required part is
missing (a real quote, an outcome that concerns the goal). Training must not use it.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from chimera.core.quotes import occurs
from chimera.core.types import Label
from evaluation.scores.checklist_text import (
    BLINDING,
    DOSE,
    MARGIN,
    MECHANISM,
    SITES,
    SUBGROUP,
    TIME,
    concrete,
    figures,
    fits_outcome,
    is_result,
    names_analysis,
    names_design,
    overlap,
    p_values,
    sentences,
    sure_words,
    topic,
)

FIELDS = ("design", "population", "intervention", "comparator", "outcome", "analysis", "safeguards")


@dataclass(frozen=True)
class Work:
    """Finished work, from `evaluation.scores.judge.finished_work`."""

    goal: str
    sources: tuple[str, ...]
    evidence: tuple[str, ...]
    comparison: str
    claim: str
    answer: Label
    fields: Mapping[str, str]
    sample_size: int
    expected: Label
    final: Label

    @classmethod
    def read(cls, work: Mapping[str, Any]) -> "Work":
        """Read the payload of `finished_work`."""
        hypothesis, protocol = work["hypothesis"], work["protocol"]
        return cls(
            work["goal"],
            tuple(source["text"] for source in work["sources"]),
            tuple(hypothesis["evidence"]),
            hypothesis["comparison"],
            hypothesis["claim"],
            hypothesis["answer"],
            {name: protocol[name] for name in FIELDS},
            protocol["sample_size"],
            protocol["expected"],
            work["answer"],
        )

    @cached_property
    def real(self) -> tuple[str, ...]:
        """The quotes that occur word for word in a source."""
        return tuple(quote for quote in self.evidence if occurs(quote, self.sources))

    @cached_property
    def says(self) -> Mapping[str, float]:
        """How concrete each field is."""
        return {name: concrete(text, name, self.sources) for name, text in self.fields.items()}

    @cached_property
    def written(self) -> float:
        """Mean concreteness of the fields."""
        return sum(self.says.values()) / len(self.says)

    @cached_property
    def on_outcome(self) -> float:
        """1 if the outcome is the goal's, 0.5 if half its words are in the goal or the real quotes, else 0."""
        mine = topic(self.fields["outcome"])
        in_goal, in_quotes = overlap(mine, topic(self.goal)), overlap(mine, topic(" ".join(self.real)))
        return 1.0 if in_goal == 1 else 0.5 if max(in_goal, in_quotes) >= 0.5 else 0.0


def checklist(work: Mapping[str, Any]) -> dict[str, float]:
    """The six scores in [0, 1], by criterion, rounded to four decimals.

    Raises:
        KeyError: A key is missing.
    """
    read = Work.read(work)
    scores = {
        "novelty": novelty(read),
        "feasibility": feasibility(read),
        "impact": impact(read),
        "clarity": clarity(read),
        "groundedness": groundedness(read),
        "efficiency": efficiency(read),
    }
    return {name: round(score, 4) for name, score in scores.items()}


def novelty(work: Work) -> float:
    """0.5 for an addition in time, place or blinding, 1 for one in dose, subgroup, mechanism or comparator.

    An addition is something that the sources do not have in any form. A protocol that does not serve the goal adds
    nothing.
    """
    plan, source_text = " ".join(work.fields.values()), " ".join(work.sources)
    large = [pattern.search(plan) and not pattern.search(source_text) for pattern in (DOSE, SUBGROUP, MECHANISM)]
    comparator = topic(work.fields["comparator"])
    large.append(
        work.says["comparator"] == 1 and bool(comparator) and not comparator & topic(f"{source_text} {work.goal}")
    )
    small = [pattern.search(plan) and not pattern.search(source_text) for pattern in (TIME, SITES, BLINDING)]
    added = 1.0 if any(large) else 0.5 if any(small) else 0.0
    return added * work.written * (work.on_outcome > 0)


def feasibility(work: Work) -> float:
    """Can the study be run (people, arms, design) and analysed (enough people, a named analysis that fits)?"""
    says, fields = work.says, work.fields
    told_apart = topic(fields["comparator"]) != topic(fields["intervention"])
    return work.written * _mean(
        1.0 if 40 <= work.sample_size <= 2000 else 0.5 if 20 <= work.sample_size <= 5000 else 0.0,
        says["population"],
        min(says["intervention"], says["comparator"]) * told_apart,
        says["design"] * names_design(fields["design"]),
        says["analysis"] * names_analysis(fields["analysis"]) * fits_outcome(fields["analysis"], fields["outcome"]),
    )


def impact(work: Work) -> float:
    """Are outcome, population and intervention the goal's, with a time or a margin? 0 without a fitting outcome."""
    if work.on_outcome == 0 or work.says["outcome"] == 0:
        return 0.0
    goal, plan = topic(work.goal), " ".join(work.fields.values())
    overlaps = [
        _steps(overlap(topic(work.fields[name]), goal)) * work.says[name] for name in ("population", "intervention")
    ]
    return _mean(work.on_outcome, *overlaps, float(bool(TIME.search(plan) or MARGIN.search(plan))))


def clarity(work: Work) -> float:
    """Is every field a distinct, concrete phrase, and do hypothesis, expectation, answer and claim agree?"""
    denies = re.search(r"\b(?:not|no|never|neither)\b", work.claim.lower()) is not None
    agree = _mean(
        float(work.answer == work.expected),
        float(work.final == work.expected),
        float(denies == (work.answer == "no")) if work.answer in ("yes", "no") else None,
    )
    phrases = _mean(work.written, concrete(work.claim, "claim", ()), 1.0 - _repeats(work))
    return work.written * _mean(phrases, agree)


def groundedness(work: Work) -> float:
    """Are the quotes real, are they the sources' results on the goal, and do they support figures and answer?"""
    if not work.real:
        return 0.0
    stated = figures(f"{work.comparison} {work.claim}") - figures(work.goal)
    values = p_values(" ".join(work.real))
    sure, unsure = any(value < 0.05 for value in values), any(value >= 0.05 for value in values)
    fits = {"yes": sure, "no": True, "maybe": unsure or len(work.real) > 1}.get(work.answer)
    support = _mean(
        _on_question(work),
        overlap(stated, figures(" ".join(work.real))) if stated else None,
        float(fits) if values and fits is not None else None,
        float(sure_words(work.comparison) == sure) if len(values) == 1 and "significant" in work.comparison else None,
    )
    return len(work.real) / len(work.evidence) * support


def efficiency(work: Work) -> float:
    """Are there no more people and words than needed? Fields that say nothing do not count as saved."""
    lengths = [len(text.split()) for text in work.fields.values()]
    people = 1.0 if work.sample_size <= 600 else 0.5 if work.sample_size <= 2000 else 0.0
    words = 1.0 if sum(lengths) <= 60 else 0.5 if sum(lengths) <= 110 else 0.0
    return work.written * _mean(people, words, 1.0 - _repeats(work), float(max(lengths) <= 15))


def _on_question(work: Work) -> float:
    """1 if no result in the sources shares more words with the goal than the best quote, 0.5 if one does, else 0."""
    goal = topic(work.goal)
    best = max(
        (len(topic(sentence) & goal) for text in work.sources for sentence in sentences(text) if is_result(sentence)),
        default=0,
    )
    mine = max(len(topic(quote) & goal) for quote in work.real)
    return 1.0 if mine >= best and mine > 0 else 0.5 if mine > 0 else 0.0


def _repeats(work: Work) -> float:
    """Share of the fields that repeat an earlier field."""
    seen: list[frozenset[str]] = []
    repeated = 0
    for text in work.fields.values():
        mine = topic(text) or frozenset(text.lower().split())
        repeated += mine in seen
        seen.append(mine)
    return repeated / (len(work.fields) - 1)


def _steps(share: float) -> float:
    return 1.0 if share == 1 else 0.5 if share > 0 else 0.0


def _mean(*observations: float | None) -> float:
    values = [value for value in observations if value is not None]
    return sum(values) / len(values)
