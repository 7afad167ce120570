"""The protein and Gene Ontology database: the seed, look-ups, importers and their error paths."""

import gzip
import re
import sqlite3
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from message_kit import refused

from agents.tools.ontology.database import ASSETS, build_file, go_id, main, open_knowledge, seed
from agents.tools.ontology.files import read_proteins, read_terms
from agents.tools.text.passages import ToolError
from agents.tools.toolbox import build_toolbox
from chimera.config.sections.tools import ToolsConfig
from chimera.core.errors import ConfigError, DataError
from chimera.core.types import Brief

TABLE = (
    "Entry\tEntry Name\tProtein names\tGene Names\tOrganism\tFunction [CC]\tGene Ontology IDs\n"
    "P11111\tDNM_MOUSE\tDNA (cytosine-5)-methyltransferase 9 (Dnmt9) (EC 2.1.1.37) (Test enzyme (short)) "
    "[Cleaved into: Something (Else)]\tDnmt9 Met9\tMus musculus (Mouse)\t"
    "FUNCTION: Methylates DNA (PubMed:1234567, PubMed:7654321). {ECO:0000269|PubMed:1234567}.\tGO:0000001; GO:0000009\n"
    "P22222\tDNM_HUMAN\tDNA methyltransferase nine\tDNMT9\tHomo sapiens (Human)\t\t\n"
)
FLAT = """ID   TST1_HUMAN              Reviewed;         393 AA.
AC   P33333; Q99999;
DE   RecName: Full=Test protein 1 {ECO:0000305};
DE            Short=TP1;
DE   AltName: Full=Other name of test;
GN   Name=TST1 {ECO:0000312}; Synonyms=T1, TSTA;
OS   Homo sapiens (Human).
CC   -!- FUNCTION: Binds tests
CC       firmly. {ECO:0000269|PubMed:1}.
CC   -!- SUBUNIT: Alone.
DR   GO; GO:0000001; P:testing; IEA:X.
SQ   SEQUENCE   3 AA;
     MEE
//
"""
FASTA = ">sp|P44444|FST_HUMAN Fasta test protein OS=Homo sapiens OX=9606 GN=FST4 PE=1 SV=1\nMEEPQ\nSDPSV\n"
OBO = r"""format-version: 1.2
ontology: go

[Term]
id: GO:0000001
name: testing
namespace: biological_process
alt_id: GO:0000007
def: "Finding \"faults\" early." [GOC:us]
synonym: "examination" EXACT []
is_a: GO:0000002 ! checking

[Term]
id: GO:0000002
name: checking

[Term]
id: GO:0000003
name: guessing
is_obsolete: true

[Typedef]
id: part_of
name: part of
"""


@pytest.fixture
def ontology_files(tmp_path):
    files = {"table.tsv": TABLE, "flat.txt": FLAT, "names.fasta": FASTA, "go.obo": OBO}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def first(passages):
    assert passages
    return passages[0].id


@pytest.mark.parametrize(
    ("name", "accession"),
    [
        ("P04637", "P04637"),
        ("tp53", "P04637"),
        ("  Cellular  TUMOR antigen p53 ", "P04637"),
        ("HER2", "P04626"),
        ("PD-L1", "Q9NZQ7"),
        ("What does the BRCA1 gene do?", "P38398"),
        ("insulin receptor", "P06213"),
        ("insulin", "P01308"),
        ("angiotensin-converting enzyme 2 in lung", "Q9BYF1"),
        ("blocked by evolocumab", "Q8NBP7"),
        ("dystrop", "P11532"),
    ],
)
def test_proteins_are_found_by_name_symbol_synonym_accession_or_prefix(name, accession):
    assert first(seed().proteins(name, 3)) == accession


@pytest.mark.parametrize(
    ("term", "id_"),
    [
        ("GO:0006915", "GO:0006915"),
        ("go 0006915", "GO:0006915"),
        ("0006915", "GO:0006915"),
        ("apoptosis", "GO:0006915"),
        ("DNA repair", "GO:0006281"),
        ("role of synaptic transmission", "GO:0007268"),
        ("ossific", "GO:0001503"),
    ],
)
def test_terms_are_found_by_id_name_synonym_or_prefix(term, id_):
    assert first(seed().terms(term, 3)) == id_


def test_seed_passages_hold_function_and_named_terms():
    (passage,) = seed().proteins("BRCA1", 1)
    assert passage.text.startswith("Breast cancer type 1 susceptibility protein (gene BRCA1; Homo sapiens (Human); ")
    assert "DNA repair (GO:0006281)" in passage.text
    assert passage.url == "https://www.uniprot.org/uniprotkb/P38398"
    (term,) = seed().terms("GO:0006281", 1)
    assert "Is a kind of: DNA damage response (GO:0006974)." in term.text


