"""Who lost it: the first wrong step of a rollout by hand, how it is made right, and counts that sum to the wrong."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from record_kit import answered

from agents.findings import concluded, gathered, with_findings
from chimera.core.types import LABELS
from evaluation.causes.blame import examined
from evaluation.causes.lost import first_wrong_step, lost
from evaluation.records.study import Place, Plan, PlannedTask, Stage, StageAnswers

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
        (((), None, None, None, None, "failed"), "failed"),
    ],
)
def test_the_first_wrong_step(steps, who):
    assert first_wrong_step(rollout("yes", *steps)) == who


def test_a_veto_of_a_right_answer_is_counted_beside_the_wrong_answers_and_nobody_is_blamed_without_the_steps():
    right = rollout("yes", ("yes",), "yes", "yes", "yes", veto="peer review: no quote")
    wrong = rollout("no", ("yes",), "yes", "yes", "yes", veto="peer review: no quote")
    found = lost(stage(right, wrong))
    assert (found["rollouts"], found["wrong"], found["vetoed"], found["steps"]["juniors"]) == (2, 1, 1, 1)
    del wrong.outputs["refined_hypothesis"]
    assert lost(stage(wrong)) is None


def repair(record, *others):
    """How the first wrong step of a record is made right, with `others` as possible donors."""
    plan = Plan("test", "generated", "x", (PlannedTask("t1", "Does it?", "yes"),), 1, (STAGE,))
    (case,) = examined(plan, {"base": [replace(one, trace="traces/x") for one in (record, *others)]}, 1)
    return case.repair


@pytest.mark.parametrize(
    ("selected", "outputs", "begins"),
    [
        ("no", {"selection": {"policy": "supervisor"}}, ("Geneticist", "Supervisor")),
        ("no", {"selection": {"policy": "vote"}}, None),
        ("yes", {"final_protocol": {"design": "a trial", "amendments": []}}, (None, "ProtocolDesigner")),
        ("yes", {"final_protocol": {"amendments": []}}, (None, "PrincipalInvestigator")),
    ],
)
def test_a_repair_begins_with_who_works_next_and_nobody_tells_a_vote(selected, outputs, begins):
    record = rollout("yes", ("yes", "no"), selected, "no", "no")
    record.outputs.update(outputs)
    mending = repair(record)
    assert (mending and (mending.author, mending.at)) == begins


def combining(name, **juniors):
    """A rollout whose juniors hand over findings: what each study says, of a junior, one after another."""
    about = {"quote": "q", "retracted": False, "design": "trial", "size": 50}
    about |= {part: {"same": True} for part in ("group", "condition", "outcome")}
    hypotheses = []
    for author, says in juniors.items():
        findings = [{**about, "study": f"{author} {n}", "answer": answer} for n, answer in enumerate(says)]
        hypotheses.append({"author": author, **with_findings([], {"findings": findings, "search": ""})})
    selected = concluded(gathered(hypotheses))
    outputs = {"initial_hypotheses": hypotheses, "selected_hypothesis": selected, "refined_hypothesis": selected}
    return answered(name, "t1", selected["answer"], outputs=outputs)


def test_of_combined_findings_that_junior_is_taken_with_whom_all_say_what_is_right():
    record = combining("ro-1", Geneticist=["yes"], Pharmacologist=["no", "no"])
    wrong_too = combining("ro-2", Geneticist=["yes"], Pharmacologist=["no", "no", "yes"])
    other_graph = rollout("yes", ("yes",), "yes", "yes", "yes")
    assert repair(record, wrong_too, other_graph) is None
    mending = repair(record, wrong_too, combining("ro-3", Geneticist=["yes"], Pharmacologist=["no", "yes"]))
    assert (mending.author, mending.donor.rollout_id, mending.at) == ("Pharmacologist", "ro-3", "Supervisor")


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
