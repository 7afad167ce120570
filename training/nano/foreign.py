"""Generated tasks in foreign words and at full length, so that the small model also quotes from others' texts.

Exposure and endpoint get invented names, and sentences of invented words fill each section up to the length limit of a
passage. The decisive numbers stay: what the task asks and how it is answered do not change.
"""

import random
import re
from collections.abc import Callable
from dataclasses import replace

from chimera.synthetic import Facts, Finding, GeneratedTask
from chimera.types import Section

Rename = Callable[[str], str]

SYLLABLES = tuple(
    onset + vowel + coda
    for onset in (
        "",
        "b",
        "c",
        "ch",
        "d",
        "f",
        "g",
        "gr",
        "h",
        "l",
        "m",
        "n",
        "p",
        "pr",
        "r",
        "s",
        "st",
        "t",
        "th",
        "tr",
        "v",
    )
    for vowel in ("a", "e", "i", "o", "u", "ea", "io", "y")
    for coda in ("", "n", "r", "s", "l", "t", "nt", "x", "c", "m")
)
FUNCTION_WORDS = (
    "the",
    "of",
    "and",
    "in",
    "to",
    "was",
    "were",
    "with",
    "for",
    "that",
    "by",
    "on",
    "at",
    "from",
    "is",
    "or",
    "a",
)
PASSAGE = (700, 1150)
"""Length of a filled abstract, in characters; the upper end is just under the default `tools.max_chars`."""


def foreign(item: GeneratedTask, rng: random.Random) -> GeneratedTask:
    """`item` with invented names for exposure and endpoint, filled up with invented sentences."""
    facts = item.facts
    names = {facts.therapy: _words(rng, 2), facts.endpoint: _words(rng, 2), facts.group: f"{_words(rng, 1)} group"}
    if facts.asked_endpoint != facts.endpoint:
        names[facts.asked_endpoint] = names[facts.endpoint]
    names |= {_capital(old): _capital(new) for old, new in names.items()}
    pattern = re.compile("|".join(re.escape(name) for name in sorted(names, key=len, reverse=True)))

    def rename(text: str) -> str:
        return pattern.sub(lambda match: names[match[0]], text)

    findings = tuple(_renamed(finding, rename) for finding in facts.findings)
    context = tuple(Section(section.label, rename(section.text)) for section in item.task.context)
    task = replace(item.task, goal=rename(item.task.goal), context=_filled(context, rng))
    return GeneratedTask(task, _renamed_facts(facts, findings, rename))


def _renamed(finding: Finding, rename: Rename) -> Finding:
    return replace(finding, sentence=rename(finding.sentence), endpoint=rename(finding.endpoint))


def _renamed_facts(facts: Facts, findings: tuple[Finding, ...], rename: Rename) -> Facts:
    return replace(
        facts,
        findings=findings,
        endpoint=rename(facts.endpoint),
        asked_endpoint=rename(facts.asked_endpoint),
        therapy=rename(facts.therapy),
        group=rename(facts.group),
    )


def _filled(context: tuple[Section, ...], rng: random.Random) -> tuple[Section, ...]:
    """Insert invented sentences between the sections' own until the abstract has its drawn length."""
    target = rng.randint(*PASSAGE)
    sentences = [re.split(r"(?<=[.]) (?=[A-Z])", section.text) for section in context]
    length = sum(len(section.label) + len(section.text) + 3 for section in context)
    while length < target:
        added = _sentence(rng)
        place = rng.choice(sentences)
        place.insert(rng.randint(0, len(place)), added)
        length += len(added) + 1
    return tuple(Section(section.label, " ".join(parts)) for section, parts in zip(context, sentences, strict=True))


def _sentence(rng: random.Random) -> str:
    words = [rng.choice(FUNCTION_WORDS) if rng.random() < 0.35 else _words(rng, 1) for _ in range(rng.randint(6, 22))]
    if rng.random() < 0.3:
        words.insert(rng.randint(1, len(words)), f"({rng.randint(1, 99)}%)")
    return _capital(" ".join(words)) + "."


def _words(rng: random.Random, count: int) -> str:
    return " ".join("".join(rng.choices(SYLLABLES, k=rng.choice((1, 2, 2, 3)))) for _ in range(count))


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
