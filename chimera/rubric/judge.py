"""The rubric's six scores of a finished protocol. The formulas use only what can be checked without understanding it.

Notation: q are the evidence sentences; V are those that occur verbatim in a source; A is what the goal asks (its words,
or those of its outcomes that the claim names); F is the focus of the goal (the goal without the protocol's population,
intervention and comparator). Every term lies in [0, 1].

    substance     s_f of each free-text field (0: placeholder, list, padding, copy, or text that speaks to the grader)
    gate          mean of s_f, halved when claim, comparison or any field speaks to the grader
    own gate      1, or 1/2 when claim or comparison speaks to the grader

    groundedness  own gate x |V|/|q| x (.3 numbers in V + .2 words of claim and comparison in V or goal + .5 A in V)
    feasibility   gate x (.35 sample size + .2 comparator + .2 analysis + .15 design + .1 safeguards)
    impact        gate x (.45 outcome names F + .2 population + .15 intervention + .2 follow-up, threshold)
    clarity       gate x (.3 length + .15 distinct fields + .3 answers agree + .25 comparison supports the answer)
    novelty       gate x relevance x (.3 not copied + .45 named extensions + .25 share of new words)
    efficiency    gate x (.5 words + .4 participants + .1 fields that are not bloated)

Each term is a share or a ramp, so a small improvement raises the score. A text's claims about its own quality do not.

Groundedness reads the hypothesis, the goal and the sources, never the protocol: a more concrete protocol does not make
a quote truer. Feasibility, impact, novelty and efficiency score the protocol. Clarity scores the whole work: its
terms for the claim and the comparison are multiplied by the protocol's gate too.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from chimera.core.quotes import normalise, occurs
from chimera.core.types import Label
from chimera.rubric.coherence import coherence
from chimera.rubric.payload import (
    ReviewedHypothesis,
    ReviewedProtocol,
    read_answer,
    read_goal,
    read_hypothesis,
    read_protocol,
    read_sources,
)
from chimera.rubric.text import (
    MAX_WORDS,
    analysis_kinds,
    concepts,
    content_words,
    covered,
    fields_substance,
    focus,
    grams,
    instructs,
    is_placeholder,
    jaccard,
    names_test,
    numbers,
    outcome_kinds,
    ramp,
    same,
    share,
    share_of,
    topic_match,
    words,
)
from chimera.rubric.words import (
    BEYOND,
    DESIGN_DETAIL,
    FOLLOW_UP,
    NAMED_DESIGN,
    RANDOMISED,
    SAFEGUARDS,
    THRESHOLD,
    TRAIT,
    USUAL_COMPARATOR,
)


@dataclass(frozen=True, slots=True)
class Case:
    """The judge's input, with values that several criteria use."""

    goal: str
    sources: tuple[str, ...]
    hypothesis: ReviewedHypothesis
    protocol: ReviewedProtocol
    answer: Label
    verbatim: tuple[str, ...]
    focus: str
    substance: Mapping[str, float]

    @property
    def fields(self) -> Mapping[str, str]:
        """The protocol's free-text fields."""
        return self.protocol.fields

    @property
    def gate(self) -> float:
        """Factor on all scores but groundedness. Low if the protocol is empty, padded, copied or pleading."""
        pleads = any(instructs(text) for text in self.fields.values())
        factor = 0.5 if pleads else self.hypothesis_gate
        return math.fsum(self.substance.values()) / len(self.substance) * factor

    @property
    def hypothesis_gate(self) -> float:
        """Factor on every score: 0.5 if the hypothesis speaks to the grader, else 1."""
        return 0.5 if any(map(instructs, (self.hypothesis.comparison, self.hypothesis.claim))) else 1.0


def judge(payload: Mapping[str, Any]) -> dict[str, float]:
    """The six scores in [0, 1], rounded to four decimals.

    Raises:
        ValueError: The payload lacks a key or holds a wrong value; the message names it.
    """
    case = read_case(payload)
    scores = {
        "novelty": case.gate * novelty(case),
        "feasibility": case.gate * feasibility(case),
        "impact": case.gate * impact(case),
        "clarity": case.gate * clarity(case),
        "groundedness": case.hypothesis_gate * groundedness(case),
        "efficiency": case.gate * efficiency(case),
    }
    return {name: round(min(1.0, score), 4) for name, score in scores.items()}


