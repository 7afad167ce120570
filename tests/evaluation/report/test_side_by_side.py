"""The same task through two stages: which tasks are picked, and how differences are marked."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from record_kit import scored

from chimera.run.directory import Run
from evaluation.records.study import Place, Plan, PlannedTask, Stage, StageAnswers, Study
from evaluation.report.side_by_side import pick, segments, view

HYPOTHESIS = {"evidence": ["The rate fell (p=0.01)."], "comparison": "lower", "claim": "it works", "answer": "yes"}
OUTPUTS = {
    "initial_hypotheses": [{"author": "Geneticist", **HYPOTHESIS}],
    "selected_hypothesis": {"author": "Geneticist", **HYPOTHESIS},
    "supervisor_justification": "its quote is real",
    "refined_hypothesis": HYPOTHESIS,
    "final_protocol": {"design": "open trial", "sample_size": 60, "amendments": []},
    "peer_review": {"issues": ["too few", "not blind"], "severity": "MINOR", "verdict": "REVISE"},
    "final_answer": "yes",
    "final_decision": "GO",
    "final_veto": None,
    "final_rationale": "the evidence says so",
}


def record(stage, number, reward, **outputs):
    parts = {} if reward is None else {"alignment": reward}
    written = {} if reward is None else {**OUTPUTS, **outputs}
    return scored(f"{stage}-{number}", f"t{number}", reward, level=None, phase=stage, parts=parts, outputs=written)


@pytest.fixture
def study_of(tmp_path):
    def make(before, after):
        answers = {}
        for name, rewards in (("base", before), ("ppo", after)):
            rows = tuple(record(name, number, reward) for number, reward in enumerate(rewards))
            places = tuple(Place("rollouts/x.jsonl", line) for line in range(1, len(rows) + 1))
            answers[name] = StageAnswers(Stage(name, name, "sequence", (), {}), rows, places)
        tasks = tuple(PlannedTask(f"t{number}", "goal", "yes") for number in range(len(before)))
        plan = Plan("val", "generated", "generated tasks", tasks, 1, tuple(one.stage for one in answers.values()))
        return Study(Run(tmp_path), plan, answers, (), {}, ())

    return make


def picked(study):
    return [(pair.why, pair.task_id, pair.difference) for pair in pick(study, "base", "ppo")]


def test_the_largest_gain_the_largest_loss_and_the_median_are_picked(study_of):
    study = study_of([1.0, 1.0, None, 1.0, 1.0, 1.0], [1.5, 0.5, 9.0, 1.25, 1.0, None])
    assert picked(study) == [("largest gain", "t0", 0.5), ("largest loss", "t1", -0.5), ("median", "t4", 0.0)]
    gain = pick(study, "base", "ppo")[0]
    assert (gain.before.rollout_id, gain.after.rollout_id) == ("base-0", "ppo-0")


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ([1.0, 1.0], [2.0, 2.0], [("largest gain", "t0", 1.0)]),
        ([1.0, 1.0, 1.0], [0.0, 1.0, 0.0], [("largest loss", "t0", -1.0), ("median", "t2", -1.0)]),
        ([1.0], [1.0], [("median", "t0", 0.0)]),
        ([None], [1.0], []),
    ],
)
def test_there_is_no_gain_where_none_gained_and_no_pair_twice(before, after, expected, study_of):
    assert picked(study_of(before, after)) == expected


def rows_of(before, after):
    return {(row["section"], row["field"]): row for row in view(before, after)}


def test_every_field_stands_beside_the_other_in_reading_order():
    protocol = {"design": "blind trial", "sample_size": 90, "amendments": ["report harms"]}
    rows = view(record("base", 0, 1.0), record("ppo", 0, 1.5, final_protocol=protocol, final_decision="NO-GO"))
    assert list(dict.fromkeys(row["section"] for row in rows)) == [
        "Geneticist's hypothesis",
        "selected hypothesis",
        "selection",
        "refined hypothesis",
        "protocol",
        "peer review",
        "decision",
        "reward",
    ]
    changed = {(row["section"], row["field"]) for row in rows if row["changed"]}
    protocol_fields = {("protocol", name) for name in protocol}
    assert changed == protocol_fields | {("decision", "decision"), ("reward", "alignment"), ("reward", "total")}
    design = next(row for row in rows if row["field"] == "design")
    assert design["before"] == [{"text": "open", "kind": "removed"}, {"text": " trial", "kind": "same"}]
    assert design["after"] == [{"text": "blind", "kind": "added"}, {"text": " trial", "kind": "same"}]


def test_a_field_that_one_lacks_is_none_there():
    rows = rows_of(record("base", 0, None), record("ppo", 0, 1.0))
    assert rows["outcome", "error"]["before"] == [{"text": "no JSON", "kind": "removed"}]
    assert rows["outcome", "error"]["after"] is None
    assert rows["protocol", "design"]["before"] is None
    assert rows["protocol", "design"]["after"] == [{"text": "open trial", "kind": "added"}]
    assert all(row["changed"] for row in rows.values())


def test_who_chose_stands_beside_the_reason_and_a_sentence_on_a_given_choice_is_none():
    by_model = {"author": "Geneticist", "preferred": "Geneticist", "policy": "supervisor", "propensities": None}
    by_bandit = {**by_model, "preferred": None, "policy": "Supervisor@bandit"}
    rows = rows_of(record("base", 0, 1.0, selection=by_model), record("bandit", 0, 1.0, selection=by_bandit))
    shown = {
        (field, side): "".join(part["text"] for part in row[side])
        for (section, field), row in rows.items()
        for side in ("before", "after")
        if section == "selection"
    }
    assert shown == {
        ("chosen by", "before"): "the supervisor's model",
        ("reason", "before"): "its quote is real",
        ("chosen by", "after"): "the bandit (Supervisor@bandit)",
        ("reason", "after"): "chosen before the supervisor's model was asked",
    }


def test_the_same_rollout_differs_nowhere():
    one = record("base", 0, 1.0)
    rows = view(one, replace(one, rollout_id="other"))
    assert not any(row["changed"] for row in rows)
    assert {piece["kind"] for row in rows for side in ("before", "after") for piece in row[side]} == {"same"}


WORDS = st.lists(st.sampled_from(["a", "rate", "NO-GO", "GO", "0.05,", " ", "\n", "p=0.01.", "é", "25%"]), max_size=12)
TEXTS = WORDS.map(" ".join) | st.text(max_size=20)


@given(TEXTS, TEXTS)
def test_segments_joined_are_the_texts_and_what_is_the_same_is_the_same_in_both(before, after):
    left, right = segments(before, after)
    assert "".join(piece["text"] for piece in left) == before
    assert "".join(piece["text"] for piece in right) == after
    same = [[piece["text"] for piece in side if piece["kind"] == "same"] for side in (left, right)]
    assert "".join(same[0]) == "".join(same[1])
    assert {piece["kind"] for piece in left} <= {"same", "removed"}
    assert {piece["kind"] for piece in right} <= {"same", "added"}
    assert all(piece["text"] for piece in left + right)


def test_whole_phrases_and_whole_words_are_marked():
    left, right = segments("GO: the old drug works", "NO-GO: the new remedy works")
    assert [piece["text"] for piece in left if piece["kind"] == "removed"] == ["GO", "old drug"]
    assert [piece["text"] for piece in right if piece["kind"] == "added"] == ["NO-GO", "new remedy"]
