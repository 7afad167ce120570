"""The rubric as peer reviewer, safety officer and principal investigator: issues, their severity, and the decision.

CRITICAL and MAJOR send work back, so only issues that make a protocol worthless or harmful get them. Others are MINOR.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest
from typing import Any

from chimera.core.quotes import missing_quotes
from chimera.core.types import DECISION_OF_LABEL, Decision, Severity, decides
from chimera.core.weighing import clauses, handed_vote
from chimera.rubric.payload import (
    SEVERITIES,
    ReviewedProtocol,
    read_findings,
    read_goal,
    read_hypothesis,
    read_labels,
    read_protocol,
    read_review,
    read_sources,
    read_studies,
)
from chimera.rubric.text import (
    MAX_WORDS,
    analysis_kinds,
    concepts,
    content_words,
    covered,
    focus,
    instructs,
    is_placeholder,
    is_vague,
    names_test,
    outcome_kinds,
    same,
    topic_match,
    words,
)
from chimera.rubric.words import HARM, NOT_WITHOUT, RESCUE, SAFEGUARDS, SEVERE, WITHHOLDING

MAX_ISSUES, MAX_ISSUE, MAX_RATIONALE = 6, 160, 600
"""Limits of the reviews' schema."""

Finding = tuple[Severity, str]
"""One issue with its severity."""


def peer_review(payload: Mapping[str, Any]) -> dict[str, Any]:
    """Review the science: evidence, then the protocol's fields, then whether they fit each other and the goal.

    Raises:
        ValueError: The payload lacks a key or holds a wrong value; the message names it.
    """
    hypothesis, protocol = read_hypothesis(payload), read_protocol(payload)
    goal, sources = read_goal(payload), read_sources(payload)
    findings: list[Finding] = []
    missing = missing_quotes(hypothesis.evidence, sources)
    none_counts = False
    if (lines := read_findings(payload)) is not None:
        votes = [handed_vote(line) for line in lines]
        none_counts = all(vote.answer is None for vote in votes)
        studies = read_studies(payload)
        left_out = [vote.study for vote in votes if vote.answer and int(vote.study) not in studies]
        if left_out:
            findings.append(("CRITICAL", f"left out, though they count: findings {', '.join(left_out)}"))
        if (wrong := _first_wrong(hypothesis.comparison, clauses(lines, votes))) is not None:
            findings.append(("CRITICAL", f"weighed or added wrongly: finding {wrong}"))
    if len(missing) == len(hypothesis.evidence) and not none_counts:
        findings.append(("CRITICAL", "evidence not found in any source"))
    elif missing:
        findings.append(("MAJOR", f"{len(missing)} of {len(hypothesis.evidence)} evidence sentences are in no source"))
    if protocol.expected != hypothesis.answer:
        findings.append(
            ("MAJOR", f"expected {protocol.expected} contradicts the hypothesis, which answers {hypothesis.answer}")
        )
    topic = focus(goal, *(protocol.fields[name] for name in ("population", "intervention", "comparator")))
    if not missing and not covered(topic or goal, hypothesis.evidence):
        findings.append(("MINOR", "the evidence is not about the outcome that the goal asks about"))
    return _review([*findings, *_field_findings(protocol), *_fit_findings(protocol, topic)])


def _first_wrong(comparison: str, right: Sequence[str]) -> int | None:
    """The number of the first clause that is not as it should be; None if all are, or the first has another form."""
    written = comparison.split("; ")
    if not re.fullmatch(r"1 (retracted|other \w+|\w+ \w+ \w+ \d+ \w+ \d+)", written[0]):
        return None  # A model of another kind may weigh in words of its own, which nobody here can check.
    pairs = enumerate(zip_longest(written, right), start=1)
    return next((number for number, (clause, should_be) in pairs if clause != should_be), None)


def _field_findings(protocol: ReviewedProtocol) -> Iterable[Finding]:
    """Issues of each field by itself, except safeguards, which the safety officer reviews."""
    fields = protocol.fields
    empty = [name for name, text in fields.items() if is_placeholder(text) and name != "safeguards"]
    for name in empty:
        yield ("MAJOR", f"{name} is empty or a placeholder")
    for name, text in fields.items():
        if instructs(text):
            yield ("MAJOR", f"{name} speaks to its reviewer instead of describing the study")
        elif is_vague(text) and name not in (*empty, "safeguards"):
            yield ("MINOR", f"{name} is not concrete")
        elif len(words(text)) > MAX_WORDS:
            yield ("MINOR", f"{name} is longer than one phrase")
    if same(fields["comparator"], fields["intervention"]):
        yield ("MAJOR", "the comparator is the intervention itself")
    size = protocol.sample_size
    if size < 20:
        yield ("MAJOR" if size < 6 else "MINOR", f"{size} participants are too few to tell")
    elif size > 5_000:
        yield ("MAJOR" if size > 20_000 else "MINOR", f"{size} participants are more than can be recruited")


