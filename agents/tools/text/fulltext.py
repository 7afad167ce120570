"""SQLite full-text search that is safe in any thread or forked process and for any query text.

A SQLite connection must not be used after a fork, nor by several threads without locks. So a database is kept as its
serialised bytes (or as a read-only file), and every thread of every process opens its own connection on first use.
"""

import os
import re
import sqlite3
import threading
import unicodedata
from collections.abc import Callable, Sequence
from pathlib import Path
from urllib.parse import quote

TOKENIZER = "porter unicode61 remove_diacritics 2"
MAX_WORDS = 48
"""Most distinct words of a query that are used; more words would only cost time."""

# Words that occur in nearly every question and abstract, so they do not help to rank.
STOP_WORDS = frozenset(
    re.findall(
        r"\w+",
        """a about after against all also among an and any are as at be been before being between both but by can could
        did do does during each for from had has have how if in into is it its may more most no nor not of on or other
        our over same should so some such than that the their them then there these they this those through to under up
        was we were what when where whether which while who whom why will with within without would you your""",
    )
)


def content_words(text: str) -> list[str]:
    """Distinct words of `text` in order, in lower case. Stop words are left out, unless there are no other words."""
    composed = unicodedata.normalize("NFC", text).lower().replace("i\u0307", "i")  # "İ".lower() is a dotted i.
    words = list(dict.fromkeys(re.findall(r"\w+", composed)))
    return ([word for word in words if word not in STOP_WORDS] or words)[:MAX_WORDS]


def match_any(words: Sequence[str]) -> str:
    """FTS5 expression for documents with any of `words`; words are quoted so that none is read as an operator."""
    return " OR ".join(f'"{word}"' for word in words)


def match_prefixes(words: Sequence[str]) -> str:
    """FTS5 expression for documents that have, for each of `words`, a word that begins with it."""
    return " AND ".join(f'"{word}"*' for word in words)


class Database:
    """A read-only SQLite database, in memory or in a file, with one connection per thread and process."""

    def __init__(self, opener: Callable[[], sqlite3.Connection]) -> None:
        self._opener = opener
        self._local = threading.local()

    @classmethod
    def in_memory(cls, build: Callable[[sqlite3.Connection], object]) -> "Database":
        """Build a database once with `build`; connections are copies of it."""
        source = sqlite3.connect(":memory:")
        with source:
            build(source)
        image = source.serialize()
        source.close()

        def opener() -> sqlite3.Connection:
            connection = sqlite3.connect(":memory:")
            connection.deserialize(image)
            return connection

        return cls(opener)

    @classmethod
    def from_file(cls, path: Path) -> "Database":
        """Open `path` read-only. The first query raises sqlite3.Error if it is not a database."""
        return cls(lambda: sqlite3.connect(f"file:{quote(str(path.absolute()))}?mode=ro", uri=True))

    def query(self, sql: str, parameters: Sequence[object] = ()) -> list[tuple]:
        """Rows of one read-only statement; raises sqlite3.Error."""
        return self._connection().execute(sql, parameters).fetchall()

    def _connection(self) -> sqlite3.Connection:
        if getattr(self._local, "process", None) != os.getpid():
            self._local.connection = self._opener()
            self._local.process = os.getpid()
        return self._local.connection
