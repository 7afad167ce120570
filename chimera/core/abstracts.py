"""Abstracts: a user's file as the context of a question; words, statistics, directions and quotes' sources in a text.

This module does not know how tasks were made, nor their labels.
"""

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from chimera.core.errors import DataError
from chimera.core.files import place_of_bad_byte
from chimera.core.types import Section

LONGEST = 20_000
"""Longest abstract in characters; whole papers belong in a search index, not in a prompt."""

_LABEL = re.compile(r"(?:^|(?<=[.!?)]\s))[ \t]*([A-Z][A-Z0-9 &/,()-]{2,60}):\s", re.MULTILINE)


def read_abstract(path: Path) -> tuple[Section, ...]:
    """The sections of the abstract in `path`.

    A section begins with its label in capitals and a colon ("RESULTS: ..."), on a new line or after a sentence. Text
    before the first label becomes a section without a label.

    Raises:
        DataError: The file cannot be read, is no text, is empty, or is longer than `LONGEST`.
    """
    try:
        with path.open(encoding="utf-8-sig") as file:
            text = file.read(LONGEST + 1)
    except OSError as error:
        raise DataError(f"--context {path}: cannot be read ({error.strerror or error})") from error
    except UnicodeDecodeError as error:
        raise DataError(f"--context {path}: {place_of_bad_byte(path)} is not UTF-8: give a plain text file") from error
    if not text.strip():
        raise DataError(f"--context {path}: the file is empty: it should hold an abstract")
    if len(text) > LONGEST:
        raise DataError(f"--context {path}: over {LONGEST:,} characters, the most allowed: give the abstract only")
    return sections(text)


def sections(text: str) -> tuple[Section, ...]:
    """Split an abstract at its labels; every word is kept, and white space becomes single spaces."""
    pieces = _LABEL.split(text)
    labelled = zip(["", *pieces[1::2]], pieces[0::2], strict=True)
    parts = (Section(" ".join(label.split()), " ".join(body.split())) for label, body in labelled)
    return tuple(section for section in parts if section.label or section.text)


Significance = Literal["significant", "borderline", "not significant", "mixed", "unstated"]
Direction = Literal["same", "opposite", "mixed", "unstated"]
"""The direction of a text's results, relative to the direction that the question asks about."""

SIGNIFICANCES: tuple[Significance, ...] = ("significant", "borderline", "not significant", "mixed", "unstated")
DIRECTIONS: tuple[Direction, ...] = ("same", "opposite", "mixed", "unstated")

STEM = 5
"""Number of first letters by which words are compared: 'reduce' and 'reduced' count as one word."""

_WORD = re.compile(r"[a-z][a-z-]+")
_TOKEN = re.compile(r"[a-z]+|\d+(?:\.\d+)?")
_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_SENTENCE = re.compile(r"(?<=[.?!])\s+(?=[A-Z])")
_P_VALUE = re.compile(r"\bp\s*([=<>])\s*(0?\.\d+)", re.IGNORECASE)
_INTERVAL = re.compile(r"\bCI\W{0,3}?(-?\d+(?:\.\d+)?)\s*(?:to|,|;|–|-)\s*(-?\d+(?:\.\d+)?)", re.IGNORECASE)
_RATIO = re.compile(r"\b(?:[aA]?(?:OR|RR|HR)|[Rr]atios?|[Rr]isks?)\b")
_WORDED: tuple[tuple[Significance, re.Pattern[str]], ...] = (
    ("not significant", re.compile(r"\b(?:not|no|non|never)[ -](?:\w+ )?signific|\binsignific")),
    ("borderline", re.compile(r"\bborderline|\btrend|\bmarginal")),
    ("significant", re.compile(r"\bsignific")),
)
_UP = re.compile(r"\b(?:higher|increas\w*|rais\w*|ris(?:e|es|en|ing)|rose|elevat\w*|more|greater)\b")
_DOWN = re.compile(r"\b(?:lower\w*|decreas\w*|reduc\w*|fewer|less|declin\w*)\b")


def words(text: str) -> list[str]:
    """The words of `text` in lower case."""
    return _WORD.findall(text.lower())


def stems(text: str, ignored: Collection[str] = ()) -> set[str]:
    """The stems of the words in `text`, without very short words and `ignored`."""
    return {word[:STEM] for word in words(text) if len(word) > 2 and word not in ignored}


