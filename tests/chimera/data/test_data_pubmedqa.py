"""Reading PubMedQA files: both layouts give the same tasks, and every fault is one error that says where it is."""

import json
from pathlib import Path

import pyarrow
import pytest
from message_kit import refused
from pyarrow import parquet

from chimera.core.errors import DataError
from chimera.core.types import ResearchTask, Section
from chimera.data.pubmedqa import load_file, load_hub, load_test_ids, tasks_from_rows

RECORDS = {
    "101": {
        "QUESTION": "Does walking lower pain?",
        "CONTEXTS": ["Pain is common.", "Pain was lower (p=0.01)."],
        "LABELS": ["BACKGROUND", "RESULTS"],
        "MESHES": ["Pain"],
        "YEAR": "2010",
        "final_decision": "yes",
        "LONG_ANSWER": "Walking lowers pain.",
    },
    "102": {
        "QUESTION": "Does {music} raise mood?",
        "CONTEXTS": ["Mood was the same, é (p=0.7)."],
        "LABELS": ["RESULTS"],
        "final_decision": "no",
        "LONG_ANSWER": "Music does not raise mood.",
    },
}
TASKS = [
    ResearchTask(
        "101",
        "Does walking lower pain?",
        (Section("BACKGROUND", "Pain is common."), Section("RESULTS", "Pain was lower (p=0.01).")),
        "yes",
        "pubmedqa",
        "Walking lowers pain.",
    ),
    ResearchTask(
        "102",
        "Does {music} raise mood?",
        (Section("RESULTS", "Mood was the same, é (p=0.7)."),),
        "no",
        "pubmedqa",
        "Music does not raise mood.",
    ),
]


def hub_rows() -> list[dict]:
    """The same records with the hub's column names and types."""
    return [
        {
            "pubid": int(key),
            "question": record["QUESTION"],
            "context": {"contexts": record["CONTEXTS"], "labels": record["LABELS"], "meshes": record.get("MESHES", [])},
            "long_answer": record["LONG_ANSWER"],
            "final_decision": record["final_decision"],
        }
        for key, record in RECORDS.items()
    ]


@pytest.fixture
def write(tmp_path):
    def write_file(content, name: str = "d.json") -> Path:
        path = tmp_path / name
        if isinstance(content, bytes):
            path.write_bytes(content)
        else:
            path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
        return path

    return write_file


@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_authors_file_with_and_without_a_byte_order_mark(write, mark):
    assert load_file(write(mark + json.dumps(RECORDS))) == TASKS


def test_hub_parquet_file_gives_the_same_tasks(tmp_path):
    path = tmp_path / "hub.parquet"
    parquet.write_table(pyarrow.Table.from_pylist(hub_rows()), path)
    assert load_file(path) == TASKS


def test_hub_is_asked_for_the_labelled_parquet_config(monkeypatch):
    import datasets

    asked = []

    def answer(*arguments, **options):
        asked.append((arguments, options))
        return datasets.Dataset.from_list(hub_rows())

    monkeypatch.setattr(datasets, "load_dataset", answer)
    assert load_hub() == TASKS
    assert asked == [(("qiaojin/PubMedQA", "pqa_labeled"), {"split": "train"})]


def test_hub_without_network_says_what_to_do(monkeypatch):
    import datasets

    def refuse(*arguments, **options):
        raise ConnectionError("no route to host")

    monkeypatch.setattr(datasets, "load_dataset", refuse)
    with refused(DataError, "qiaojin/PubMedQA", "data.path", "ConnectionError: no route to host"):
        load_hub()


HALF = ("half a character", "UTF-8")


@pytest.mark.parametrize(
    ("field", "value", "problem"),
    [
        *((field, ..., (f"'{field}'", "missing")) for field in RECORDS["102"]),
        ("final_decision", "perhaps", ("'final_decision'", "'perhaps'", "yes, no, maybe")),
        ("final_decision", None, ("'final_decision'", "None", "yes, no, maybe")),
        ("final_decision", ["yes"], ("'final_decision'", "['yes']", "yes, no, maybe")),
        ("CONTEXTS", [], ("'CONTEXTS'", "empty")),
        ("CONTEXTS", ["  "], ("'CONTEXTS[0]'", "empty")),
        ("CONTEXTS", "Text.", ("'CONTEXTS'", "list of texts", "str 'Text.'")),
        ("CONTEXTS", [7], ("'CONTEXTS[0]'", "a text", "int 7")),
        ("CONTEXTS", ["a", "b"], ("'LABELS'", "1", "2 in CONTEXTS")),
        ("LABELS", [""], ("'LABELS[0]'", "empty")),
        ("QUESTION", "", ("'QUESTION'", "empty")),
        ("QUESTION", 5, ("'QUESTION'", "a text", "int 5")),
        ("LONG_ANSWER", " ", ("'LONG_ANSWER'", "empty")),
        ("QUESTION", "Why \ud800?", HALF),
        ("CONTEXTS", ["\udfff"], HALF),
        ("LABELS", ["A\udc00"], HALF),
        ("LONG_ANSWER", "\ud800", HALF),
    ],
)
def test_a_missing_or_broken_field_is_named_with_its_record(write, field, value, problem):
    record = {name: content for name, content in {**RECORDS["102"], field: value}.items() if content is not ...}
    path = write({**RECORDS, "102": record})
    with refused(DataError, f"{path}: record 102", problem):
        load_file(path)


