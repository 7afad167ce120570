"""The local literature index: BM25 over the data set's abstracts, without their titles and conclusions.

In PubMedQA an article's title is the question itself, so titles in the index would make every search trivial. Ranking
is SQLite FTS5's BM25 (k1 = 1.2, b = 0.75) over Porter stems, and over pairs of characters where words have no spaces
between them.
"""

import re
import sqlite3
from collections.abc import Sequence

from agents.tools.text.fulltext import TOKENIZER, Database, content_words, match_any
from agents.tools.text.passages import Passage, clean
from chimera.core.unspaced import pairs
from chimera.data.tasks import Document

_TRIAL = re.compile(
    r"\brandomi[sz](?:ed|ation|ing)\b|\b(?:randomly|were|was) (?:assigned|allocated)\b|\bplacebo\b|\bdouble[- ]blind"
    r"|\b(?:clinical|controlled|crossover|cross-over|pilot|open-label) trial\b|\bsham\b"
    r"|随机|隨機|安慰剂|安慰劑|双盲|雙盲|临床试验|臨床試驗|ランダム化|無作為|プラセボ|二重盲検|臨床試験",
    re.IGNORECASE,
)


def describes_trial(text: str) -> bool:
    """True when an abstract says that participants were allocated to treatments, or calls itself a trial."""
    return bool(_TRIAL.search(text))


class LiteratureIndex:
    """An immutable index of documents; searching is safe from any thread and after a fork."""

    def __init__(self, documents: Sequence[Document]) -> None:
        self._passages = [Passage(paper.id, clean(paper.title), clean(paper.text, None)) for paper in documents]
        self._database = Database.in_memory(self._build)

    def __len__(self) -> int:
        return len(self._passages)

    def _build(self, connection: sqlite3.Connection) -> None:
        connection.execute(f"CREATE VIRTUAL TABLE abstracts USING fts5(body, content='', tokenize='{TOKENIZER}')")
        connection.execute("CREATE TABLE trials (id INTEGER PRIMARY KEY)")
        rows = list(enumerate(self._passages))
        connection.executemany(
            "INSERT INTO abstracts (rowid, body) VALUES (?, ?)",
            [(number, pairs(passage.text, singles=True)) for number, passage in rows],
        )
        connection.executemany(
            "INSERT INTO trials VALUES (?)", [(number,) for number, passage in rows if describes_trial(passage.text)]
        )

    def search(self, query: str, limit: int, *, trials: bool | None = None) -> list[Passage]:
        """The best `limit` passages for `query`, which may be any text; best first. Ties keep the documents' order.

        `trials`: True for trials only, False for everything else only.
        """
        words = content_words(pairs(query))
        if not words:
            return []
        among = "" if trials is None else f"AND rowid {'' if trials else 'NOT '}IN (SELECT id FROM trials)"
        rows = self._database.query(
            f"SELECT rowid FROM abstracts WHERE abstracts MATCH ? {among} ORDER BY bm25(abstracts), rowid LIMIT ?",
            (match_any(words), limit),
        )
        return [self._passages[number] for (number,) in rows]