def read_case(payload: Mapping[str, Any]) -> Case:
    """The judge's payload, checked; raises ValueError naming the key that is wrong."""
    goal, sources = read_goal(payload), read_sources(payload)
    hypothesis, protocol = read_hypothesis(payload), read_protocol(payload)
    quotes = {normalise(quote): None for quote in hypothesis.evidence}
    fields = protocol.fields
    return Case(
        goal=goal,
        sources=sources,
        hypothesis=hypothesis,
        protocol=protocol,
        answer=read_answer(payload),
        verbatim=tuple(quote for quote in quotes if occurs(quote, sources)),
        focus=focus(goal, fields["population"], fields["intervention"], fields["comparator"]),
        substance=fields_substance(fields, sources),
    )


def groundedness(case: Case) -> float:
    """Share of verbatim evidence x the share of comparison, claim and goal that it supports.

    Repeated sentences count once. If comparison and claim hold no number, the numbers' term is 0.5. Removing a verbatim
    sentence never raises the score, because both factors grow with V.
    """
    quotes = {normalise(quote) for quote in case.hypothesis.evidence}
    if not quotes:
        return 0.0
    stated = f"{case.hypothesis.comparison} {case.hypothesis.claim}"
    figures = numbers(stated) - numbers(case.goal)
    number_support = share(numbers(" ".join(case.verbatim)), figures) if figures else 0.5
    word_support = share(content_words(" ".join((*case.verbatim, case.goal))), content_words(stated))
    support = 0.3 * number_support + 0.2 * word_support + 0.5 * on_question(case)
    return len(case.verbatim) / len(quotes) * (support if case.verbatim else 0.0)


def on_question(case: Case) -> float:
    """Share of what the goal asks that the verbatim evidence mentions, by its words or by its known outcomes.

    A goal may also name outcomes in its population or intervention ('adults with back pain'). So if the claim names
    some of the goal's outcomes, only those count as asked.
    """
    evidence = " ".join(case.verbatim)
    named = concepts(case.goal)
    outcomes = named & concepts(case.hypothesis.claim) or named
    return max(covered(case.goal, case.verbatim), share(concepts(evidence), outcomes))


def feasibility(case: Case) -> float:
    """How well the study could be run and analysed as written. Parts about a text field are scaled by its substance."""
    fields, substance = case.fields, case.substance
    return (
        0.35 * sample_size_score(case.protocol.sample_size)
        + 0.2 * substance["comparator"] * comparator_score(case)
        + 0.2 * substance["analysis"] * analysis_score(fields["analysis"], fields["outcome"])
        + 0.15 * substance["design"] * design_score(fields["design"], fields["intervention"])
        + 0.1 * substance["safeguards"] * share_of(pattern.search(fields["safeguards"]) for pattern in SAFEGUARDS)
    )


def sample_size_score(participants: int) -> float:
    """1 between 60 and 1,500 participants; falls linearly in the logarithm to 0 at 8 and at 20,000."""
    size = math.log(max(participants, 1))
    return ramp(size, math.log(8), math.log(60)) * ramp(size, math.log(20_000), math.log(1_500))


def comparator_score(case: Case) -> float:
    """0.5 if it differs from the intervention, plus up to 0.5 if it is a usual one or goal or sources name it."""
    comparator, intervention = case.fields["comparator"], case.fields["intervention"]
    if same(comparator, intervention):
        return 0.0
    familiarity = share(content_words(" ".join((case.goal, *case.sources))), content_words(comparator))
    return 0.5 + 0.5 * (1.0 if USUAL_COMPARATOR.search(comparator) else familiarity)


def analysis_score(analysis: str, outcome: str) -> float:
    """0.5 for a named statistical method, 0.5 more if it fits the kind of outcome (0.25 if the kind is unclear).

    A field that names tests for every kind of outcome gets 0.25.
    """
    if not names_test(analysis):
        return 0.0
    fits, kinds = analysis_kinds(analysis), outcome_kinds(outcome)
    if len(fits) == 3:
        return 0.25
    if not fits or not kinds:
        return 0.75
    return 1.0 if fits & kinds else 0.5


