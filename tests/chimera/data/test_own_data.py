"""Your own data: every form gives the same tasks; a fault is one sentence with the file, the row and a remedy."""

import json
import os
import subprocess
import sys
import tracemalloc
from pathlib import Path

import pyarrow
import pytest
from message_kit import refused
from pyarrow import parquet

from chimera.config.sections.data import ColumnsConfig, DataConfig
from chimera.core.errors import ConfigError, DataError
from chimera.core.types import Option, ResearchTask, Section
from chimera.data.own import load_own
from chimera.data.tasks import load
from training.configuration import load_config

REPOSITORY = Path(__file__).parents[3]
ROWS = [
    {"id": "a", "question": "Does tea help?", "context": "Pain was lower, as told (p=0.01).", "label": "yes"},
    {"id": "b", "question": "Does rain help?", "context": 'It was "the same"\nfor all (p=0.7).', "label": "no"},
    {"id": "c", "question": "Does é help?", "context": "", "label": "maybe"},
]
TASKS = [
    ResearchTask("a", "Does tea help?", (Section("", "Pain was lower, as told (p=0.01)."),), "yes", "own"),
    ResearchTask("b", "Does rain help?", (Section("", 'It was "the same"\nfor all (p=0.7).'),), "no", "own"),
    ResearchTask("c", "Does é help?", (), "maybe", "own"),
]
CSV = 'id,question,context,label\na,Does tea help?,"Pain was lower, as told (p=0.01).",yes\n'
LETTERS = {"A": "iron", "B": "zinc"}


def csv_of(rows, delimiter=",") -> str:
    """As spreadsheets write it, with every text in quotation marks."""
    cells = [['"' + str(row[name]).replace('"', '""') + '"' for name in rows[0]] for row in rows]
    return "".join(delimiter.join(line) + "\n" for line in (rows[0], *cells))


def jsonl_of(rows) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def written(folder: Path, name: str, content: str | bytes | list) -> Path:
    path = folder / name
    if name.endswith(".parquet"):
        parquet.write_table(pyarrow.Table.from_pylist(content), path)
    elif isinstance(content, bytes):
        path.write_bytes(content)
    else:
        path.write_text(content if isinstance(content, str) else jsonl_of(content), encoding="utf-8")
    return path


def read(path: Path, *, columns=None, **settings) -> list[ResearchTask]:
    return load_own(DataConfig(path=str(path), columns=ColumnsConfig(**(columns or {})), **settings))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("d.csv", csv_of(ROWS)),
        ("d.csv", "\ufeff" + csv_of(ROWS)),
        ("d.CSV", csv_of(ROWS).replace("\n", "\r\n").replace('same""\r\n', 'same""\n')),
        ("d.tsv", csv_of(ROWS, "\t")),
        ("d.csv", csv_of(ROWS, ";")),
        ("d.csv", "sep=|\n" + csv_of(ROWS, "|")),
        ("d.csv", csv_of([{**row, "": "", " ": ""} for row in ROWS]) + ",,,,,\n"),
        ("d.jsonl", jsonl_of(ROWS)),
        ("d.ndjson", "\n" + jsonl_of(ROWS).replace("\n", "\n\n")),
        ("d.parquet", ROWS),
    ],
)
def test_every_form_of_file_gives_the_same_tasks(tmp_path, name, content):
    assert read(written(tmp_path, name, content)) == TASKS


