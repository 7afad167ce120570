"""Checks whether a quote occurs word for word in a source. Reviews, scores and rewards share this check."""

import re
from collections.abc import Iterable

MIN_QUOTE_WORDS = 3
"""Fewest words of a quote. Shorter fragments occur in almost any text, so they never count as found."""


def normalise(text: str) -> str:
    """`text` with every run of white space as one space. Case and punctuation stay, because quotes are verbatim."""
    return " ".join(text.split())


def occurs(quote: str, texts: Iterable[str]) -> bool:
    """True if `quote` occurs verbatim in one of `texts`, ignoring white space.

    A quote may not begin or end inside a word or a number: 'p=0.1' is not a quote of 'p=0.13'. Fragments of fewer than
    `MIN_QUOTE_WORDS` words count as not found.
    """
    wanted = normalise(quote)
    if len(wanted.split()) < MIN_QUOTE_WORDS:
        return False
    before = r"(?<!\w)(?<!\d[.,])" if wanted[0].isalnum() else ""
    after = r"(?!\w)(?![.,]\d)" if wanted[-1].isalnum() else ""
    pattern = re.compile(before + re.escape(wanted) + after)
    return any(pattern.search(normalise(text)) for text in texts)


def missing_quotes(quotes: Iterable[str], texts: Iterable[str]) -> list[str]:
    """The quotes that occur in none of `texts`, in order."""
    known = list(texts)
    return [quote for quote in quotes if not occurs(quote, known)]