def test_seed_is_consistent():
    terms = list(read_terms(ASSETS / "terms.obo"))
    proteins = list(read_proteins(ASSETS / "proteins.tsv"))
    known = {term.id for term in terms}
    assert len(known) == len(terms) >= 60
    assert len({protein.accession for protein in proteins}) == len(proteins) >= 60
    assert {term for protein in proteins for term in protein.terms} <= known
    assert {parent for term in terms for parent in term.parents} <= known
    assert all(protein.function and protein.genes for protein in proteins)


@given(text=st.text(max_size=120))
@settings(max_examples=100, deadline=None)
def test_any_look_up_text_is_safe(text):
    assert len(seed().proteins(text, 2)) <= 2
    assert len(seed().terms(text, 2)) <= 2


def test_kinds_are_kept_apart():
    assert seed().proteins("GO:0006915", 3) == []
    assert seed().terms("P04637", 3) == []


@pytest.mark.parametrize("text", ["GO:123", "GO:12345678", "apoptosis 0006915", "", "٠٠٠٦٩١٥"])
def test_other_texts_are_no_go_id(text):
    assert go_id(text) is None


def test_uniprot_table(ontology_files):
    mouse, human = read_proteins(ontology_files / "table.tsv")
    assert mouse.name == "DNA (cytosine-5)-methyltransferase 9"
    assert mouse.names == ("Dnmt9", "Test enzyme (short)", "DNM_MOUSE")
    assert mouse.genes == ("Dnmt9", "Met9")
    assert mouse.function == "Methylates DNA."
    assert mouse.terms == ("GO:0000001", "GO:0000009")
    assert (human.function, human.terms) == ("", ())


def test_uniprot_flat_text(ontology_files):
    (protein,) = read_proteins(ontology_files / "flat.txt")
    assert (protein.accession, protein.name, protein.organism) == ("P33333", "Test protein 1", "Homo sapiens (Human)")
    assert protein.names == ("TP1", "Other name of test", "TST1_HUMAN", "Q99999")
    assert protein.genes == ("TST1", "T1", "TSTA")
    assert (protein.function, protein.terms) == ("Binds tests firmly.", ("GO:0000001",))


def test_uniprot_fasta(ontology_files):
    (protein,) = read_proteins(ontology_files / "names.fasta")
    assert (protein.accession, protein.name, protein.genes) == ("P44444", "Fasta test protein", ("FST4",))
    assert (protein.names, protein.organism) == (("FST_HUMAN",), "Homo sapiens")


def test_obo_leaves_obsolete_terms_and_relations_out(ontology_files):
    testing, checking = read_terms(ontology_files / "go.obo")
    assert (testing.definition, testing.namespace) == ('Finding "faults" early.', "biological process")
    assert (testing.synonyms, testing.alternative_ids) == (("examination",), ("GO:0000007",))
    assert testing.parents == (checking.id,)


def test_compressed_files_are_read(ontology_files):
    packed = ontology_files / "go.obo.gz"
    packed.write_bytes(gzip.compress(OBO.encode()))
    assert list(read_terms(packed)) == list(read_terms(ontology_files / "go.obo"))


def test_imported_files_are_looked_up_through_the_toolbox(ontology_files):
    out = ontology_files / "own.db"
    assert build_file(out, ontology_files / "table.tsv", ontology_files / "go.obo") == (2, 2)
    knowledge = open_knowledge(out)
    assert [passage.id for passage in knowledge.proteins("dnmt9", 5)] == ["P22222", "P11111"]
    assert first(knowledge.proteins("test enzyme (short)", 1)) == "P11111"
    assert first(knowledge.terms("GO:0000007", 1)) == "GO:0000001"
    assert "testing (GO:0000001); GO:0000009" in knowledge.proteins("P11111", 1)[0].text
    assert knowledge.proteins("TP53", 1) == []


async def test_the_configured_database_replaces_the_seed(ontology_files):
    out = ontology_files / "own.db"
    build_file(out, ontology_files / "flat.txt", None)
    toolbox = build_toolbox(ToolsConfig(database=out), (), {})
    brief = Brief("1", "g", ())
    assert first((await toolbox.call("protein_lookup", {"name": "T1"}, brief=brief)).passages) == "P33333"
    assert (await toolbox.call("protein_lookup", {"name": "TP53"}, brief=brief)).passages == ()


