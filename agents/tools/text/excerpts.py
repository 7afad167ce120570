"""Shorten an abstract to whole sentences: results and statistics first, in their original order.

Every sentence of an excerpt occurs word for word in the source, because agents quote from it and the quotes are
checked.
"""

import re
from bisect import bisect
from collections.abc import Iterable
from dataclasses import dataclass

from chimera.core.unspaced import pairs, starts_run

GAP = "[...]"
"""Marks sentences left out of a section, so that a quote across the gap is noticed."""

PARAGRAPH = "\n\n"
"""A blank line ends every sentence."""

_LABEL = re.compile(r"(?:^|(?<=[.!?;)\]\"'])\s*)([A-Z][A-Z0-9 ,/&'()-]{2,60}):\s")
_END = re.compile(r"(?<![.!?])[.!?]+[\"')\]”’]*\s+(?=[\"'(\[“‘]*[A-Z0-9])|[。！？｡]+[”’」』）]*\s*|\n\s*\n\s*")
_NOT_AN_END = re.compile(
    r"(?:^|[\s(\[])(?:vs|e\.g|i\.e|etc|al|ca|cf|approx|no|nos|fig|figs|ref|refs|dr|st|resp|[A-Za-z])\.$", re.IGNORECASE
)
_RESULTS = re.compile(r"RESULT|FINDING|OUTCOME")
_STATISTIC = re.compile(
    r"\d|\bp\s?[<=>]|significan|confidence interval|odds ratio|hazard ratio|correlat", re.IGNORECASE
)
_STEM = 5
"""Number of first letters by which words are compared. This crude stem is enough to rank sentences."""


@dataclass(frozen=True, slots=True)
class _Sentence:
    text: str
    label: str
    section: int
    position: int


def excerpt(text: str, query: str, max_chars: int) -> str:
    """At most `max_chars` characters of `text`: whole sentences, preferring those most relevant to `query`.

    A text that is short enough is returned unchanged. A sentence is cut only if it alone exceeds the limit, and then
    between words where possible.
    """
    if len(text) <= max_chars:
        return text
    sentences = split_sentences(text)
    query_stems = _stems(query)
    ranked = sorted(sentences, key=lambda sentence: (-_score(sentence, query_stems), sentence.position))
    best = _most(ranked, max_chars)
    return _render(best) if best else cut(ranked[0].text if ranked else text, max_chars)


def _most(ranked: Iterable[_Sentence], max_chars: int) -> list[_Sentence]:
    """The sentences that fit into `max_chars` characters, tried in ranked order and returned in the text's order."""
    chosen: list[_Sentence] = []
    length = -1  # The first piece has no space before it.
    for sentence in ranked:
        place = bisect(chosen, sentence.position, key=lambda neighbour: neighbour.position)
        before = chosen[place - 1] if place else None
        more = _length(before, sentence)
        if place < len(chosen):
            more += _length(sentence, chosen[place]) - _length(before, chosen[place])
        if length + more <= max_chars:
            chosen.insert(place, sentence)
            length += more
    return chosen


def split_sentences(text: str) -> list[_Sentence]:
    """Sentences of `text` with the label of their section ('' before the first label)."""
    sentences: list[_Sentence] = []
    labels = list(_LABEL.finditer(text))
    starts = [0, *(match.end() for match in labels)]
    ends = [*(match.start() for match in labels), len(text)]
    names = ["", *(match.group(1) for match in labels)]
    for section, (name, start, end) in enumerate(zip(names, starts, ends, strict=True)):
        for sentence in _sentences(text[start:end]):
            sentences.append(_Sentence(sentence, name, section, len(sentences)))
    return sentences


def _sentences(text: str) -> Iterable[str]:
    start = 0
    for match in _END.finditer(text):
        end = match.start() + len(match.group().rstrip())
        if PARAGRAPH not in match.group() and _NOT_AN_END.search(text[max(start, end - 12) : end]):
            continue
        yield text[start:end].strip()
        start = match.end()
    if text[start:].strip():
        yield text[start:].strip()


def _render(sentences: list[_Sentence]) -> str:
    pairs = zip([None, *sentences], sentences, strict=False)
    return " ".join(piece for before, sentence in pairs for piece in _pieces(before, sentence))


def _pieces(before: _Sentence | None, sentence: _Sentence) -> list[str]:
    """The text written for `sentence` after `before`: if needed its section's label or a gap, then the sentence."""
    if before is None or sentence.section != before.section:
        return [f"{sentence.label}:", sentence.text] if sentence.label else [sentence.text]
    return [sentence.text] if sentence.position == before.position + 1 else [GAP, sentence.text]


def _length(before: _Sentence | None, sentence: _Sentence) -> int:
    """Number of characters of `_pieces`, with a space before each piece."""
    return sum(len(piece) + 1 for piece in _pieces(before, sentence))


def _score(sentence: _Sentence, query_stems: frozenset[str]) -> float:
    overlap = len(query_stems & _stems(sentence.text)) / max(1, len(query_stems))
    return 3 * overlap + bool(_RESULTS.search(sentence.label)) + bool(_STATISTIC.search(sentence.text))


def _stems(text: str) -> frozenset[str]:
    letters = pairs(text.lower())
    stems = frozenset(word[:_STEM] for word in re.findall(r"\w{4,}", letters))
    return stems if letters.isascii() else stems | frozenset(filter(starts_run, letters.split()))


def cut(text: str, max_chars: int) -> str:
    """At most `max_chars` characters of `text`, cut between words where possible."""
    head = text[:max_chars]
    if len(text) > max_chars and " " in head and not text[max_chars].isspace() and not starts_run(text[max_chars]):
        head = head.rsplit(" ", 1)[0]
    return head.rstrip()
