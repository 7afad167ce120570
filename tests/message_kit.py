"""Messages that tests read: a value, its place and its remedy, and never the wording around them."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeAlias, TypeVar

import pytest

Refusal = TypeVar("Refusal", bound=BaseException)
Piece: TypeAlias = "str | int | float | tuple[str, ...]"
GOUT = {
    "design": "randomised double-blind trial",
    "population": "adults with gout",
    "intervention": "melanolix",
    "comparator": "placebo",
    "outcome": "pain score at 24 weeks",
    "sample_size": 200,
    "analysis": "analysis of covariance",
    "safeguards": "informed consent, adverse event monitoring and a stopping rule",
    "expected": "yes",
    "amendments": [],
}
"""A good protocol."""
PROTOCOL = {
    "design": "randomised trial",
    "population": "adults",
    "intervention": "drug",
    "comparator": "placebo",
    "outcome": "rate",
    "sample_size": 120,
    "analysis": "log-rank test",
    "safeguards": "monitoring board",
    "expected": "yes",
}


def lacking(text: str, *pieces: Piece) -> list[str]:
    """The pieces that `text` does not hold, each as whole words: 1 is not in 10, nor `lr` in `lr_decay`."""
    flat = [part for piece in pieces for part in (piece if isinstance(piece, tuple) else (str(piece),))]
    return [part for part in flat if not re.search(_whole(part), text)]


@contextmanager
def refused(kind: type[Refusal], *pieces: Piece, lines: int | None = 1) -> Iterator[pytest.ExceptionInfo[Refusal]]:
    """Asserts that the block raises `kind`, and that its message has so many lines (None: any) and every piece."""
    with pytest.raises(kind) as caught:
        yield caught
    text = str(caught.value)
    assert not lacking(text, *pieces), f"{lacking(text, *pieces)} not in: {text}"
    assert lines is None or text.count("\n") + 1 == lines, text


def _whole(piece: str) -> str:
    start, end = (r"\b" if piece[at].isalnum() else "" for at in (0, -1))
    return start + re.escape(piece) + end