def test_a_folder_is_read_through_datasets(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    (tmp_path / "mine").mkdir()
    written(tmp_path / "mine", "train.jsonl", ROWS)
    assert read(tmp_path / "mine") == TASKS
    with refused(DataError, f"data.path={tmp_path / 'mine'}", "'test'", "data.subset", "data.split"):
        read(tmp_path / "mine", split="test")


def test_a_folder_that_datasets_saved_is_read_with_the_names_of_its_classes(tmp_path):
    import datasets

    labels = datasets.ClassLabel(names=["no", "yes"])
    rows = datasets.Dataset.from_list([{**ROWS[0], "label": "yes"}]).cast_column("label", labels)
    datasets.DatasetDict({"train": rows}).save_to_disk(tmp_path / "saved")
    assert read(tmp_path / "saved") == TASKS[:1]


def test_a_hub_name_without_network_is_one_sentence():
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-m", "chimera", "data", "data.path=nobody/nothing-here", "data.split=test"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=REPOSITORY, check=False)
    assert done.returncode == DataError.exit_code
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith(
        "error: data.path=nobody/nothing-here: cannot be loaded from the hub (there is no such"
    )
    assert "data.split" in done.stderr


def test_files_are_read_without_the_libraries_of_the_hub(tmp_path):
    path = written(tmp_path, "d.csv", csv_of(ROWS))
    code = (
        "import sys; from chimera.data.own import load_own; from chimera.config.sections.data import DataConfig; "
        f"load_own(DataConfig(path={str(path)!r})); assert not {{'datasets', 'pyarrow', 'torch'}} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=REPOSITORY)


def test_columns_are_mapped(tmp_path):
    record = {"meta": {"pmid": 7}, "q": "Why?", "intro": "Because.", "end": "It ended.", "truth": "Yes", "year": 2010}
    columns = {"goal": "q", "context": ("intro", "end"), "label": "truth", "id": "meta.pmid"}
    columns |= {"level": "year", "long_answer": "end"}
    sections = (Section("intro", "Because."), Section("end", "It ended."))
    expected = ResearchTask("7", "Why?", sections, "yes", "own", "It ended.", 2010)
    assert read(written(tmp_path, "d.jsonl", [record]), columns=columns) == [expected]
    assert read(written(tmp_path, "d.parquet", [record]), columns=columns) == [expected]


def test_a_key_that_only_later_records_have_is_read_too(tmp_path):
    first = {name: value for name, value in ROWS[2].items() if name != "context"}
    assert read(written(tmp_path, "d.jsonl", [first, *ROWS[:2]])) == [TASKS[2], *TASKS[:2]]


@pytest.mark.parametrize("name", ["d.csv", "d.jsonl", "d.parquet"])
def test_ids_of_rows_without_ids_do_not_depend_on_their_place(tmp_path, name):
    def ids(*rows):
        content = csv_of(rows) if name == "d.csv" else list(rows)
        return [task.id for task in read(written(tmp_path, name, content))]

    one, two, three = ({key: value for key, value in row.items() if key != "id"} for row in ROWS)
    assert ids(three, one, two) == [ids(three)[0], *ids(one, two)]
    assert len({*ids(one, two, three)}) == 3


def test_equal_rows_without_ids_are_different_tasks_and_so_is_a_row_with_another_label(tmp_path):
    row = {"question": "Does tea help?", "label": "yes"}
    first, second, other = (task.id for task in read(written(tmp_path, "d.jsonl", [row, row, {**row, "label": "no"}])))
    assert second == f"{first}-2"
    assert not other.startswith(first)


def test_a_whole_pair_of_surrogates_is_one_character(tmp_path):
    (task,) = read(written(tmp_path, "d.jsonl", [{"question": "Does \U0001f375 help?", "label": "yes"}]))
    assert task.goal == "Does \U0001f375 help?"


@pytest.mark.parametrize("name", ["d.csv", "d.jsonl"])
def test_a_byte_that_is_no_utf8_is_named_with_its_line(tmp_path, name):
    rows = [{"question": f"Does {number} help?", "label": "yes"} for number in range(2000)]
    content = (csv_of(rows) if name == "d.csv" else jsonl_of(rows)).encode().replace(b"Does 1500", b"Does \xe9500")
    line, byte = (1502, 7) if name == "d.csv" else (1501, 20)
    with refused(DataError, f"line {line}, byte {byte}", "save it as UTF-8"):
        read(written(tmp_path, name, content))


@pytest.mark.parametrize(
    "context",
    [
        ["Bread.", "Butter."],
        {"contexts": ["Bread.", "Butter."], "labels": ["", ""], "meshes": []},
        {"": "Bread.", " ": "Butter."},
    ],
)
def test_contexts_may_be_lists_and_records(tmp_path, context):
    (task,) = read(written(tmp_path, "d.jsonl", [{**ROWS[0], "context": context}]))
    assert [section.text for section in task.context] == ["Bread.", "Butter."]


def test_a_map_of_parquet_is_a_record(tmp_path):
    texts = pyarrow.array(
        [[("Aim", "Bread."), ("Result", "Butter.")]], pyarrow.map_(pyarrow.string(), pyarrow.string())
    )
    table = pyarrow.table({"question": ["Why?"], "label": ["yes"], "context": texts})
    parquet.write_table(table, tmp_path / "d.parquet")
    (task,) = read(tmp_path / "d.parquet")
    assert task.context == (Section("Aim", "Bread."), Section("Result", "Butter."))
    (task,) = read(tmp_path / "d.parquet", columns={"context": "context.Result"})
    assert task.context == (Section("", "Butter."),)


def test_a_cell_may_be_long(tmp_path):
    abstract = "Pain was lower. " * 20_000
    (task,) = read(written(tmp_path, "d.csv", csv_of([{**ROWS[0], "context": abstract}])))
    assert task.context == (Section("", abstract.strip()),)


@pytest.mark.parametrize(
    ("options", "columns", "labels"),
    [
        ({"options": LETTERS}, {}, None),
        ({"options": LETTERS}, {}, ("A", "B", "C")),
        ({"options": json.dumps(LETTERS)}, {}, None),
        ({"options": [{"key": "A", "value": "iron"}, {"key": "B", "value": "zinc"}]}, {}, None),
        ({"choices": {"label": ["A", "B"], "text": ["iron", "zinc"]}}, {"options": "choices"}, None),
        ({"choices": [{"label": "A", "text": "iron"}, {"label": "B", "text": "zinc"}]}, {"options": "choices"}, None),
        ({"options": ["iron", "zinc"]}, {}, ("A", "B")),
        ({"opa": "iron", "opb": "zinc", "opc": ""}, {"options": ("opa", "opb", "opc")}, ("A", "B", "C")),
    ],
)
def test_options_are_read_in_every_usual_form(tmp_path, options, columns, labels):
    path = written(tmp_path, "d.jsonl", [{"question": "Which?", "label": "b", **options}])
    (task,) = read(path, columns=columns, labels=labels)
    assert (task.label, task.options) == ("B", (Option("A", "iron"), Option("B", "zinc")))


@pytest.mark.parametrize("name", ["d.jsonl", "d.parquet"])
@pytest.mark.parametrize(
    ("label", "labels", "name_of_zinc"),
    [
        (1, None, "B"),
        (1.0, None, "B"),
        ("1", None, "B"),
        ("b", None, "B"),
        (1, ("X", "Y", "Z"), "Y"),
        (1, (0, 1, 2), "1"),
        (2, (1, 2, 3), "2"),
    ],
)
def test_a_label_may_be_the_place_in_a_list_of_options(tmp_path, name, label, labels, name_of_zinc):
    rows = [{"question": "Which?", "choices": ["iron", "zinc", "tin"], "answer": label}]
    mcq = [{"question": "Which?", "opa": "iron", "opb": "zinc", "opc": "tin", "answer": label}]
    for content, options in ((rows, "choices"), (mcq, ("opa", "opb", "opc"))):
        path = written(tmp_path, name, content)
        (task,) = read(path, columns={"options": options, "label": "answer"}, labels=labels)
        assert {option.name: option.text for option in task.options}[task.label] == "zinc"
        assert task.label == name_of_zinc


@pytest.mark.parametrize(("value", "level"), [(7, 7), ("7", 7), (7.0, 7)])
def test_levels_are_whole_numbers(tmp_path, value, level):
    (task,) = read(written(tmp_path, "d.jsonl", [{**ROWS[0], "year": value}]), columns={"level": "year"})
    assert task.level == level


def test_labels_without_texts_are_the_options_of_every_task(tmp_path):
    path = written(tmp_path, "d.csv", "question,label\nWhich?,low\n")
    (task,) = read(path, labels=("low", "high"))
    assert task.options == (Option("low"), Option("high"))
    assert read(written(tmp_path, "y.csv", CSV), labels=("yes", "no", "maybe")) == TASKS[:1]


NO_GOAL = "'goal' or 'question'"
FAULTY_CSV = [
    ("id,quest,label\n1,Why?,yes\n", {}, (NO_GOAL, "id, quest, label", "data.columns.goal=quest")),
    ("nr,Prompt,final_decision\n1,Why?,yes\n", {}, (NO_GOAL, "nr, Prompt, final_decision", "data.columns.goal=Prompt")),
    ("QUERY,verdict\nWhy?,yes\n", {}, (NO_GOAL, "data.columns.goal=QUERY")),
    ("xyz,verdict\nWhy?,yes\n", {}, (NO_GOAL, "xyz, verdict", "set data.columns.goal")),
    ("Question,answer\nWhy?,yes\n", {"goal": "query"}, ("'query'", "data.columns.goal=Question")),
    (CSV, {"label": "verdict"}, ("'verdict'", "id, question, context, label", "data.columns.label=label")),
    ("question,label\nWhy?,yes\nHow?,\n", {}, ("line 3", "column 'label'", "empty", "remove the row")),
    (
        "question,label\nWhy?,perhaps\n",
        {},
        ("line 2", "column 'label'", "'perhaps'", "yes, no, maybe", "data.columns.label", "data.labels"),
    ),
    ("question;label\nWhy; though?;yes\n", {}, ("line 2", "3 fields", "2 columns", "semicolons")),
    ("question,label\nWhy, though?,yes\n", {}, ("line 2", "3 fields", "2 columns", "commas")),
    (CSV + CSV.splitlines()[1] + "\n", {}, ("line 3", "'a'", "line 2", "data.columns.id")),
    ("question,label\n,yes\n", {}, ("line 2", "column 'question'", "empty", "give a text")),
    ("id,question,label\n,Why?,yes\n", {}, ("line 2", "column 'id'", "''", "give each row an id")),
    (
        "question,label,year\nWhy?,yes,soon\n",
        {"level": "year"},
        ("line 2", "column 'year'", "'soon'", "data.columns.level"),
    ),
    ('question,label\n"Why?,yes\n', {}, ("line 2", "quotation mark")),
    ("question,question\nWhy?,yes\n", {}, ("line 1", "column 'question'", "twice")),
    ("question,label\nWhy?,yes\n".encode("utf-16"), {}, ("line 1, byte 1", "save it as UTF-8")),
    ('question,options,label\nWhich?,"{""A"": ""x"", ""B"": ""\\udc00""}",A\n', {}, ("line 2", r"\udc00", "UTF-8")),
    ("", {}, ("no records", "one row for each question")),
    ("question,label\n", {}, ("no records", "one row for each question")),
]


@pytest.mark.parametrize(("content", "columns", "problem"), FAULTY_CSV)
def test_a_fault_of_a_csv_file_is_one_sentence_with_the_place_and_the_remedy(tmp_path, content, columns, problem):
    path = written(tmp_path, "d.csv", content)
    with refused(DataError, path, problem):
        read(path, columns=columns)


WHY = {"question": "Why?", "label": "yes"}
HALF = "Does tea help \ud800?"
YEAR = {"columns": {"level": "year"}}
FAULTY_ROWS = [
    *(
        ({**WHY, "context": {"contexts": ["a", "b"], "labels": names}}, {}, "['a', 'b']")
        for names in (["METHODS"], [], None)
    ),
    ({**WHY, "context": [7]}, {}, ("column 'context'", "7", "a text")),
    ({**WHY, "label": True}, {}, ("column 'label'", "True", "yes, no, maybe")),
    ({**WHY, "options": LETTERS, "label": "E"}, {}, ("'E'", "A, B")),
    ({**WHY, "options": LETTERS, "label": "A"}, {"labels": ("A", "C")}, ("'B'", "data.labels", "A, C", "add it")),
    *(
        ({**WHY, "options": ["x", "y"], "label": label}, {}, (repr(label), "A, B"))
        for label in (2, -1, 0.5, True, "C", "12")
    ),
    ({**WHY, "options": ["x", "y"], "label": 0}, {"labels": ("1", "2")}, ("0", "1, 2")),
    ({**WHY, "options": ["x"] * 27, "label": 3}, {}, ("27 options", "data.labels=[A, B, ...]")),
    ({**WHY, "options": {"A": "x"}, "label": "A"}, {}, ("options are A", "at least two")),
    ({**WHY, "options": "A or B", "label": "A"}, {}, ("column 'options'", "a list of texts")),
    ({**WHY, "options": [{"key": name, "value": 1} for name in "AAB"]}, {}, ("options are A, A, B", "different names")),
    ({**WHY, "options": {"label": [["A"], "B"], "text": ["x", "y"]}}, {}, ("['A']", "a text or a number")),
    *(
        ({**WHY, "year": year}, YEAR, ("column 'year'", shown, "data.columns.level"))
        for year, shown in ((float("inf"), "inf"), (float("nan"), "nan"), (2.5, "2.5"), (int("1" * 400), "1" * 40))
    ),
    *(
        (row, {}, (r"'\ud800'", "UTF-8"))
        for row in (
            {**WHY, "question": HALF},
            {**WHY, "id": HALF},
            {**WHY, "context": {"RESULTS": HALF}},
            {**WHY, "context": {HALF: "It fell."}},
            {**WHY, "long_answer": HALF},
            {**WHY, "options": {"A": "iron", "B": HALF}, "label": "A"},
        )
    ),
]


@pytest.mark.parametrize(("row", "settings", "problem"), FAULTY_ROWS)
def test_a_faulty_row_is_one_sentence_with_the_place_and_the_remedy(tmp_path, row, settings, problem):
    path = written(tmp_path, "d.jsonl", [row])
    with refused(DataError, f"{path}: line 1", problem) as caught:
        read(path, **settings)
    str(caught.value).encode()


@pytest.mark.parametrize(
    ("name", "content", "settings", "problem"),
    [
        (
            "d.jsonl",
            [{"q": "Why?", "Verdict": "yes"}],
            {"columns": {"goal": "q"}},
            ("'label'", "q, Verdict", "data.columns.label=Verdict"),
        ),
        ("d.jsonl", [ROWS[0], {"id": 2, "question": "Why?"}], {}, ("line 2", "column 'label'", "empty")),
        ("d.jsonl", json.dumps(WHY)[:-1] + f', "year": {"1" * 5000}}}', YEAR, ("line 1", "4,300 digits")),
        ("d.jsonl", '{"question": "Why?", "label": "yes"}\n{"question": \n', {}, ("line 2", "one JSON object")),
        ("d.jsonl", "[1]\n", {}, ("line 1", "a list", "one JSON object")),
        ("d.jsonl", "", {}, "no records"),
        ("d.parquet", [{**WHY, "year": float("inf")}], YEAR, ("row 1", "column 'year'", "inf", "data.columns.level")),
        ("d.xlsx", "PK", {}, ("'.xlsx'", "data.path", ".csv, .tsv, .jsonl")),
    ],
)
def test_a_fault_of_another_file_is_one_sentence_with_the_place_and_the_remedy(
    tmp_path, name, content, settings, problem
):
    path = written(tmp_path, name, content)
    with refused(DataError, path, problem):
        read(path, **settings)


def test_a_broken_parquet_file_is_one_sentence(tmp_path):
    path = written(tmp_path, "d.parquet", ROWS)
    path.write_bytes(path.read_bytes()[:-20])
    with refused(DataError, "d.parquet", "make or download it again"):
        read(path)


def test_a_large_file_is_not_held_in_memory_beside_its_tasks(tmp_path):
    text = "The rate was lower in those who drank tea than in those who did not. " * 60
    with (tmp_path / "d.csv").open("w") as file:
        file.write("question,context,label,note\n")
        for number in range(2000):
            file.write(f"Question {number}?,Study {number}. {text},yes,{text}\n")
    kept = 2000 * len(text)
    tracemalloc.start()
    try:
        tasks = read(tmp_path / "d.csv")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(tasks) == 2000
    assert peak < 1.4 * kept


def test_own_data_is_split_like_any_other(tmp_path):
    rows = [
        {"question": f"Which {number}?", "context": f"Text {number // 2}.", "label": "AB"[number % 2]}
        for number in range(40)
    ]
    path = written(tmp_path, "d.jsonl", rows)
    dataset = load(DataConfig(path=str(path), labels=("A", "B"), validation_share=0.25, test_share=0.25))
    sizes = [len(part) for part in (dataset.train, dataset.validation, dataset.test)]
    assert (sizes, dataset.source, dataset.official, dataset.labels) == ([20, 10, 10], "own", False, ("A", "B"))
    where = {task.context: part for part in ("train", "validation", "test") for task in getattr(dataset, part)}
    assert all(task in getattr(dataset, where[task.context]) for task in dataset.tasks)
    assert dataset.describe() == "your data, d.jsonl, seed 0: 20 train / 10 validation / 10 test"


def test_a_header_may_have_blanks_and_capitals_and_an_abstract_that_is_not_read_is_told(tmp_path, capsys):
    head, rows = "id, Question, Context, label", [f"{n}, Q {n}?, Text {n}., {['yes', 'no'][n % 2]}" for n in range(20)]
    path = written(tmp_path, "d.csv", "\n".join([head, *rows]))
    assert [task.goal for task in read(path)][:2] == ["Q 0?", "Q 1?"]
    assert all(task.context for task in read(path))
    shares = {"validation_share": 0.2, "test_share": 0.2}
    load(DataConfig(path=str(path), **shares))
    assert not capsys.readouterr().err
    path.write_text(path.read_text().replace("Context", "Abstract"))
    load(DataConfig(path=str(path), **shares))
    assert "data.columns.context=Abstract?" in capsys.readouterr().err
    path.write_text("\n".join(["question,label", *["Same?,yes", "Same?,no"] * 5]))
    with refused(DataError, "10 tasks (10 share a question or an abstract) split"):
        load(DataConfig(path=str(path)))


def test_many_levels_do_not_spoil_the_mix_of_labels(tmp_path):
    rows = [{"question": f"Q {n}?", "label": ("yes", "no")[n % 2], "year": 1990 + n % 30} for n in range(60)]
    dataset = load(DataConfig(path=str(written(tmp_path, "d.jsonl", rows)), columns=ColumnsConfig(level="year")))
    assert [sum(task.label == "yes" for task in part) for part in (dataset.validation, dataset.test)] == [6, 6]


def test_own_test_ids_are_not_called_official(tmp_path):
    path, ids = written(tmp_path, "d.csv", csv_of(ROWS)), written(tmp_path, "ids.txt", "c")
    with pytest.raises(DataError, match="validation; both need tasks"):
        load(DataConfig(path=str(path), test_ids=ids))
    more = [{**ROWS[0], "id": str(number), "question": f"Q {number}?", "context": ""} for number in range(9)]
    dataset = load(DataConfig(path=str(written(tmp_path, "e.csv", csv_of([*ROWS, *more]))), test_ids=ids))
    assert ([task.id for task in dataset.test], dataset.official) == (["c"], False)


@pytest.mark.parametrize(
    ("override", "problem"),
    [
        ("data.labels=[A, A]", ("data.labels", "once")),
        ("data.labels=[1, '1']", ("data.labels", "once")),
        ("data.labels=[0.5, 1]", ("data.labels", "0.5", "text")),
        ("data.labels=[A, none]", ("data.labels", "'none'")),
        ("data.labels=[A, '']", ("data.labels", "empty")),
        ("data.columns.context=[]", ("data.columns.context", "must name a column")),
        ("data.columns.question=q", ("data.columns.question", "data.columns.goal")),
    ],
)
def test_settings_that_cannot_work_are_refused(override, problem):
    with refused(ConfigError, problem):
        load_config(None, ["data.path=d.csv", override])


def test_numbers_may_be_labels(tmp_path):
    (tmp_path / "c.yaml").write_text("data:\n  path: d.csv\n  labels: [0, 1, 2, 3]\n")
    for config in (load_config(tmp_path / "c.yaml"), load_config(None, ["data.path=d.csv", "data.labels=[0,1,2,3]"])):
        assert config.data.labels == ("0", "1", "2", "3")


@pytest.mark.parametrize("path", ["generated", "hub"])
def test_columns_of_data_that_have_their_own_form_have_no_effect(path):
    with refused(ConfigError, "data.columns.goal on the command line", "remove it"):
        load_config(None, [f"data.path={path}", "data.columns.goal=q"])


@pytest.mark.parametrize("name", ["own_csv", "medqa"])
def test_the_examples_are_read_and_are_what_their_script_writes(name, monkeypatch, tmp_path):
    import examples.make_data

    monkeypatch.chdir(REPOSITORY)
    config = load_config(Path("configs") / f"{name}.yaml")
    dataset = load(config.data)
    assert [len(part) for part in (dataset.train, dataset.validation, dataset.test)] == [24, 18, 18]
    assert dataset.labels == (("A", "B", "C", "D", "E") if name == "medqa" else ("yes", "no", "maybe"))
    monkeypatch.setattr(examples.make_data, "FOLDER", tmp_path)
    examples.make_data.main()
    assert (tmp_path / Path(config.data.path).name).read_bytes() == Path(config.data.path).read_bytes()
