"""How the rubric reads text: words, numbers, overlaps, and the substance of a field.

These functions only count, so no text can give them instructions. All are pure.
"""

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache

from chimera.core.abstracts import share
from chimera.core.quotes import normalise
from chimera.rubric.words import (
    CONCEPTS,
    FOLLOW_UP,
    GENERIC_WORDS,
    INSTRUCTION,
    OTHER_TESTS,
    OUTCOME_KINDS,
    PLACEHOLDER,
    STOP_WORDS,
    TESTS,
    USUAL_COMPARATOR,
    Kind,
)

MAX_WORDS = 25
"""Most words of a protocol field, which should be one phrase. A longer field counts as padded."""

_WORD = re.compile(r"[a-z0-9]+(?:['’][a-z]+)?")
_NUMBER = re.compile(r"(?<![\w.])(?:\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d*\.?\d+)")
_EDGES = re.compile(r"^[\W_]+|[\W_]+$")

Grams = frozenset[tuple[str, ...]]


def words(text: str) -> list[str]:
    """Lower-case words; hyphenated words are split."""
    return _WORD.findall(text.lower())


def stem(word: str) -> str:
    """A crude stem: without plural endings, at most seven letters. It makes plurals and British spellings equal."""
    if len(word) > 4 and word.endswith("ies"):
        word = word[:-3] + "y"
    elif len(word) > 3 and word.endswith("s") and not word.endswith(("ss", "us", "is")):
        word = word[:-1]
    return word[:7]


@lru_cache(maxsize=4096)  # A judge asks for the same few texts some hundred times.
def content_words(text: str) -> frozenset[str]:
    """Stems that say what a text is about: no stop words, no directions, no numbers, at least three letters."""
    return frozenset(
        stem(word)
        for word in words(text)
        if len(word) > 2 and not word.isdigit() and word not in STOP_WORDS and word not in GENERIC_WORDS
    )


def numbers(text: str) -> frozenset[float]:
    """The numbers in a text: '.13' and '0.130' are the same, '1,200' is 1200, signs are dropped."""
    return frozenset(float(number.replace(",", "")) for number in _NUMBER.findall(text))


def jaccard(left: frozenset[str], right: frozenset[str]) -> float:
    """Overlap of two word sets; 0 when both are empty."""
    return len(left & right) / len(left | right) if left | right else 0.0


def same(left: str, right: str) -> bool:
    """True if two fields name the same thing."""
    if normalise(left).lower() == normalise(right).lower():
        return True
    return jaccard(content_words(left), content_words(right)) > 0.8


def share_of(checks: Iterable[object]) -> float:
    results = [bool(check) for check in checks]
    return sum(results) / len(results)


def ramp(value: float, zero: float, top: float) -> float:
    """Linear from 0 at `zero` to 1 at `top` and clipped outside; `zero` may be the larger end."""
    return min(1.0, max(0.0, (value - zero) / (top - zero)))


def concepts(text: str) -> frozenset[str]:
    """The known outcomes that a text names, under any of their names."""
    return frozenset(name for name, pattern in CONCEPTS.items() if pattern.search(text))


def outcome_kinds(outcome: str) -> frozenset[Kind]:
    """The kinds of value that the outcome measures, by its words; empty if they do not say."""
    return frozenset(kind for kind, pattern in OUTCOME_KINDS.items() if pattern.search(outcome))


def analysis_kinds(analysis: str) -> frozenset[Kind]:
    """The kinds of outcome that the named statistical tests fit."""
    return frozenset(kind for kind, pattern in TESTS.items() if pattern.search(analysis))


def names_test(analysis: str) -> bool:
    """True if any statistical method is named."""
    return bool(analysis_kinds(analysis) or OTHER_TESTS.search(analysis))


def instructs(text: str) -> bool:
    """True if a text speaks to its grader."""
    return bool(INSTRUCTION.search(text))


def is_placeholder(text: str) -> bool:
    """True if a field is empty or holds a placeholder, its own name, only numbers or one repeated letter."""
    bare = _EDGES.sub("", text)
    says_something = any(len(set(word)) > 1 for word in words(bare) if not word.isdigit())
    return not says_something or bool(PLACEHOLDER.fullmatch(bare))


def grams(text: str, size: int = 5) -> Grams:
    """All runs of `size` words."""
    tokens = words(text)
    return frozenset(tuple(tokens[i : i + size]) for i in range(len(tokens) - size + 1))


