"""Keeps the answer key out of live searches: recognises the article that a question was made from.

In PubMedQA a question is its article's title and a task id is the PMID. So a live search easily finds the article, with
the conclusion that the label was made from. Copies (PubMed Central, repositories, dumps of the data set) have another
address and often another title, so titles, identifiers and whole sentences are compared. The conclusion is known here
only by its fingerprint.
"""

import re
from difflib import SequenceMatcher

from agents.tools.text.excerpts import split_sentences
from agents.tools.text.passages import MAX_SOURCE, Passage
from chimera.core.quotes import Fingerprint, count_of, words
from chimera.core.types import Brief

NEAR = 0.9
"""Titles whose word sequences are at least this similar (difflib ratio) count as the same."""
_MIN_PHRASE = 4
_MIN_SENTENCE = 10
MIN_DIGITS = 5
"""Fewest digits of a number that is looked for in texts; shorter ones count only as an identifier or in an address."""


def is_source(passage: Passage, brief: Brief, conclusion: Fingerprint | None = None) -> bool:
    """True if `passage` is or quotes the article behind `brief`, or quotes the conclusion with this fingerprint."""
    return (
        _names_id(passage, brief.id)
        or same_title(passage.title, brief.goal)
        or any(same_title(link, brief.goal) for link in passage.linked)
        or _quotes(passage.text, brief)
        or (conclusion is not None and _concludes(passage, conclusion))
    )


def same_title(title: str, goal: str) -> bool:
    """True if `title` equals `goal`, ignoring case, punctuation, mark-up, additions around it or a cut-off end."""
    ours, theirs = words(goal), words(title)
    if not ours or not theirs:
        return False
    if ours == theirs or (len(ours) >= _MIN_PHRASE and _contains(theirs, ours)):
        return True
    if len(theirs) >= max(_MIN_PHRASE, len(ours) // 2) and _is_cut_off(title) and ours[: len(theirs)] == theirs:
        return True
    return SequenceMatcher(None, ours, theirs, autojunk=False).ratio() >= NEAR


def _names_id(passage: Passage, id_: str) -> bool:
    if not id_:
        return False
    if id_ in (passage.id, *passage.linked):
        return True
    if not id_.isdigit():
        return False
    whole = re.compile(rf"(?<![A-Za-z0-9]){id_}(?![A-Za-z0-9])")
    text = f"{passage.title} {passage.text[:MAX_SOURCE]}" if len(id_) >= MIN_DIGITS else ""
    return bool(whole.search(passage.url or "") or whole.search(text))


def _quotes(text: str, brief: Brief) -> bool:
    """True if the text holds the question, or a whole sentence of the abstract, word for word."""
    theirs = words(text[:MAX_SOURCE])
    phrases = [(words(brief.goal), _MIN_PHRASE)]
    for section in brief.context:
        phrases += [(words(sentence.text), _MIN_SENTENCE) for sentence in split_sentences(section.text)]
    return any(count_of(phrase) >= shortest and _contains(theirs, phrase) for phrase, shortest in phrases)


def _concludes(passage: Passage, conclusion: Fingerprint) -> bool:
    return any(conclusion.occurs_in(part) for part in (passage.text[:MAX_SOURCE], passage.title, passage.id))


def _contains(whole: list[str], part: list[str]) -> bool:
    return f" {' '.join(part)} " in f" {' '.join(whole)} "


def _is_cut_off(title: str) -> bool:
    return title.rstrip().endswith(("...", "…"))
