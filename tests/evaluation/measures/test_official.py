"""PubMedQA's official form: what is written is accepted and scored as the authors' script would."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from record_kit import answered
from sklearn.metrics import accuracy_score, f1_score

from chimera.config.tree import Config
from chimera.core.errors import RunError
from chimera.core.types import LABELS, Label
from evaluation.measures.metrics import stage_metrics
from evaluation.measures.official import REFERENCES, missing_sentence, predictions, unanswered, write_predictions
from evaluation.records.rollouts import RolloutRecord
from evaluation.records.study import Place, Plan, PlannedTask, Stage, StageAnswers
from evaluation.scores.alignment import aligned

STAGE = Stage("base", "base", "sequence", (), {"junior": "nano@0"})


def plan_of(labels: Sequence[Label], repeats: int = 1) -> Plan:
    tasks = tuple(PlannedTask(str(20_000_000 + i), f"Does {i}?", label) for i, label in enumerate(labels))
    return Plan("test", "pubmedqa", "PubMedQA", tasks, repeats, (STAGE,))


def record(task: PlannedTask, answer: Label | None, repeat: int = 0) -> RolloutRecord:
    fields = {"source": "pubmedqa", "level": None, "phase": "eval-test-base", "repeat": repeat, "label": task.label}
    return answered(f"ro-{task.id}-{repeat}", task.id, answer, None, **fields)


def answers_of(plan: Plan, answers: Sequence[Label | None], repeat: int = 0) -> StageAnswers:
    records = tuple(record(task, answer, repeat) for task, answer in zip(plan.tasks, answers, strict=True))
    return StageAnswers(STAGE, records, tuple(Place("f", i + 1) for i in range(len(records))))


def official_score(ground_truth: dict[str, str], path: Path) -> tuple[float, float]:
    """What the authors' script prints: accuracy and macro-F1; it refuses other than all and only the test items."""
    predicted = json.loads(path.read_text())
    if set(ground_truth) != set(predicted):
        raise ValueError("not all and only the instances of the test set")
    truth, found = list(ground_truth.values()), [predicted[pmid] for pmid in ground_truth]
    return float(accuracy_score(truth, found)), float(f1_score(truth, found, average="macro"))


def test_the_script_scores_our_file_as_we_do(tmp_path: Path):
    labels: list[Label] = ["yes"] * 11 + ["no"] * 7 + ["maybe"] * 3
    answers: list[Label] = [LABELS[i * 5 % 3] for i in range(21)]
    plan = plan_of(labels)
    given = answers_of(plan, answers)
    write_predictions(tmp_path / "predictions.json", predictions(plan, given))
    accuracy, macro_f1 = official_score({task.id: task.label for task in plan.tasks}, tmp_path / "predictions.json")
    share = sum(aligned(a, label) for a, label in zip(answers, labels, strict=True)) / 21
    assert accuracy == pytest.approx(share)
    ours = stage_metrics(given, plan, Config())
    assert ours["alignment"].mean == pytest.approx(accuracy)
    assert ours["macro_f1"].mean == pytest.approx(macro_f1)


def test_a_failed_rollout_is_left_out_with_its_reason_and_never_guessed(tmp_path: Path):
    plan = plan_of(["yes", "no", "maybe"])
    given = answers_of(plan, [None, "no", None])
    assert predictions(plan, given) == {"20000001": "no"}
    assert unanswered(plan, given) == {"20000000": "no JSON", "20000002": "no JSON"}
    write_predictions(tmp_path / "predictions.json", predictions(plan, given))
    with pytest.raises(ValueError, match="not all and only"):
        official_score({task.id: task.label for task in plan.tasks}, tmp_path / "predictions.json")


@given(answers=st.lists(st.sampled_from([*LABELS, None]), min_size=1, max_size=40))
def test_every_answer_comes_through_unchanged_and_every_other_task_is_missing(answers: list[Label | None]):
    plan = plan_of(["yes"] * len(answers))
    given = answers_of(plan, answers)
    by_task = list(zip([task.id for task in plan.tasks], answers, strict=True))
    assert list(predictions(plan, given).items()) == [(task, answer) for task, answer in by_task if answer is not None]
    assert list(unanswered(plan, given)) == [task for task, answer in by_task if answer is None]


def test_the_sentence_counts_what_is_missing_and_does_not_list_all():
    text = missing_sentence({"stage": "final", "answered": 1, "missing": [str(number) for number in range(9)]})
    assert text.startswith("9 of 10 test items have no answer (0, 1, 2, 3, 4, ...).")
    assert "--resume" in text


@pytest.mark.parametrize(("once", "found"), [(["no", "no"], ["no", "no"]), ([None, "no"], ["yes", "no"])])
def test_of_several_repeats_the_first_that_decided_counts(once: list[Label | None], found: list[Label]):
    plan = plan_of(["yes", "no"], repeats=2)
    first, second = answers_of(plan, once), answers_of(plan, ["yes", "maybe"], repeat=1)
    both = StageAnswers(STAGE, first.records + second.records, first.places + second.places)
    assert list(predictions(plan, both).values()) == found


def test_a_file_is_replaced_as_a_whole_and_a_wrong_place_is_named(tmp_path: Path):
    file = tmp_path / "predictions.json"
    file.write_text("old")
    write_predictions(file, {"1": "yes"})
    assert json.loads(file.read_text()) == {"1": "yes"}
    assert list(tmp_path.iterdir()) == [file]
    with pytest.raises(RunError, match="nowhere"):
        write_predictions(tmp_path / "nowhere" / "predictions.json", {"1": "yes"})


def test_references_say_where_they_are_from():
    human = REFERENCES[0]
    assert (human.accuracy, human.macro_f1) == (78.0, 72.2)
    assert "arXiv:1909.06146" in human.source
    for one in REFERENCES:
        assert "arXiv:" in one.source
        assert 0 < one.accuracy <= 100


def test_the_published_majority_is_what_the_official_labels_give():
    truth = ["yes"] * 276 + ["no"] * 169 + ["maybe"] * 55
    majority = next(one for one in REFERENCES if one.name == "majority label")
    assert 100 * accuracy_score(truth, ["yes"] * 500) == pytest.approx(majority.accuracy, abs=0.05)
    score = f1_score(truth, ["yes"] * 500, average="macro", labels=list(LABELS), zero_division=0.0)
    assert 100 * float(score) == pytest.approx(float(majority.macro_f1 or 0), abs=0.05)
