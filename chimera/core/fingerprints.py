"""Fingerprints: recognise a text in other texts without storing it.

The conclusion of a task's article reveals the label, so no agent's process may hold it. Digests of its runs of words
are enough to find it, or a part of it, in a search result.
"""

import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from html import unescape

RUN = 8
"""Words in a run. Shorter runs occur in unrelated texts; longer runs would miss short quotes."""
_DIGEST_BYTES = 8


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """Digests of every run of `length` consecutive words of a text, salted so that texts cannot be compared."""

    salt: str
    length: int
    digests: frozenset[bytes]

    def occurs_in(self, text: str) -> bool:
        """True if `text` holds one of the runs, ignoring case, punctuation, accents and mark-up."""
        return any(digest in self.digests for digest in _digests(words(text), self.length, self.salt))


def fingerprint(text: str, salt: str) -> Fingerprint:
    """The fingerprint of `text`: all its runs of 8 words, or the whole text as one run if it is shorter.

    A text without words has no digests and occurs nowhere.
    """
    ours = words(text)
    length = min(RUN, len(ours))
    return Fingerprint(salt, length, frozenset(_digests(ours, length, salt)))


def words(text: str) -> list[str]:
    """Words of `text` for comparison: no tags, entities, accents, invisible characters, case or punctuation."""
    text = re.sub(r"</?[a-zA-Z][^<>]{0,200}>", "", unescape(text))
    return re.findall(r"[^\W_]+", "".join(filter(_counts, unicodedata.normalize("NFKD", text.casefold()))))


def _counts(character: str) -> bool:
    return character.isascii() or not (unicodedata.combining(character) or unicodedata.category(character) == "Cf")


def _digests(sequence: Sequence[str], length: int, salt: str) -> Iterator[bytes]:
    if length:
        for start in range(len(sequence) - length + 1):
            run = " ".join((salt, *sequence[start : start + length]))
            yield blake2b(run.encode(errors="surrogatepass"), digest_size=_DIGEST_BYTES).digest()