def numbers(text: str) -> set[str]:
    return set(_NUMBER.findall(text))


def sentences(texts: Iterable[str]) -> list[str]:
    return [sentence for text in texts for sentence in _SENTENCE.split(text) if sentence]


def share(part: Iterable[object], of: Iterable[object]) -> float:
    """The share of `of` that is also in `part`; 0 if `of` is empty."""
    members = frozenset(of)
    return len(members & frozenset(part)) / len(members) if members else 0.0


def statistics(text: str) -> list[Significance]:
    """The class of every p-value and confidence interval in `text`.

    p below 0.05 is significant and below 0.10 borderline. An interval is significant if it excludes the value of no
    effect: 1 for ratios, 0 otherwise. A ratio's interval is above 0, that of a difference of risks may not be.
    """
    text = text.replace("\u2212", "-")
    classes: list[Significance] = []
    for sign, number in _P_VALUE.findall(text):
        value = 1.0 if sign == ">" else float(number)  # The most that it may be.
        classes.append("significant" if value < 0.05 else "borderline" if value < 0.10 else "not significant")
    for low, high in _INTERVAL.findall(text):
        none = 1.0 if float(low) > 0 and _RATIO.search(text) else 0.0
        classes.append("not significant" if float(low) <= none <= float(high) else "significant")
    return classes


def significance(texts: Iterable[str]) -> Significance:
    """The significance that `texts` state: by their statistics, or by their words if they give none."""
    classes: set[Significance] = {kind for text in texts for kind in statistics(text) or _worded(text)}
    if not classes:
        return "unstated"
    return classes.pop() if len(classes) == 1 else "mixed"


def _worded(text: str) -> list[Significance]:
    lowered = text.lower()
    classes: list[Significance] = [kind for kind, pattern in _WORDED if pattern.search(lowered)]
    return classes[:1]


def directions(text: str) -> list[int]:
    """Every mention of a direction: +1 up, -1 down."""
    lowered = text.lower()
    return [1] * len(_UP.findall(lowered)) + [-1] * len(_DOWN.findall(lowered))


def direction(goal: str, texts: Iterable[str], *, restated: bool = False) -> Direction:
    """The direction of the results in `texts`, relative to the direction asked in `goal`.

    Args:
        goal: The question. If it names no direction or both, the result is "unstated".
        restated: The text may repeat the direction asked ("asked lower; found higher"): one mention of it does not
            count if there are others.
    """
    goal_directions = set(directions(goal))
    mentions = [mention for text in texts for mention in directions(text)]
    if len(goal_directions) != 1 or not mentions:
        return "unstated"
    (goal_direction,) = goal_directions
    if restated and len(mentions) > 1 and goal_direction in mentions:
        mentions.remove(goal_direction)
    if len(set(mentions)) > 1:
        return "mixed"
    return "same" if mentions[0] == goal_direction else "opposite"


@dataclass(frozen=True, slots=True)
class Passages:
    """The sentences that the juniors have seen, and which of them bear on the question.

    Attributes:
        tokens: Words and numbers of each sentence.
        relevant: Indices of those that give a statistic and share the most words with the question.
    """

    sentences: Sequence[str]
    tokens: Sequence[set[str]]
    relevant: frozenset[int]

    @classmethod
    def of(cls, goal_stems: Collection[str], texts: Iterable[str]) -> "Passages":
        """Read `texts`, and find the sentences relevant to a question with these stems."""
        passage_sentences = sentences(texts)
        shared = [share(stems(sentence), goal_stems) if statistics(sentence) else 0.0 for sentence in passage_sentences]
        most = max(shared, default=0.0)
        relevant = frozenset(at for at, value in enumerate(shared) if most > 0.0 and value == most)
        return cls(passage_sentences, [_tokens(sentence) for sentence in passage_sentences], relevant)

    def origin(self, quote: str) -> tuple[int, float]:
        """Index of the sentence most similar to `quote`, and their similarity (Jaccard index of words and numbers).

        Raises:
            ValueError: There are no sentences.
        """
        quote_tokens = _tokens(quote)
        alike = [len(quote_tokens & tokens) / max(1, len(quote_tokens | tokens)) for tokens in self.tokens]
        best = max(range(len(alike)), key=alike.__getitem__)
        return best, alike[best]


def _tokens(text: str) -> set[str]:
    return set(_TOKEN.findall(text.lower()))
