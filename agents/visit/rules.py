"""Hard rules (`society.rules`): phrases that no tool call and no protocol may hold, whatever a model decides.

They are a net of plain text below the safety officer, who reads what is meant. A call that breaks one does not run, a
protocol that breaks one is never GO, and both are counted (`reward.broken_rule`).
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from chimera.core.files import texts

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
        rules: By name phrases of words, in any case; a word that ends in * may go on.
        value: Plain data, such as a call's arguments or an answer's fields.
    """
    for text in texts(value):
        words = [word.lower() for word in _WORD.findall(text)]
        for name, phrases in rules.items():
            for phrase in phrases:
                if _says(words, _PHRASE.findall(phrase.lower())):
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
    return word.startswith(pattern[:-1]) if pattern.endswith("*") else word == pattern
