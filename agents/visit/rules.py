"""Hard rules (`society.rules`): phrases that no tool call and no protocol may hold, whatever a model decides.

They are a net of plain text below the safety officer, who reads what is meant. A call that breaks one does not run, a
protocol that breaks one is never GO, and both are counted (`reward.broken_rule`).
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from chimera.core.files import texts
from chimera.core.unspaced import pairs, starts_run

_WORD = re.compile(r"[^\W_]+|[.;!?]")
_PHRASE = re.compile(r"[^\W_]+\*?|[.;!?]")
_NEGATION = re.compile(r"no|not|never|nobody|none|nor|neither|cannot|exclude[sd]?|prohibit(s|ed)?|forbid(s|den)?")
_REACH = 6
"""A phrase does not count within so many words after a negation in its sentence: `nobody is enrolled without
consent`."""
_ENDS = frozenset(".;!?")


def broken(rules: Mapping[str, Sequence[str]], value: Any) -> str | None:
    """The first rule that the texts in `value` break, with its phrase, as "consent ('without consent')"; None if none.

    Args:
        rules: By name phrases of words, in any case; a word that ends in * may go on. Where no spaces stand between
            words, a phrase may stand anywhere, and nothing negates it.
        value: Plain data, such as a call's arguments or an answer's fields.
    """
    for text in texts(value):
        words = _WORD.findall(pairs(text).lower())
        for name, phrases in rules.items():
            for phrase in phrases:
                if _says(words, _PHRASE.findall(pairs(phrase).lower())):
                    return f"{name} ({phrase!r})"
    return None


def _says(words: Sequence[str], phrase: Sequence[str]) -> bool:
    """True if the phrase stands among the words, and nothing shortly before it in its sentence negates it."""
    for first in range(len(words) - len(phrase) + 1):
        if all(_fits(words[first + place], word) for place, word in enumerate(phrase)):
            before = words[max(0, first - _REACH) : first]
            start = max((place + 1 for place, word in enumerate(before) if word in _ENDS), default=0)
            if not any(map(_NEGATION.fullmatch, before[start:])):
                return True
    return False


def _fits(word: str, pattern: str) -> bool:
    if len(pattern) == 1 and starts_run(pattern):  # A single character, which the text's pairs hold.
        return pattern in word
    return word.startswith(pattern[:-1]) if pattern.endswith("*") else word == pattern