def items(text: str) -> int:
    """How many separate items a text lists."""
    return sum(1 for part in re.split(r"[,;/|•\n]", text) if part.strip())


def focus(goal: str, *fields: str) -> str:
    """`goal` without the texts of `fields`; this is mostly the outcome that it asks about.

    A field that occurs in the goal is removed as a whole; of other fields the content words are removed. Empty if no
    content word is left.
    """
    left = normalise(goal)
    for text in fields:
        phrase = re.compile(rf"\b{re.escape(normalise(text))}\b", re.IGNORECASE) if content_words(text) else None
        if phrase and phrase.search(left):
            left = phrase.sub(" ", left)
        else:
            left = " ".join(word for word in left.split() if not content_words(word) & content_words(text))
    return normalise(left) if content_words(left) else ""


def topic_match(text: str, about: str) -> float:
    """How well `text` names what `about` is about, in [0, 1]; durations in `text` do not matter.

    The larger of two terms: F1 of their content words, and 0.9 x the share of the text's known outcomes that `about`
    names too (the factor prefers the goal's wording). If the two name different known outcomes, F1 counts 0.3 times. If
    `about` is empty, any text with content words gets 0.7.
    """
    text = FOLLOW_UP.sub(" ", text)
    mine, topic = content_words(text), content_words(about)
    if not topic:
        return 0.7 if mine else 0.0
    named, outcomes = concepts(text), concepts(about)
    common = len(mine & topic)
    f1 = 2 * common / (len(mine) + len(topic)) if common else 0.0
    return 0.3 * f1 if named and outcomes and not named & outcomes else max(f1, 0.9 * share(outcomes, named))


def covered(about: str, texts: Iterable[str]) -> float:
    """Share of the topic of `about` that `texts` mention, by words, abbreviations or known outcomes.

    A further text never lowers it.
    """
    joined = " ".join(texts)
    text_words = content_words(joined) | _spelled_out(about, frozenset(words(joined)))
    return max(share(text_words, content_words(about)), share(concepts(joined), concepts(about)))


def _spelled_out(text: str, tokens: frozenset[str]) -> frozenset[str]:
    """Content words of the runs of three to six words in `text` whose initials are among `tokens` ('cimt')."""
    every = words(text)
    runs = (every[i : i + size] for size in range(3, 7) for i in range(len(every) - size + 1))
    abbreviated = [" ".join(run) for run in runs if "".join(word[0] for word in run) in tokens]
    return content_words(" ".join(abbreviated))


def is_vague(text: str) -> bool:
    """True if a field holds only words that fit any study, such as 'compare the groups'."""
    return not content_words(text) and not USUAL_COMPARATOR.search(text)


def fields_substance(fields: Mapping[str, str], sources: Iterable[str]) -> dict[str, float]:
    """How much each protocol field says, in [0, 1]; see `_substance`."""
    source_grams: Grams = frozenset[tuple[str, ...]]().union(*(grams(source) for source in sources))
    return {
        name: _substance(text, [other for key, other in fields.items() if key != name], source_grams)
        for name, text in fields.items()
    }


def _substance(text: str, others: Iterable[str], source_grams: Grams) -> float:
    """A product of penalties, so that any one fault can give 0; `source_grams` are the sources' five-word runs."""
    if is_placeholder(text) or instructs(text):
        return 0.0
    tokens = words(text)
    value = 0.4 if is_vague(text) else 1.0
    value *= ramp(items(text), 7, 4)  # a list of seven or more items is keyword stuffing
    value *= ramp(len(tokens), 45, MAX_WORDS)  # the field is padded
    if len(tokens) >= 5:
        value *= ramp(len(set(tokens)) / len(tokens), 0.4, 0.7)  # words are repeated
    value *= ramp(_longest_run(text), 8, 7)  # eight keywords in a row are not a phrase
    if len(tokens) >= 8:
        value *= ramp(share(source_grams, grams(text)), 0.9, 0.5)  # copied from a source
    mine = content_words(text) or frozenset(tokens)
    nearest = max((jaccard(mine, content_words(other) or frozenset(words(other))) for other in others), default=0.0)
    return value * ramp(nearest, 1.0, 0.7)  # repeats another field


def _longest_run(text: str) -> int:
    """The most words in a row without punctuation or a stop word between them. A hyphenated word counts once."""
    longest = run = 0
    for word in re.sub(r"([,;/|.:()])", r" \1 ", text.lower()).split():
        run = 0 if word in STOP_WORDS or not word[0].isalnum() else run + 1
        longest = max(longest, run)
    return longest
