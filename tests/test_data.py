"""Loading and splitting: stratified, seeded, disjoint, and never the conclusion in what agents may see."""

import json
import pickle
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chimera import data
from chimera.config import DataConfig
from chimera.data import check_disjoint, load, official_split, stratified_split
from chimera.errors import DataError
from chimera.fingerprints import words
from chimera.types import LABELS, ResearchTask, Section

REAL = Path(__file__).parents[1].parent / "shared" / "pubmedqa" / "ori_pqal.json"


def make_task(number: int, label: str = "yes", level: int | None = None) -> ResearchTask:
    return ResearchTask(
        id=str(number),
        goal=f"Question {number}?",
        context=(Section("RESULTS", f"Result {number}."),),
        label=label,
        source="pubmedqa",
        long_answer=f"Conclusion {number}.",
        level=level,
    )


task_lists = st.lists(st.tuples(st.sampled_from(LABELS), st.sampled_from([None, 1, 2])), min_size=10, max_size=80).map(
    lambda kinds: [make_task(number, label, level) for number, (label, level) in enumerate(kinds)]
)


@given(task_lists, st.floats(0.1, 0.9), st.integers(0, 100))
def test_split_is_a_stratified_partition(tasks, share, seed):
    train, validation = stratified_split(tasks, share, seed)
    assert sorted(train + validation, key=tasks.index) == tasks
    assert not {task.id for task in train} & {task.id for task in validation}
    assert len(validation) == round(share * len(tasks))
    everywhere = Counter((task.label, task.level) for task in tasks)
    held_out = Counter((task.label, task.level) for task in validation)
    for stratum, count in everywhere.items():
        assert abs(held_out[stratum] - share * count) < 1
    assert [train, validation] == [tuple(sorted(part, key=tasks.index)) for part in (train, validation)]
    assert (train, validation) == stratified_split(tasks, share, seed)


def test_split_depends_on_the_seed():
    tasks = [make_task(number, LABELS[number % 3]) for number in range(60)]
    assert len({stratified_split(tasks, 0.2, seed)[1] for seed in range(5)}) > 1


@pytest.mark.parametrize("share", [0.01, 0.999])
def test_an_empty_split_is_refused(share):
    with pytest.raises(DataError, match=r"10 tasks split into .* both need tasks: .* data.validation_share=0"):
        stratified_split([make_task(number) for number in range(10)], share, 0)


def test_generated_tasks_by_default():
    dataset = load(DataConfig())
    assert dataset.describe() == "generated tasks, levels 1-4, seed 0: 800 train / 200 validation"
    assert (len(dataset.train), len(dataset.validation), dataset.test) == (800, 200, ())
    assert dataset.source == "generated"
    assert {task.source for task in dataset.tasks} == {"generated"}
    assert load(DataConfig()) == dataset
    assert load(DataConfig(seed=1)).train != dataset.train


@pytest.mark.parametrize(
    ("levels", "phrase"), [((2,), "level 2"), ((3, 4), "levels 3-4"), ((4, 1), "levels 1, 4"), ((1, 1), "level 1")]
)
def test_describe_names_the_levels(levels, phrase):
    dataset = load(DataConfig(size=40, levels=levels, seed=7))
    assert dataset.describe() == f"generated tasks, {phrase}, seed 7: 32 train / 8 validation"
    assert {task.level for task in dataset.tasks} == set(levels)


def test_documents_hold_every_abstract_and_no_conclusion():
    dataset = load(DataConfig(size=60))
    documents = {document.id: document for document in dataset.documents()}
    assert len(documents) == 60
    for task in dataset.tasks:
        text = documents[task.id].text
        assert text == " ".join(f"{section.label}: {section.text}" for section in task.context)
        assert documents[task.id].title == task.goal
        assert task.long_answer
        assert task.long_answer not in text


def test_conclusions_are_recognised_but_not_held():
    dataset = load(DataConfig(size=60))
    conclusions = dataset.conclusions()
    assert set(conclusions) == {task.id for task in dataset.tasks}
    for task in dataset.tasks:
        assert conclusions[task.id].occurs_in(f"They say: {task.long_answer.upper()}")
        assert not conclusions[task.id].occurs_in(" ".join(section.text for section in task.context))
    held = pickle.dumps(conclusions)
    assert not [
        word for task in dataset.tasks for word in words(task.long_answer) if len(word) > 7 and word.encode() in held
    ]


