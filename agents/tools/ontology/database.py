"""The protein and Gene Ontology database: an SQLite file, or the small seed that ships with Chimera.

    python -m agents.tools.ontology import --uniprot FILE --go FILE --out DB

builds a database from public files; `tools.database` then points to it. The seed is Chimera's own short description of
well-known proteins and terms, read by the same importers.
"""

import argparse
import re
import sqlite3
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

from agents.tools.ontology.files import Protein, Term, read_proteins, read_terms
from agents.tools.text.fulltext import TOKENIZER, Database, content_words, match_prefixes
from agents.tools.text.passages import Passage, ToolError, clean
from chimera.core.errors import ChimeraError, ConfigError, DataError

ASSETS = Path(__file__).parents[1] / "assets"
APPLICATION_ID = 0x4348494D
"""Identifies Chimera's files in SQLite's header ("CHIM")."""
VERSION = 1

_SCHEMA = f"""
PRAGMA application_id = {APPLICATION_ID};
PRAGMA user_version = {VERSION};
CREATE TABLE entries (
    number INTEGER PRIMARY KEY, kind TEXT NOT NULL, id TEXT NOT NULL, title TEXT NOT NULL, text TEXT NOT NULL,
    rank INTEGER NOT NULL, UNIQUE (kind, id)
);
CREATE TABLE names (name TEXT NOT NULL, kind TEXT NOT NULL, entry INTEGER NOT NULL REFERENCES entries);
CREATE VIRTUAL TABLE search USING fts5(names, text, content='', tokenize='{TOKENIZER}');
"""
_COLUMNS = "entries.id, entries.title, entries.text"
_MAX_TERMS_SHOWN = 6
_MAX_PHRASE = 6
_URLS = {"protein": "https://www.uniprot.org/uniprotkb/{}", "term": "https://www.ebi.ac.uk/QuickGO/term/{}"}


