"""Loading and splitting: stratified, seeded, disjoint, and never the conclusion in what agents may see."""

import json
import pickle
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from message_kit import refused

from chimera.config.sections.data import DataConfig
from chimera.core.errors import DataError
from chimera.core.quotes import words
from chimera.core.types import LABELS, ResearchTask, Section
from chimera.data import tasks as data
from chimera.data.splits import check_disjoint, hold_out, official_split, related, three_way_split
from chimera.data.tasks import load

REAL = Path(__file__).parents[3].parent / "shared" / "pubmedqa" / "ori_pqal.json"


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
    train, validation = hold_out(tasks, share, seed)
    assert sorted(train + validation, key=tasks.index) == tasks
    assert not {task.id for task in train} & {task.id for task in validation}
    assert len(validation) == round(share * len(tasks))
    everywhere = Counter((task.label, task.level) for task in tasks)
    held_out = Counter((task.label, task.level) for task in validation)
    for stratum, count in everywhere.items():
        assert abs(held_out[stratum] - share * count) < 1
    assert [train, validation] == [tuple(sorted(part, key=tasks.index)) for part in (train, validation)]
    assert (train, validation) == hold_out(tasks, share, seed)


def test_split_depends_on_the_seed():
    tasks = [make_task(number, LABELS[number % 3]) for number in range(60)]
    assert len({hold_out(tasks, 0.2, seed)[1] for seed in range(5)}) > 1


@pytest.mark.parametrize("shares", [(0.01, 0.2), (0.2, 0.01), (0.5, 0.5), (0.999, 0.2), (0.2, 0.999)])
def test_an_empty_split_is_refused(shares):
    with refused(DataError, "10 tasks", "data.validation_share=0", "data.test_share"):
        three_way_split([make_task(number) for number in range(10)], *shares, 0)


@given(task_lists.filter(lambda tasks: len(tasks) > 20), st.integers(0, 100))
def test_three_splits_are_a_partition_of_the_asked_sizes(tasks, seed):
    splits = three_way_split(tasks, 0.2, 0.3, seed)
    assert sorted(sum(splits, ()), key=tasks.index) == tasks
    assert (len(splits[1]), len(splits[2])) == (round(0.2 * len(tasks)), round(0.3 * len(tasks)))


@given(st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8)), min_size=6, max_size=40), st.integers(0, 20))
def test_tasks_that_share_a_question_or_an_abstract_stay_together(kinds, seed):
    tasks = [
        replace(make_task(number), goal=f"Question  {goal}?", context=(Section("RESULTS", f"Result {abstract}."),))
        for number, (goal, abstract) in enumerate(kinds)
    ]
    groups = related(tasks)
    assert sorted(position for group in groups for position in group) == list(range(len(tasks)))
    rest, apart = hold_out(tasks, 0.3, seed)
    check_disjoint({"train": rest, "test": apart})
    texts = [{(0, task.goal), (1, task.context)} for task in tasks]
    for number, group in enumerate(groups):
        others = [position for other in groups[:number] + groups[number + 1 :] for position in other]
        assert not any(texts[mine] & texts[other] for mine in group for other in others)


def test_generated_tasks_by_default():
    dataset = load(DataConfig())
    assert dataset.describe() == "generated tasks, levels 1-4, seed 0: 600 train / 200 validation / 200 test"
    assert (len(dataset.train), len(dataset.validation), len(dataset.test)) == (600, 200, 200)
    assert not dataset.official
    assert dataset.source == "generated"
    assert {task.source for task in dataset.tasks} == {"generated"}
    assert load(DataConfig()) == dataset
    assert load(DataConfig(seed=1)).train != dataset.train


@pytest.mark.parametrize(
    ("levels", "phrase"), [((2,), "level 2"), ((3, 4), "levels 3-4"), ((4, 1), "levels 1, 4"), ((1, 1), "level 1")]
)
def test_describe_names_the_levels(levels, phrase):
    dataset = load(DataConfig(size=40, levels=levels, seed=7))
    assert dataset.describe() == f"generated tasks, {phrase}, seed 7: 24 train / 8 validation / 8 test"
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
        ({"3": None, "77": None}, ("ids.json", "1 of 2", "77", "data.path")),
        ({"3": "no"}, ("ids.json: record 3", "'no'", "'yes'")),
        ({str(number): None for number in range(9)}, ("ids.json", "9 tasks")),
    ],
)
def test_test_ids_that_do_not_fit_are_refused(ids, message):
    tasks = [make_task(number, LABELS[number % 3]) for number in range(9)]
    with refused(DataError, message):
        official_split(tasks, ids, Path("ids.json"))


