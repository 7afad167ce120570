"""Readers of public biology files: UniProt exports (TSV, Swiss-Prot text, FASTA) and Gene Ontology OBO files.

Readers stream, so a file with all of Swiss-Prot takes little memory. Files whose names end in .gz are decompressed.
"""

import csv
import gzip
import re
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TextIO

from chimera.core.errors import DataError

_EVIDENCE = re.compile(r"(?<!\s)\s*(?:\{ECO:[^{}]*\}|\((?:PubMed:\d+(?:, )?)+\))")
_GO_ID = re.compile(r"GO:\d{7}")
_FASTA = re.compile(
    r">(?:\w+)\|(?P<accession>\w+)\|(?P<entry>\w+) (?P<name>(?:(?! OS=).)*) OS=(?P<organism>(?:(?! OX=\d).)*) OX=\d+"
    r"(?P<rest>.*)"
)
_QUOTED = re.compile(r'[^"]*"((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True, slots=True)
class Protein:
    """One UniProt entry: `names` holds synonyms of the protein, `genes` the gene symbol and its synonyms."""

    accession: str
    name: str
    names: tuple[str, ...] = ()
    genes: tuple[str, ...] = ()
    organism: str = ""
    function: str = ""
    terms: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Term:
    """One Gene Ontology term that is not obsolete."""

    id: str
    name: str
    namespace: str = ""
    definition: str = ""
    synonyms: tuple[str, ...] = ()
    alternative_ids: tuple[str, ...] = ()
    parents: tuple[str, ...] = ()


def read_proteins(path: Path) -> Iterator[Protein]:
    """Read the proteins of a UniProt file in any of the three formats; raises DataError naming file, line and field."""
    with _open(path) as lines:
        first = next((line for line in lines if line.strip()), "")
        if first.startswith(">"):
            yield from _fasta(path, first, lines)
        elif first.startswith("ID   "):
            yield from _flat(path, first, lines)
        elif "\t" in first and "Entry" in first.split("\t"):
            yield from _table(path, first, lines)
        else:
            raise DataError(
                f"{path}: not a UniProt file: expected a TSV export with an Entry column, Swiss-Prot text or FASTA"
            )


def read_terms(path: Path) -> Iterator[Term]:
    """Read the terms of an OBO file; raises DataError if it is no OBO file or a term lacks its id or name."""
    with _open(path) as lines:
        if not next(lines, "").startswith("format-version:"):
            raise DataError(f"{path}: not an OBO file: its first line must begin with 'format-version:'")
        stanza: list[tuple[str, str]] | None = None
        start = 1
        for number, line in enumerate(lines, start=2):
            line = line.strip()
            if line.startswith("["):
                yield from _term(path, start, stanza)
                stanza, start = ([], number) if line == "[Term]" else (None, number)
            elif stanza is not None and ": " in line:
                key, value = line.split(": ", 1)
                stanza.append((key, value))
        yield from _term(path, start, stanza)


@contextmanager
def _open(path: Path) -> Iterator[TextIO]:
    try:
        with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8") as lines:
            yield lines
    except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
        raise DataError(f"{path}: cannot be read: {error}") from error


def _term(path: Path, line: int, stanza: list[tuple[str, str]] | None) -> Iterator[Term]:
    if stanza is None or ("is_obsolete", "true") in stanza:
        return
    tags: dict[str, list[str]] = {}
    for key, value in stanza:
        tags.setdefault(key, []).append(value)
    for field in ("id", "name"):
        if field not in tags:
            raise DataError(f"{path}: line {line}: the term has no {field}")
    if not _GO_ID.fullmatch(tags["id"][0]):
        return
    yield Term(
        tags["id"][0],
        tags["name"][0],
        tags.get("namespace", [""])[0].replace("_", " "),
        next(_quoted(tags.get("def", [])), ""),
        tuple(_quoted(tags.get("synonym", []))),
        tuple(tags.get("alt_id", [])),
        tuple(match.group() for value in tags.get("is_a", []) if (match := _GO_ID.match(value))),
    )


def _quoted(values: Iterable[str]) -> Iterator[str]:
    for value in values:
        if match := _QUOTED.match(value):
            yield re.sub(r"\\(.)", r"\1", match.group(1))


def _table(path: Path, header: str, lines: Iterable[str]) -> Iterator[Protein]:
    csv.field_size_limit(1 << 24)
    columns = header.rstrip("\r\n").split("\t")
    if "Protein names" not in columns:
        raise DataError(f"{path}: the TSV export has no 'Protein names' column; it has {', '.join(columns)}")
    for number, values in enumerate(csv.reader(lines, delimiter="\t", quoting=csv.QUOTE_NONE), start=2):
        if not values:
            continue
        if len(values) != len(columns):
            raise DataError(f"{path}: line {number}: {len(values)} fields where the header has {len(columns)}")
        row = dict(zip(columns, values, strict=True))
        name, *synonyms = _split_names(row["Protein names"])
        if not row["Entry"] or not name:
            raise DataError(f"{path}: line {number}: Entry or Protein names is empty")
        yield Protein(
            row["Entry"],
            name,
            tuple(filter(None, (*synonyms, row.get("Entry Name", "")))),
            tuple(re.split(r"[\s;]+", row.get("Gene Names", "").strip())) if row.get("Gene Names", "").strip() else (),
            row.get("Organism", ""),
            _function(row.get("Function [CC]", "")),
            tuple(_GO_ID.findall(row.get("Gene Ontology IDs", "") or row.get("Gene Ontology (GO)", ""))),
        )


def _split_names(text: str) -> list[str]:
    """Split 'Name (Synonym one) (Synonym two)' into its parts; brackets inside a name stay."""
    text = re.sub(r"(?<!\s)\s*\[(?:Cleaved into|Includes):.*", "", text.strip())
    synonyms: list[str] = []
    while text.endswith(")"):
        opening = _opening_bracket(text)
        if opening < 1 or text[opening - 1] != " ":
            break
        synonyms.insert(0, text[opening + 1 : -1])
        text = text[: opening - 1].rstrip()
    return [text, *(synonym for synonym in synonyms if not synonym.startswith("EC "))]


def _opening_bracket(text: str) -> int:
    """Position of the bracket that the last character of `text` closes; -1 if there is none."""
    depth = 0
    for position in range(len(text) - 1, -1, -1):
        depth += (text[position] == ")") - (text[position] == "(")
        if depth == 0:
            return position
    return -1


def strip_evidence(text: str) -> str:
    """`text` without UniProt's evidence tags and PubMed citations."""
    return _EVIDENCE.sub("", text)


def _function(text: str) -> str:
    return strip_evidence(text).removeprefix("FUNCTION: ").replace(" FUNCTION: ", " ").replace("..", ".").strip()


def _fasta(path: Path, first: str, lines: Iterable[str]) -> Iterator[Protein]:
    for number, line in enumerate(chain([first], lines), start=1):
        if not line.startswith(">"):
            continue
        match = _FASTA.match(line.strip())
        if not match:
            raise DataError(f"{path}: line {number}: not a UniProt FASTA header: {line.strip()[:80]!r}")
        gene = re.search(r" GN=(\S+)", match["rest"])
        yield Protein(
            match["accession"],
            match["name"],
            (match["entry"],),
            (gene[1],) if gene else (),
            match["organism"],
        )


def _flat(path: Path, first: str, lines: Iterable[str]) -> Iterator[Protein]:
    record: list[tuple[str, str]] = []
    number = 0
    for number, line in enumerate(chain([first], lines), start=1):
        if line.startswith("//"):
            yield _flat_protein(path, number, record)
            record = []
        elif line.strip():
            record.append((line[:2], line[5:].rstrip()))
    if record:
        raise DataError(f"{path}: line {number}: the last entry does not end with '//': is the file cut off?")


def _flat_protein(path: Path, line: int, record: list[tuple[str, str]]) -> Protein:
    def joined(code: str) -> str:
        return " ".join(text.strip() for key, text in record if key == code)

    accessions = [part.strip() for part in joined("AC").split(";") if part.strip()]
    names = [_EVIDENCE.sub("", name).strip() for name in re.findall(r"(?:Full|Short)=([^;]+)", joined("DE"))]
    if not accessions or not names:
        raise DataError(f"{path}: the entry that ends on line {line} has no {'DE name' if accessions else 'AC'}")
    genes = re.findall(r"(?:Name|Synonyms)=([^;]+)", joined("GN"))
    comments = joined("CC").partition("-----")[0].split("-!- ")  # Below the line stands the licence.
    return Protein(
        accessions[0],
        names[0],
        (*names[1:], *joined("ID").split()[:1], *accessions[1:]),
        tuple(part.strip() for group in genes for part in _EVIDENCE.sub("", group).split(",") if part.strip()),
        joined("OS").rstrip("."),
        _function(" ".join(comment.strip() for comment in comments if comment.startswith("FUNCTION:"))),
        tuple(_GO_ID.findall(" ".join(text for key, text in record if key == "DR" and text.startswith("GO;")))),
    )