class Knowledge:
    """Look-ups by name, symbol, synonym or identifier; safe from any thread and after a fork."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def proteins(self, name: str, limit: int) -> list[Passage]:
        """Proteins that match `name`, best first; raises ToolError if the database cannot be read."""
        return self._find("protein", name, limit)

    def terms(self, term: str, limit: int) -> list[Passage]:
        """Gene Ontology terms that match `term`, best first; raises ToolError if the database cannot be read."""
        return self._find("term", go_id(term) or term, limit)

    def _find(self, kind: str, text: str, limit: int) -> list[Passage]:
        try:
            rows = (
                self._named(kind, [normal(text)], limit)
                or self._named(kind, _phrases(text), limit)
                or self._prefixed(kind, text, limit)
            )
        except sqlite3.Error as error:
            raise ToolError(f"the protein and ontology database cannot be read: {error}") from error
        return [Passage(id_, title, body, _URLS[kind].format(id_)) for id_, title, body in rows]

    def _named(self, kind: str, names: list[str], limit: int) -> list[tuple]:
        """Entries with one of `names`, longest name first, human proteins first."""
        marks = ",".join("?" * len(names))
        return self._database.query(
            f"SELECT {_COLUMNS} FROM names JOIN entries ON entries.number = names.entry "
            f"WHERE names.kind = ? AND names.name IN ({marks}) GROUP BY entries.number "
            "ORDER BY max(length(names.name)) DESC, entries.rank, entries.number LIMIT ?",
            (kind, *names, limit),
        )

    def _prefixed(self, kind: str, text: str, limit: int) -> list[tuple]:
        words = content_words(text)
        if not words:
            return []
        return self._database.query(
            f"SELECT {_COLUMNS} FROM search JOIN entries ON entries.number = search.rowid "
            "WHERE search MATCH ? AND entries.kind = ? "
            "ORDER BY bm25(search, 5.0, 1.0), entries.rank, entries.number LIMIT ?",
            (match_prefixes(words), kind, limit),
        )


@cache
def seed() -> Knowledge:
    """The database that ships with Chimera, built in memory once per process."""
    return Knowledge(
        Database.in_memory(lambda connection: fill(connection, ASSETS / "proteins.tsv", ASSETS / "terms.obo"))
    )


def open_knowledge(path: Path | None) -> Knowledge:
    """The database in `path`, or the seed; raises ConfigError if the file is not a Chimera database."""
    if path is None:
        return seed()
    remedy = "make one with `python -m agents.tools.ontology import`"
    if not path.is_file():
        raise ConfigError(f"tools.database={path}: no such file; {remedy}")
    database = Database.from_file(path)
    try:
        ((application,),) = database.query("PRAGMA application_id")
        ((version,),) = database.query("PRAGMA user_version")
    except sqlite3.Error as error:
        raise ConfigError(f"tools.database={path}: {error}; {remedy}") from error
    if (application, version) != (APPLICATION_ID, VERSION):
        raise ConfigError(f"tools.database={path} was not made by this version of Chimera; {remedy}")
    return Knowledge(database)


def build_file(out: Path, uniprot: Path | None, go: Path | None) -> tuple[int, int]:
    """Write a database to `out`, which is replaced only on success; returns counts of proteins and terms."""
    partial = out.with_name(out.name + ".partial")
    partial.unlink(missing_ok=True)
    try:
        connection = sqlite3.connect(partial)
        try:
            with connection:
                counts = fill(connection, uniprot, go)
        finally:
            connection.close()
        partial.replace(out)
    except (sqlite3.Error, OSError) as error:
        raise DataError(f"{out}: cannot be written: {error}") from error
    finally:
        partial.unlink(missing_ok=True)
    return counts


def fill(connection: sqlite3.Connection, uniprot: Path | None, go: Path | None) -> tuple[int, int]:
    """Create the tables and load both files; returns counts of proteins and terms. The first of duplicates is kept."""
    connection.executescript(_SCHEMA)
    terms = list(read_terms(go)) if go else []
    term_names = {term.id: term.name for term in terms}
    n_terms = sum(_insert(connection, "term", *_term_row(term, term_names)) for term in terms)
    n_proteins = sum(
        _insert(connection, "protein", *_protein_row(protein, term_names))
        for protein in (read_proteins(uniprot) if uniprot else ())
    )
    connection.execute("CREATE INDEX names_by_name ON names (kind, name)")
    return n_proteins, n_terms


def go_id(text: str) -> str | None:
    """The identifier in 'GO:0006915', 'go 0006915' or '0006915'; None if `text` is anything else."""
    match = re.fullmatch(r"(?:go)?[\s:_]*([0-9]{7})", text.strip(), re.IGNORECASE)
    return f"GO:{match[1]}" if match else None


def normal(name: str) -> str:
    """`name` in the form in which names are compared: case-folded, with single spaces."""
    return " ".join(name.casefold().split())


def _insert(
    connection: sqlite3.Connection, kind: str, id_: str, title: str, text: str, rank: int, names: Iterable[str]
) -> int:
    cursor = connection.execute(
        "INSERT OR IGNORE INTO entries (kind, id, title, text, rank) VALUES (?, ?, ?, ?, ?)",
        (kind, id_, clean(title), clean(text), rank),
    )
    if not cursor.rowcount:
        return 0
    unique = sorted({normal(name) for name in (id_, title, *names) if name.strip()})
    connection.executemany("INSERT INTO names VALUES (?, ?, ?)", [(name, kind, cursor.lastrowid) for name in unique])
    connection.execute(
        "INSERT INTO search (rowid, names, text) VALUES (?, ?, ?)", (cursor.lastrowid, " ".join(unique), text)
    )
    return 1


def _protein_row(protein: Protein, term_names: dict[str, str]) -> tuple[str, str, str, int, tuple[str, ...]]:
    gene = f"gene {protein.genes[0]}; " if protein.genes else ""
    organism = f"{protein.organism}; " if protein.organism else ""
    text = f"{protein.name} ({gene}{organism}UniProt {protein.accession})."
    if protein.function:
        text += f" Function: {protein.function}"
    if protein.terms:
        shown = [f"{term_names[term]} ({term})" if term in term_names else term for term in protein.terms]
        text += f" Gene Ontology: {'; '.join(shown[:_MAX_TERMS_SHOWN])}."
    human = protein.organism.startswith("Homo sapiens")
    return protein.accession, protein.name, text, int(not human), (*protein.names, *protein.genes)


def _term_row(term: Term, term_names: dict[str, str]) -> tuple[str, str, str, int, tuple[str, ...]]:
    namespace = f", {term.namespace}" if term.namespace else ""
    text = f"{term.name} ({term.id}{namespace})."
    if term.definition:
        text += f" Definition: {term.definition}"
    if term.synonyms:
        text += f" Synonyms: {'; '.join(term.synonyms[:_MAX_TERMS_SHOWN])}."
    parents = [f"{term_names[parent]} ({parent})" for parent in term.parents if parent in term_names]
    if parents:
        text += f" Is a kind of: {'; '.join(parents[:_MAX_TERMS_SHOWN])}."
    return term.id, term.name, text, 0, (*term.synonyms, *term.alternative_ids)


def _phrases(text: str) -> list[str]:
    """Every run of words in `text` that could be a name, so that 'the TP53 gene' also finds TP53."""
    words = [word.strip(".,;:?!\"'()[]") for word in normal(text).split()][:40]
    runs = (words[start : start + length] for length in range(1, _MAX_PHRASE + 1) for start in range(len(words)))
    return [phrase for phrase in dict.fromkeys(" ".join(run) for run in runs) if len(phrase) >= 3]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m agents.tools.ontology", description="Protein and GO database.")
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("import", help="build a database from UniProt and Gene Ontology files")
    command.add_argument("--uniprot", type=Path, metavar="FILE", help="UniProt TSV export, Swiss-Prot text or FASTA")
    command.add_argument("--go", type=Path, metavar="FILE", help="Gene Ontology .obo file")
    command.add_argument("--out", type=Path, metavar="DB", required=True, help="SQLite file to write")
    return parser


def main(arguments: Iterator[str] | list[str] | None = None) -> int:
    parser = _parser()
    options = parser.parse_args(list(arguments) if arguments is not None else None)
    if not options.uniprot and not options.go:
        parser.error("give --uniprot, --go or both")
    try:
        proteins, terms = build_file(options.out, options.uniprot, options.go)
    except ChimeraError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    print(f"{options.out}: {proteins} proteins, {terms} terms")
    return 0