def test_official_split_sets_the_test_tasks_apart():
    tasks = [make_task(number, LABELS[number % 3]) for number in range(30)]
    rest, test = official_split(tasks, {"4": "no", "3": None}, Path("ids.json"))
    assert [task.id for task in test] == ["3", "4"]
    assert [task.id for task in rest] == [task.id for task in tasks if task.id not in {"3", "4"}]


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ({"3": None, "77": None}, "ids.json: 1 of 2 test ids are not in the data, the first is 77"),
        ({"3": "no"}, "ids.json: record 3: label is 'no', but the data say 'yes'"),
        ({str(number): None for number in range(9)}, "ids.json: all 9 tasks are test tasks"),
    ],
)
def test_test_ids_that_do_not_fit_are_refused(ids, message):
    tasks = [make_task(number, LABELS[number % 3]) for number in range(9)]
    with pytest.raises(DataError, match=message):
        official_split(tasks, ids, Path("ids.json"))


def test_leaks_between_splits_are_refused():
    one, two, three = (make_task(number) for number in range(3))
    check_disjoint({"train": [one], "validation": [two], "test": [three]})
    with pytest.raises(DataError, match="task 0 is in the train split and in the test split"):
        check_disjoint({"train": [one], "validation": [two], "test": [one]})
    with pytest.raises(DataError, match=r"tasks 0 \(train\) and 9 \(test\) have the same question and abstract"):
        check_disjoint({"train": [one], "validation": [two], "test": [replace(one, id="9")]})
    with pytest.raises(DataError, match="task 1 occurs twice in the validation split"):
        check_disjoint({"train": [one], "validation": [two, two]})


def test_load_checks_that_splits_are_disjoint(tmp_path):
    """The same question under two ids, one of them a test id, would leak the test task into training."""
    record = {
        "QUESTION": "Same?",
        "CONTEXTS": ["Text."],
        "LABELS": ["RESULTS"],
        "final_decision": "yes",
        "LONG_ANSWER": "Yes.",
    }
    records = {str(number): record | {"QUESTION": f"Question {number}?"} for number in range(20)}
    records |= {"100": record, "200": record}
    (tmp_path / "d.json").write_text(json.dumps(records))
    (tmp_path / "ids.txt").write_text("200 0 1")
    with pytest.raises(DataError, match=r"tasks 100 .* and 200 .* have the same question and abstract"):
        load(DataConfig(path=str(tmp_path / "d.json"), test_ids=tmp_path / "ids.txt"))


def test_command_prints_a_sample_and_the_description(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    data.main(["--rows", "4", "data.size=40", "data.levels=[2]"])
    printed = capsys.readouterr().out
    assert printed.count("generated tasks, level 2, seed 0: 32 train / 8 validation") == 2
    shown = [task.id for task in load(DataConfig(size=40, levels=(2,))).tasks if task.id in printed]
    assert len(shown) >= 4
    assert "PubMedQA" not in printed
    assert "labels: train yes 5" in printed


def test_command_names_a_missing_file(tmp_path):
    with pytest.raises(DataError, match=r"none\.json: no such file"):
        data.main([f"data.path={tmp_path / 'none.json'}"])


def test_the_table_shows_tasks_of_every_split_without_conclusions():
    dataset = load(DataConfig(size=40))
    table = data.sample_table(dataset, 64)
    cells = [list(column.cells) for column in table.columns]
    assert cells[0] == ["train"] * 32 + ["validation"] * 8
    assert cells[1] == [task.id for task in dataset.tasks]
    assert cells[5] == [task.label for task in dataset.tasks]
    for task, abstract in zip(dataset.tasks, cells[4], strict=True):
        assert task.context[2].text in abstract
        assert task.long_answer not in abstract


def test_hub_data_are_named(monkeypatch):
    tasks = [make_task(number, LABELS[number % 3]) for number in range(30)]
    monkeypatch.setattr("chimera.pubmedqa.load_hub", lambda: tasks)
    assert load(DataConfig(path="hub", seed=2)).describe() == "PubMedQA, hub, seed 2: 24 train / 6 validation"


def test_real_pubmedqa(tmp_path):
    if not REAL.exists():
        pytest.skip(f"the real data are not at {REAL}")
    dataset = load(DataConfig(path=str(REAL)))
    assert dataset.describe() == "PubMedQA, ori_pqal.json, seed 0: 400 train / 100 validation"
    assert Counter(task.label for task in dataset.tasks) == {"yes": 276, "no": 169, "maybe": 55}
    assert Counter(task.label for task in dataset.validation) == {"yes": 55, "no": 34, "maybe": 11}
    assert all(task.long_answer and task.level is None for task in dataset.tasks)

    ids = [task.id for task in dataset.tasks[::5]]
    (tmp_path / "ids.txt").write_text("\n".join(ids))
    official = load(DataConfig(path=str(REAL), test_ids=tmp_path / "ids.txt"))
    assert {task.id for task in official.test} == set(ids)
    assert official.describe() == "PubMedQA, ori_pqal.json, seed 0: 320 train / 80 validation / 100 official test"
