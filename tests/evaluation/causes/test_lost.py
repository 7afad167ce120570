"""Who lost it: the first wrong step of a rollout by hand, and counts that sum to the wrong answers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from record_kit import answered

from chimera.core.types import LABELS
from evaluation.causes.lost import first_wrong_step, lost
from evaluation.records.study import Place, Stage, StageAnswers

STAGE = Stage("base", "base", "sequence", (), {})


def rollout(label, initial=(), selected=None, refined=None, final=None, veto=None, status="succeeded"):
    done = status == "succeeded"
    outputs = {
        "initial_hypotheses": [{"author": "Geneticist", "answer": answer} for answer in initial],
        "selected_hypothesis": {"answer": selected},
        "refined_hypothesis": {"answer": refined},
    }
    fields = {"phase": "eval-test-base", "status": status, "label": label, "veto": veto}
    fields |= {"answer": final, "decision": "GO", "outputs": outputs} if done else {}
    return answered("ro-1", "t1", "yes" if done else None, None, **fields)


def stage(*records):
    return StageAnswers(STAGE, records, tuple(Place("rollouts/a.jsonl", line + 1) for line in range(len(records))))


@pytest.mark.parametrize(
    ("steps", "who"),
    [
        ((("no", "maybe", "no"), "no", "no", "no"), "juniors"),
        ((("no", "maybe", "no"), "no", "yes", "no"), "juniors"),
        ((("yes", "maybe", "no"), "no", "no", "no"), "supervisor"),
        ((("yes", "maybe", "no"), "yes", "no", "no"), "refiner"),
        ((("yes", "yes", "yes"), "yes", "yes", "no"), "review"),
        ((("no", "no", "no"), "no", "no", "yes"), None),
    ],
)
def test_the_first_wrong_step(steps, who):
    assert first_wrong_step(rollout("yes", *steps)) == who


def test_a_rollout_that_failed_has_lost_its_answer_whatever_its_juniors_said():
    assert first_wrong_step(rollout("yes", status="failed")) == "failed"


def test_a_veto_of_a_right_answer_is_counted_beside_the_wrong_answers():
    right = rollout("yes", ("yes",), "yes", "yes", "yes", veto="peer review: no quote")
    wrong = rollout("no", ("yes",), "yes", "yes", "yes", veto="peer review: no quote")
    found = lost(stage(right, wrong))
    assert (found["rollouts"], found["wrong"], found["vetoed"], found["steps"]["juniors"]) == (2, 1, 1, 1)


def test_rollouts_that_do_not_hold_the_steps_are_not_blamed_on_anyone():
    record = rollout("yes", ("no",), "no", "no", "no")
    del record.outputs["refined_hypothesis"]
    assert lost(stage(record)) is None


answers = st.sampled_from(LABELS)
rollouts = st.builds(
    rollout,
    answers,
    st.lists(answers, min_size=1, max_size=3),
    answers,
    answers,
    answers,
    st.sampled_from([None, "safety: unsafe"]),
    st.sampled_from(["succeeded", "succeeded", "failed"]),
)


@given(st.lists(rollouts, min_size=1, max_size=20))
def test_the_counts_sum_to_the_wrong_answers(records):
    found = lost(stage(*records))
    wrong = [one for one in records if one.status == "failed" or one.answer != one.label]
    assert sum(found["steps"].values()) == found["wrong"] == len(wrong)
    assert found["vetoed"] <= found["rollouts"] - found["wrong"]