def test_truncation_anywhere_is_one_error(write):
    text = json.dumps(RECORDS, indent=1)
    for end in range(0, len(text) - 1, 7):
        path = write(text[:end])
        with refused(DataError, path, "not valid JSON", "truncated", "download it again"):
            load_file(path)


def test_duplicate_id_in_rows():
    rows = hub_rows()
    with refused(DataError, "hub: record 101", "'pubid'", "twice", "rows 0 and 2"):
        tasks_from_rows([*rows, rows[0]], "hub")


def test_broken_rows():
    rows = hub_rows()
    del rows[1]["context"]["labels"]
    with refused(DataError, "hub: record 102", "'context.labels'", "missing"):
        tasks_from_rows(rows, "hub")
    with refused(DataError, "hub: record row 0", "'pubid'", "missing", "question"):
        tasks_from_rows([{"question": "x"}], "hub")
    with refused(DataError, "hub: record row 0", "'pubid'", "PMID", "NoneType None"):
        tasks_from_rows([{"pubid": None}], "hub")
    with pytest.raises(DataError, match="hub: no records"):
        tasks_from_rows([], "hub")


ONE = json.dumps(RECORDS["101"])


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("d.json", b"PAR1\xff\xfe\x00", ("d.json", "line 1, byte 5", "UTF-8")),
        ("d.parquet", b"PAR1 and no more", ("d.parquet", "download it again")),
        *(("d.json", content, ("d.json", "ori_pqal.json", ".jsonl")) for content in ([ONE], {}, '"text"', "3")),
        ("d.json", {**RECORDS, "102": ["x"]}, ("record 102", "'CONTEXTS'", "a list of 1 entries")),
        ("d.json", "{x: 1}" + " " * 40 + "{}", ("line 1, column 2", "is it the right file")),
        ("d.json", f'{{"101": {ONE}, "101": {ONE}}}', ("record 101", "twice")),
        ("d.json", '{"1": {"QUESTION": "Why?", "QUESTION": "How?"}}', ("'QUESTION'", "twice", "('QUESTION', 'Why?')")),
    ],
)
def test_a_file_that_is_no_pubmedqa_file(write, name, content, message):
    with refused(DataError, message):
        load_file(write(content, name))


def test_missing_file_and_folder(tmp_path):
    with refused(DataError, "none.json", "PubMedQA", "data.path=hub", "data.path=generated"):
        load_file(tmp_path / "none.json")
    with refused(DataError, "ids.json", "data.test_ids", "test_ground_truth.json"):
        load_test_ids(tmp_path / "ids.json")
    with refused(DataError, tmp_path, "folder", "path of a file"):
        load_file(tmp_path)
    with refused(DataError, "cannot be read", "PubMedQA file"):
        load_file(tmp_path / ("x" * 300))


def test_test_ids_in_every_form(write):
    assert load_test_ids(write({"101": "yes", "102": "no"}, "t.json")) == {"101": "yes", "102": "no"}
    assert load_test_ids(write([101, "102"], "t.json")) == {"101": None, "102": None}
    assert load_test_ids(write("101\n102, 103\n", "t.txt")) == {"101": None, "102": None, "103": None}


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("t.json", {"101": "perhaps"}, ("t.json: record 101", "'perhaps'", "yes, no, maybe")),
        ("t.json", {"101": ["yes"]}, ("t.json: record 101", "['yes']", "yes, no, maybe")),
        ("t.json", [101, "101"], ("t.json", "101", "twice")),
        ("t.json", '{"101": "yes", "101": "no"}', ("record 101", "twice")),
        ("t.json", [None], ("entry 0", "PMID", "NoneType None")),
        ("t.json", [], ("PMID to label or a list", "a list of 0 entries")),
        ("t.json", "3", ("PMID to label or a list", "int 3")),
        ("t.json", '{"101": "y', ("t.json", "line 1", "truncated", "download it again")),
        ("t.txt", " \n", ("t.txt", "PMID to label or a list")),
    ],
)
def test_broken_test_ids(write, name, content, message):
    with refused(DataError, message):
        load_test_ids(write(content, name))
