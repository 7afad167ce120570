"""An independent reader of generated tasks: it applies the published rule to the question and the abstract only.

It knows English cues (lower, raise, versus, final, interim, p=, CI) and the list of endpoints, but not what the
generator drew. If a sentence gives two group values and a direction word, the values count. `ignore` makes it ignore
one aspect, which shows how much that aspect matters.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, get_args

from chimera.core.types import Brief, Label
from chimera.data.generated.vocabulary import ENDPOINTS

Aspect = Literal["direction", "significance", "endpoint", "conflict"]
ASPECTS: tuple[Aspect, ...] = get_args(Aspect)

Weight = Literal["counts", "superseded", "plain"]

LOWERING = re.compile(r"\b(lower|reduce|decrease)\b")
RAISING = re.compile(r"\b(higher|raise|increase|elevate)\b")
COUNTS = re.compile(r"\b(final analysis|after adjustment|primary analysis)\b")
SUPERSEDED = re.compile(r"\b(interim analysis|before adjustment|secondary analysis)\b")
NUMBER = r"-?\d+(?:\.\d+)?"
BRACKET = re.compile(rf"\(({NUMBER})%? vs ({NUMBER})")
VALUE_OF_GROUP = re.compile(
    rf"(?<!\d)({NUMBER})(?:%| [\w/]{{1,99}}(?: [a-z]{{1,99}})?) in ((?:the )?[\w -]{{1,99}}?)(?= and | \()"
)
CONTROL = re.compile(r"placebo|treatment|usual care|waiting list|leaflet|non-carriers")
P_VALUE = re.compile(rf"p([=<])({NUMBER})")
INTERVAL = re.compile(rf"95% CI ({NUMBER}) to ({NUMBER})")


@dataclass(frozen=True, slots=True)
class Reading:
    """One finding as read: endpoint, direction (+1 higher, -1 lower in the studied group), significance, weight."""

    endpoint: str
    direction: int
    significance: Literal["significant", "borderline", "not significant"]
    weight: Weight


def answer(brief: Brief, ignore: Aspect | None = None) -> Label:
    """Answer a question by the rule in `chimera.data.generated.tasks`, without the aspect `ignore`.

    Without direction, every significant finding is a yes. Without significance, a finding in the asked direction is a
    yes and any other a no. Without the endpoint, all findings count. Without conflict, the first finding about the
    endpoint gives the answer.

    Raises:
        ValueError: when the question's direction or endpoint, or a finding about it, cannot be read.
    """
    target = asked_direction(brief.goal)
    endpoint = asked_endpoint(brief.goal)
    readings = list(read(brief))
    if ignore != "endpoint":
        readings = [reading for reading in readings if reading.endpoint == endpoint]
    if not readings:
        raise ValueError(f"{brief.id}: no finding about {endpoint}")
    if ignore == "conflict":
        readings = readings[:1]
    counting = [reading for reading in readings if reading.weight == "counts"] or readings
    answers: set[Label] = {answer_alone(reading, target, ignore) for reading in counting}
    return answers.pop() if len(answers) == 1 else "maybe"


def answer_alone(reading: Reading, target: int, ignore: Aspect | None = None) -> Label:
    in_direction = ignore == "direction" or reading.direction == target
    if ignore == "significance":
        return "yes" if in_direction else "no"
    if reading.significance == "borderline":
        return "maybe"
    return "yes" if reading.significance == "significant" and in_direction else "no"


def asked_direction(goal: str) -> int:
    """+1 when the question asks whether the endpoint rises, -1 when it asks whether it falls.

    Raises:
        ValueError: when the question says neither or both.
    """
    lowers, raises = bool(LOWERING.search(goal)), bool(RAISING.search(goal))
    if lowers == raises:
        raise ValueError(f"no single direction in {goal!r}")
    return 1 if raises else -1


def asked_endpoint(goal: str) -> str:
    """The abstract's name of the endpoint that the question names, possibly by a synonym.

    Raises:
        ValueError: when the question names no endpoint, or several.
    """
    text = goal.lower()
    names = {e.name for e in ENDPOINTS if e.name.lower() in text or e.synonym.lower() in text}
    if len(names) != 1:
        raise ValueError(f"{len(names)} endpoints in {goal!r}")
    return names.pop()


def read(brief: Brief) -> Iterator[Reading]:
    """Every finding in the abstract, in order; sentences that name no endpoint or give no statistic are skipped."""
    for section in brief.context:
        for sentence in re.split(r"(?<=[.?!]) (?=[A-Z])", section.text):
            text = sentence.lower()
            endpoint = next((e.name for e in ENDPOINTS if e.name.lower() in text), None)
            significance = read_significance(sentence)
            if endpoint and significance:
                yield Reading(endpoint, read_direction(sentence), significance, read_weight(text))


def read_significance(sentence: str) -> Literal["significant", "borderline", "not significant"] | None:
    """The significance of the sentence's p-value or interval; None if it has neither."""
    if interval := INTERVAL.search(sentence):
        return "significant" if float(interval[1]) * float(interval[2]) > 0 else "not significant"
    if p_value := P_VALUE.search(sentence):
        value = float(p_value[2])
        if value < 0.05 or p_value[1] == "<":
            return "significant"
        return "borderline" if value < 0.10 else "not significant"
    return None


def read_direction(sentence: str) -> int:
    """+1 when the studied group's value is the higher one, -1 when it is the lower one.

    Raises:
        ValueError: when the sentence does not compare two groups.
    """
    if bracket := BRACKET.search(sentence):
        return 1 if float(bracket[1]) > float(bracket[2]) else -1
    values = {CONTROL.search(group) is not None: float(value) for value, group in VALUE_OF_GROUP.findall(sentence)}
    if set(values) != {True, False}:
        raise ValueError(f"no comparison of two groups in {sentence!r}")
    return 1 if values[False] > values[True] else -1


def read_weight(text: str) -> Weight:
    """Whether the sentence (in lower case) reports the analysis that counts, or one that another supersedes."""
    if COUNTS.search(text):
        return "counts"
    return "superseded" if SUPERSEDED.search(text) else "plain"