def design_score(design: str, intervention: str) -> float:
    """0.7 for the best kind of design, 0.4 for another named one, 0.3 more for a detail such as blinding.

    The best design is randomised. For exposures that cannot be assigned (a gene variant), it is observational.
    """
    if not NAMED_DESIGN.search(design):
        return 0.0
    best = bool(RANDOMISED.search(design)) != bool(TRAIT.search(intervention))
    return (0.7 if best else 0.4) + (0.3 if DESIGN_DETAIL.search(design) else 0.0)


def impact(case: Case) -> float:
    """How well the protocol would answer the goal, and whether it states a follow-up and a threshold."""
    fields, substance = case.fields, case.substance
    stated = " ".join(fields.values())
    return (
        0.45 * substance["outcome"] * topic_match(fields["outcome"], case.focus)
        + 0.2 * substance["population"] * part_match(case, "population")
        + 0.15 * substance["intervention"] * part_match(case, "intervention")
        + 0.12 * bool(FOLLOW_UP.search(stated))
        + 0.08 * bool(THRESHOLD.search(stated))
    )


def part_match(case: Case, name: str) -> float:
    """How well a field matches the goal: share of its words found in goal or sources x a ramp over the goal's words.

    The ramp reaches 1 at two content words of the goal, or at all that the goal has besides the other fields'.
    """
    mine, goal = content_words(case.fields[name]), content_words(case.goal)
    others = content_words(" ".join(text for key, text in case.fields.items() if key != name))
    needed = min(2, len(goal - (others - mine)))
    familiarity = share(content_words(" ".join((case.goal, *case.sources))), mine)
    return familiarity * (ramp(len(mine & goal), 0, needed) if needed else 1.0)


def clarity(case: Case) -> float:
    """Phrases of readable length, fields that differ, answers that agree, and a comparison that supports the answer."""
    texts = list(case.fields.values())
    sets = [content_words(text) for text in texts]
    pairs = [jaccard(sets[i], sets[j]) for i in range(len(sets)) for j in range(i)]
    expected = case.protocol.expected
    agreement = 0.7 * (expected == case.hypothesis.answer) + 0.3 * (case.answer == expected)
    return (
        0.3 * math.fsum(length_score(text) for text in (*texts, case.hypothesis.claim)) / (len(texts) + 1)
        + 0.15 * (1.0 - math.fsum(pairs) / len(pairs))
        + 0.3 * agreement
        + 0.25 * coherence(case.hypothesis, case.goal)
    )


def length_score(text: str) -> float:
    """0 for a placeholder, 0.6 for one word, 1 for 2 to 18 words, falling to 0 at 36."""
    count = 0 if is_placeholder(text) else len(text.split())
    return 0.6 if count == 1 else ramp(count, 0, 1) * ramp(count, 36, 18)


def novelty(case: Case) -> float:
    """How far the protocol goes beyond what the sources report, while staying with the goal.

    Relevance is how well the outcome names the goal's focus. The weakest match keeps 0.3 of the score, no match 0. New
    words are looked for in all fields but analysis and safeguards, where standard phrases are right.
    """
    stated = " ".join(case.fields.values())
    source = " ".join(case.sources).lower()
    source_grams = grams(source, 4)
    copied = share(source_grams, grams(stated, 4))
    extensions = sum(
        any(match[0].lower() not in source for match in pattern.finditer(stated)) for pattern in BEYOND.values()
    )
    plan = " ".join(text for name, text in case.fields.items() if name not in ("analysis", "safeguards"))
    fresh = 1.0 - share(content_words(f"{source} {case.goal}"), content_words(plan))
    relevance = topic_match(case.fields["outcome"], case.focus)
    return (0.3 * (relevance > 0) + 0.7 * relevance) * (
        0.3 * (1.0 - copied) + 0.45 * (0.0, 0.6, 0.85, 1.0)[min(extensions, 3)] + 0.25 * ramp(fresh, 0.0, 0.5)
    )


def efficiency(case: Case) -> float:
    """Few words and participants: full terms up to 70 words and 400 participants, 0 at 200 words and 6,000."""
    lengths = [len(words(text)) for text in case.fields.values()]
    size = math.log(max(case.protocol.sample_size, 1))
    return (
        0.5 * ramp(sum(lengths), 200, 70)
        + 0.4 * ramp(size, math.log(6_000), math.log(400))
        + 0.1 * share_of(length <= MAX_WORDS for length in lengths)
    )
