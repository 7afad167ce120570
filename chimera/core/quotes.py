"""Whether a quote occurs word for word in a source: the one check that reviews, scores and rewards share."""

import re
from collections.abc import Iterable

MIN_QUOTE_WORDS = 3
"""Shorter fragments occur in almost any text, so they are no evidence and never count as found."""


def normalise(text: str) -> str:
    """`text` with every run of white space as one space; case and punctuation stay, because a quote is verbatim."""
    return " ".join(text.split())


def occurs(quote: str, texts: Iterable[str]) -> bool:
    """Whether `quote` stands verbatim in one of `texts`, white space aside.

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
    """The quotes that occur in none of `texts`, in their order."""
    known = list(texts)
    return [quote for quote in quotes if not occurs(quote, known)]