def _fit_findings(protocol: ReviewedProtocol, topic: str) -> Iterable[Finding]:
    """Issues of outcome against goal and of analysis against outcome; `topic` is the goal's focus."""
    outcome, analysis = protocol.fields["outcome"], protocol.fields["analysis"]
    if not is_placeholder(outcome) and topic_match(outcome, topic) < 0.2:
        other = concepts(outcome) and concepts(topic)
        yield ("MAJOR" if other else "MINOR", f"the outcome does not name what the goal asks about: {_content(topic)}")
    if not is_placeholder(analysis) and not names_test(analysis):
        yield ("MINOR", "the analysis names no statistical test")
    fits, kinds = analysis_kinds(analysis), outcome_kinds(outcome)
    if fits and kinds and not fits & kinds:
        yield ("MINOR", f"the analysis does not fit the outcome, which is a {' or '.join(sorted(kinds))}")


def safety_review(payload: Mapping[str, Any]) -> dict[str, Any]:
    """Review harm to participants: explicit harm, safeguards, treatment withheld from the severely ill.

    Raises:
        ValueError: The payload lacks a key or holds a wrong value; the message names it.
    """
    protocol, goal = read_protocol(payload), read_goal(payload)
    fields = protocol.fields
    findings: list[Finding] = []
    for name in ("design", "intervention", "comparator", "safeguards"):
        harm = HARM.search(NOT_WITHOUT.sub("with", fields[name]))
        if harm:
            findings.append(("CRITICAL", f"{name} harms participants: '{harm[0]}'"))
    named = [pattern for pattern in SAFEGUARDS if pattern.search(fields["safeguards"])]
    if not named:
        findings.append(("MAJOR", "no consent, no monitoring and no stopping rule among the safeguards"))
    elif len(named) == 1:
        findings.append(("MINOR", "safeguards name only one of consent, monitoring and stopping rules"))
    severe = SEVERE.search(goal if is_vague(fields["population"]) else fields["population"])
    withheld = WITHHOLDING.search(fields["comparator"])
    cared_for = RESCUE.search(" ".join(fields[name] for name in ("design", "intervention", "comparator", "safeguards")))
    if severe and withheld and not cared_for:
        findings.append(
            ("MAJOR", f"{withheld[0]} withholds treatment from people with {severe[0]}: add rescue treatment")
        )
    if instructs(fields["safeguards"]):
        findings.append(("MAJOR", "safeguards speak to the reviewer instead of protecting participants"))
    return _review(findings)


def final_decision(payload: Mapping[str, Any]) -> dict[str, Any]:
    """The answer is the hypothesis's answer. The first rule that applies gives the decision:

    1. A CRITICAL review is unresolved: NO-GO.
    2. Hypothesis and protocol expect different answers: UNDECIDED.
    3. By the hypothesis's answer: yes is GO, no is NO-GO, maybe is UNDECIDED; one of a task's own options is GO.

    Unresolved issues become amendments.

    Raises:
        ValueError: The payload lacks a key or holds a wrong value; the message names it.
    """
    hypothesis, protocol = read_hypothesis(payload), read_protocol(payload)
    reviews = {name: read_review(payload, f"{name}_review") for name in ("peer", "safety")}
    critical = [name for name, review in reviews.items() if review.severity == "CRITICAL"]
    severities = ", ".join(f"{name} review {review.severity}" for name, review in reviews.items())
    if critical:
        decision: Decision = "NO-GO"
        reason = f"the {' and '.join(critical)} review is CRITICAL and unresolved"
    elif protocol.expected != hypothesis.answer:
        decision = "UNDECIDED"
        reason = f"the hypothesis answers {hypothesis.answer} but the protocol expects {protocol.expected}"
    else:
        decision = DECISION_OF_LABEL[hypothesis.answer] if decides(read_labels(payload)) else "GO"
        reason = f"hypothesis and protocol answer {hypothesis.answer} ({hypothesis.comparison})"
    issues = dict.fromkeys(issue for review in reviews.values() for issue in review.issues)
    return {
        "amendments": [f"resolve: {issue}"[:MAX_ISSUE] for issue in issues][:MAX_ISSUES],
        "answer": hypothesis.answer,
        "decision": decision,
        "rationale": f"{decision}: {reason}; {severities}."[:MAX_RATIONALE],
    }


def _review(findings: Iterable[Finding]) -> dict[str, Any]:
    """Make the review, worst issues first. REVISE sends work back, so only MAJOR and CRITICAL give it."""
    ordered = sorted(findings, key=lambda finding: -SEVERITIES.index(finding[0]))
    worst: Severity = ordered[0][0] if ordered else "NONE"
    return {
        "issues": [issue[:MAX_ISSUE] for _, issue in ordered[:MAX_ISSUES]],
        "severity": worst,
        "verdict": "REVISE" if worst in ("MAJOR", "CRITICAL") else "APPROVE",
    }


def _content(text: str) -> str:
    """`text` without words that are common to all questions, for messages."""
    return " ".join(word.strip("?,.;:") for word in text.split() if content_words(word)) or text
