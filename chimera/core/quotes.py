"""Finds one text in another: quotes that occur word for word, and fingerprints of texts that nobody may store.

Reviews, scores and rewards share the check of quotes. The conclusion of a task's article reveals the label, so no
agent's process may hold it. Digests of its runs of words are enough to find it, or a part of it, in a search result.
"""

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from html import unescape

from chimera.core.unspaced import CHARACTERS, count_words, pairs, starts_run

MIN_QUOTE_WORDS = 3
"""Fewest words of a quote. Shorter fragments occur in almost any text, so they never count as found."""
_LETTER = f"[^\\W{CHARACTERS}]"
"""A letter or digit of a script with spaces between words."""
_BROKEN_RUN = re.compile(rf" (?<=[{CHARACTERS}] )(?=[{CHARACTERS}])")


def normalise(text: str) -> str:
    """`text` with every run of white space as one space. Case and punctuation stay, because quotes are verbatim."""
    return " ".join(text.split())


def occurs(quote: str, texts: Iterable[str]) -> bool:
    """True if `quote` occurs verbatim in one of `texts`, ignoring white space.

    A quote may not begin or end inside a word or a number: 'p=0.1' is not a quote of 'p=0.13'. Fragments of fewer than
    `MIN_QUOTE_WORDS` words count as not found. Where no spaces stand between words, a quote may begin at any letter.
    """
    phrase = _BROKEN_RUN.sub("", normalise(quote))
    if count_words(phrase) < MIN_QUOTE_WORDS:
        return False
    before = rf"(?<!{_LETTER})(?<!\d[.,])" if phrase[0].isalnum() and not starts_run(phrase[0]) else ""
    after = rf"(?!{_LETTER})(?![.,]\d)" if phrase[-1].isalnum() and not starts_run(phrase[-1]) else ""
    pattern = re.compile(before + re.escape(phrase) + after)
    return any(pattern.search(_BROKEN_RUN.sub("", normalise(text))) for text in texts)


def missing_quotes(quotes: Iterable[str], texts: Iterable[str]) -> list[str]:
    """The quotes that occur in none of `texts`, in order."""
    sources = list(texts)
    return [quote for quote in quotes if not occurs(quote, sources)]


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
    length = min(RUN * len(ours) // max(1, count_of(ours)), len(ours))
    return Fingerprint(salt, length, frozenset(_digests(ours, length, salt)))


def words(text: str) -> list[str]:
    """Words of `text` for comparison: no tags, entities, accents, invisible characters, case or punctuation; pairs of
    neighbouring characters where no spaces stand between words."""
    text = re.sub(r"</?[a-zA-Z][^<>]{0,200}>", "", unescape(text))
    text = "".join(filter(_counts, unicodedata.normalize("NFKD", text.casefold())))
    return re.findall(r"[^\W_]+", pairs(text))


def count_of(words: Sequence[str]) -> int:
    """The number of `words`, of which two pairs of characters count as one."""
    return len(words) - sum(map(starts_run, words)) // 2


def _counts(character: str) -> bool:
    return character.isascii() or not (unicodedata.combining(character) or unicodedata.category(character) == "Cf")


def _digests(sequence: Sequence[str], length: int, salt: str) -> Iterator[bytes]:
    if length:
        for start in range(len(sequence) - length + 1):
            run = " ".join((salt, *sequence[start : start + length]))
            yield blake2b(run.encode(errors="surrogatepass"), digest_size=_DIGEST_BYTES).digest()