def test_the_command_builds_a_database(ontology_files):
    out = ontology_files / "own.db"
    command = [sys.executable, "-m", "agents.tools.ontology", "import", "--go", ontology_files / "go.obo"]
    done = subprocess.run([*command, "--out", out], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"{out}: 0 proteins, 2 terms\n"
    assert first(open_knowledge(out).terms("examination", 1)) == "GO:0000001"


def test_duplicate_accessions_keep_the_first(ontology_files):
    double = ontology_files / "double.fasta"
    double.write_text(FASTA + FASTA.replace("Fasta test", "Second"))
    assert build_file(ontology_files / "own.db", double, None) == (1, 0)
    assert open_knowledge(ontology_files / "own.db").proteins("P44444", 1)[0].title == "Fasta test protein"


@pytest.mark.parametrize(
    ("read", "text", "fault"),
    [
        (read_proteins, "hello\n", "not a UniProt file"),
        (read_proteins, "", "not a UniProt file"),
        (read_proteins, "Entry\tOrganism\nP1\tHuman\n", "no 'Protein names' column; it has Entry, Organism"),
        (read_proteins, "Entry\tProtein names\nP1\tA\tB\n", "line 2: 3 fields where the header has 2"),
        (read_proteins, "Entry\tProtein names\nP1\tA\n\tB\n", "line 3: Entry or Protein names is empty"),
        (read_proteins, ">no header\nMEE\n", "line 1: not a UniProt FASTA header"),
        (read_proteins, FLAT.replace("//\n", ""), "does not end with '//'"),
        (read_proteins, FLAT.replace("AC   P33333; Q99999;\n", ""), "has no AC"),
        (read_proteins, re.sub("^DE.*\n", "", FLAT, flags=re.MULTILINE), "has no DE name"),
        (read_terms, "<html>", "format-version:"),
        (read_terms, "format-version: 1.2\n\n[Term]\nname: nameless id\n", "line 3"),
        (read_terms, "format-version: 1.2\n\n[Term]\nid: GO:0000001\n", "line 3"),
    ],
)
def test_broken_files_are_named_with_line_and_field(tmp_path, read, text, fault):
    path = tmp_path / "some.txt"
    path.write_text(text)
    with refused(DataError, path, fault):
        list(read(path))


@pytest.mark.parametrize("content", [None, b"\xff\xfe\x00", b"\x1f\x8b broken", b"\x1f\x8b\b" + bytes(7) + b"\xff"])
def test_unreadable_files_are_data_errors(tmp_path, content):
    path = tmp_path / "go.obo.gz"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DataError, match="cannot be read"):
        list(read_terms(path))


def test_a_failed_import_keeps_the_old_database_and_leaves_no_rest(ontology_files, capsys):
    out = ontology_files / "own.db"
    build_file(out, ontology_files / "names.fasta", None)
    before = out.read_bytes()
    broken = ontology_files / "broken.fasta"
    broken.write_text(FASTA + ">oops\n")
    assert main(["import", "--uniprot", str(broken), "--out", str(out)]) == DataError.exit_code
    assert "line 4: not a UniProt FASTA header" in capsys.readouterr().err
    assert out.read_bytes() == before
    assert not list(ontology_files.glob("*.partial"))


def test_an_import_without_input_says_what_to_give(tmp_path, capsys):
    with pytest.raises(SystemExit):
        main(["import", "--out", str(tmp_path / "x.db")])
    assert "give --uniprot, --go or both" in capsys.readouterr().err


def test_an_unwritable_output_is_a_data_error(ontology_files, capsys):
    out = ontology_files / "missing" / "x.db"
    assert main(["import", "--go", str(ontology_files / "go.obo"), "--out", str(out)]) == DataError.exit_code
    assert "cannot be written" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["missing", "text", "other", "older"])
def test_a_wrong_database_is_a_configuration_error(ontology_files, kind):
    path = ontology_files / "some.db"
    if kind == "text":
        path.write_text("not a database, but long enough to have a header of one hundred bytes" * 3)
    elif kind == "other":
        sqlite3.connect(path).executescript("CREATE TABLE t (x);").close()
    elif kind == "older":
        build_file(path, None, ontology_files / "go.obo")
        sqlite3.connect(path).executescript("PRAGMA user_version = 0;").close()
    with refused(ConfigError, f"tools.database={path}", "python -m agents.tools.ontology import"):
        build_toolbox(ToolsConfig(database=path), (), {})


def test_a_database_that_breaks_later_is_a_tool_error(ontology_files):
    path = ontology_files / "some.db"
    build_file(path, None, ontology_files / "go.obo")
    sqlite3.connect(path).executescript("DROP TABLE names;").close()
    with refused(ToolError, "cannot be read", "no such table: names"):
        open_knowledge(path).terms("testing", 1)


def test_the_database_is_opened_read_only(ontology_files):
    path = ontology_files / "some.db"
    build_file(path, None, ontology_files / "go.obo")
    database = open_knowledge(path)._database
    with pytest.raises(sqlite3.OperationalError, match="readonly"):
        database.query("DELETE FROM names")