def test_leaks_between_splits_are_refused():
    one, two, three = (make_task(number) for number in range(3))
    check_disjoint({"train": [one], "validation": [two], "test": [three]})
    with refused(DataError, "task 0", "train split", "test split"):
        check_disjoint({"train": [one], "validation": [two], "test": [one]})
    with refused(DataError, "0 (train)", "9 (test)", "question"):
        check_disjoint({"train": [one], "validation": [two], "test": [replace(one, id="9")]})
    with refused(DataError, "0 (train)", "9 (test)", "abstract"):
        check_disjoint({"train": [one], "test": [replace(one, id="9", goal="Another question?")]})
    with refused(DataError, "task 1", "twice", "validation split"):
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
    records = {
        str(number): record | {"QUESTION": f"Question {number}?", "CONTEXTS": [f"Text {number}."]}
        for number in range(20)
    }
    records |= {"100": record, "200": record}
    (tmp_path / "d.json").write_text(json.dumps(records))
    (tmp_path / "ids.txt").write_text("200 0 1")
    with refused(DataError, "100 (train)", "200 (test)", "question", "remove one"):
        load(DataConfig(path=str(tmp_path / "d.json"), test_ids=tmp_path / "ids.txt"))


def test_command_prints_a_sample_and_the_description(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    data.main(["--rows", "6", "data.size=40", "data.levels=[2]"])
    printed = capsys.readouterr().out
    assert printed.count("generated tasks, level 2, seed 0: 24 train / 8 validation / 8 test") == 2
    shown = [task.id for task in load(DataConfig(size=40, levels=(2,))).tasks if task.id in printed]
    assert len(shown) >= 4
    assert "PubMedQA" not in printed
    assert "labels: train yes 5" in printed


@pytest.mark.parametrize(("abstract", "is_named"), [("锌组复发率为{}%。", True), ("Zinc (γ-{}) cured {} mice.", False)])
def test_data_in_other_scripts_say_what_searches_do_not_find(tmp_path, monkeypatch, capsys, abstract, is_named):
    monkeypatch.setenv("COLUMNS", "1000")
    rows = [
        {"question": f"Does drug {number} help?", "context": abstract.format(number, number), "label": label}
        for number in range(20)
        for label in [("yes", "no")[number % 2]]
    ]
    (tmp_path / "d.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    data.main([f"data.path={tmp_path / 'd.jsonl'}"])
    note = "20 of 20 abstracts are not in Latin letters"
    assert (note in capsys.readouterr().out) is is_named


def test_the_table_shows_tasks_of_every_split_without_conclusions():
    dataset = load(DataConfig(size=40))
    table = data.sample_table(dataset, 120)
    cells = [list(column.cells) for column in table.columns]
    assert cells[0] == ["train"] * 24 + ["validation"] * 8 + ["test"] * 8
    assert cells[1] == [task.id for task in dataset.tasks]
    assert cells[5] == [task.label for task in dataset.tasks]
    for task, abstract in zip(dataset.tasks, cells[4], strict=True):
        assert task.context[2].text in abstract
        assert task.long_answer not in abstract


def test_hub_data_are_named(monkeypatch):
    tasks = [make_task(number, LABELS[number % 3]) for number in range(30)]
    monkeypatch.setattr("chimera.data.pubmedqa.load_hub", lambda: tasks)
    assert load(DataConfig(path="hub", seed=2)).describe() == "PubMedQA, hub, seed 2: 18 train / 6 validation / 6 test"


def test_real_pubmedqa(tmp_path):
    if not REAL.exists():
        pytest.skip(f"the real data are not at {REAL}")
    dataset = load(DataConfig(path=str(REAL)))
    assert dataset.describe() == "PubMedQA, ori_pqal.json, seed 0: 300 train / 100 validation / 100 test"
    assert Counter(task.label for task in dataset.tasks) == {"yes": 276, "no": 169, "maybe": 55}
    assert Counter(task.label for task in dataset.validation) == {"yes": 55, "no": 34, "maybe": 11}
    assert all(task.long_answer and task.level is None for task in dataset.tasks)

    ids = [task.id for task in dataset.tasks[::5]]
    (tmp_path / "ids.txt").write_text("\n".join(ids))
    official = load(DataConfig(path=str(REAL), test_ids=tmp_path / "ids.txt"))
    assert {task.id for task in official.test} == set(ids)
    assert official.describe() == "PubMedQA, ori_pqal.json, seed 0: 320 train / 80 validation / 100 official test"
