"""Baselines that are counted from what is recorded: majorities, equal tokens, the society without its board."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from record_kit import answered, model_call, tool_use

from agents.visit.record import by_visit
from chimera.core.types import LABELS
from evaluation.baselines.votes import affordable, counted, majority_of
from evaluation.records.study import BaselineAnswer, Plan, PlannedTask, Stage, StageAnswers

BASE = Stage("base", "base", "sequence", (), {"junior": "nano@0"})
PPO = Stage("ppo", "after ppo", "sequence", (), {"junior": "nano@0", "senior": "senior@ppo"})
SFT = Stage("sft", "after sft", "sequence", (), {"junior": "junior@sft"})
VISITS = {
    "Geneticist/1": {"calls": 2, "prompt": 200, "completion": 20},
    "Pharmacologist/1": {"calls": 1, "prompt": 100, "completion": 10},
    "Neurologist/1": {"calls": 1, "prompt": 100, "completion": 10},
    "Supervisor/1": {"calls": 1, "prompt": 50, "completion": 5},
    "Supervisor/2": {"calls": 1, "prompt": 50, "completion": 5},
    "HypothesisRefiner/1": {"calls": 1, "prompt": 30, "completion": 3},
    "HypothesisRefiner/2": {"calls": 1, "prompt": 1000, "completion": 1000},
    "PeerReviewer/1": {"calls": 1, "prompt": 1000, "completion": 1000},
}


def plan(*stages, repeats=1):
    return Plan("val", "generated", "by hand", (PlannedTask("t1", "Does it?", "yes"),), repeats, stages)


def record(answers=("yes", "no", "no"), chosen="yes", first="maybe", final="no", **changes):
    outputs = {
        "initial_hypotheses": [{"answer": answer} for answer in answers],
        "selected_hypothesis": {"answer": chosen},
        "unreviewed_hypothesis": {"answer": first},
        "refined_hypothesis": {"answer": final},
    }
    counts = {"model_calls": 9, "prompt_tokens": 700, "completion_tokens": 65}
    fields = {"level": None, "decision": "NO-GO", "outputs": outputs, "visits": VISITS, "counts": counts}
    return answered("ro-1", "t1", final, **(fields | changes))


def call(sample, answer, name="single@base", tokens=(90, 10), task="t1"):
    prompt, completion = tokens
    return BaselineAnswer(name, task, 0, answer, None, 1, prompt, completion, sample)


def found(stages, calls=(), records=None, **options):
    answers = {stage.name: StageAnswers(stage, tuple(records or [record()]), ()) for stage in stages}
    return {one.baseline: one for one in counted(plan(*stages), answers, calls, **options)}


@given(st.lists(st.sampled_from([*LABELS, None])), st.sampled_from([*LABELS, None]))
def test_a_majority_has_the_most_votes_and_ties_go_to_the_favourite_or_the_first(answers, favourite):
    winner = majority_of(answers, favourite)
    votes = [one for one in answers if one is not None]
    if not votes:
        assert winner is None
        return
    most = max(votes.count(label) for label in LABELS)
    tied = [one for one in votes if votes.count(one) == most]
    assert winner == (favourite if favourite in tied else tied[0])


@given(st.integers(1, 4000), st.integers(1, 400), st.integers(1, 200))
def test_the_calls_use_as_many_tokens_as_the_society_and_not_more(society, prompt, completion):
    records = [record(counts={"prompt_tokens": society, "completion_tokens": 0})]
    k = affordable(records, [call(0, "yes", tokens=(prompt, completion))])
    assert k is not None
    single = prompt + completion
    assert k == 1 or k * single <= society
    assert k == 64 or (k + 1) * single > society


def test_without_tokens_there_is_no_equal_number_of_calls():
    assert affordable([record(counts={})], [call(0, "yes")]) is None
    assert affordable([record()], [call(0, "yes", tokens=(0, 0))]) is None


def test_self_consistency_counts_the_votes_that_the_society_s_tokens_allow():
    """765 tokens are seven calls of 100: the eighth and ninth, which would win, do not vote."""
    votes = ["no", "yes", None, "no", "yes", "no", "yes", "yes", "yes"]
    calls = [call(number, answer) for number, answer in reversed(list(enumerate(votes)))]
    one = found([BASE], calls)["consistency@base"]
    assert (one.answer, one.calls, one.prompt_tokens, one.completion_tokens) == ("no", 7, 630, 70)
    assert "consistency@base" not in found([BASE], calls[3:])
    assert "consistency@base" not in found([BASE], calls, consistency=False)
    nothing = found([BASE], [call(number, None) for number in range(7)])["consistency@base"]
    assert (nothing.answer, nothing.error) == (None, "none of 7 answers could be read")


def test_agents_with_all_tools_vote_with_all_their_calls():
    visits = [replace(call(number, "yes", name="agent@base"), calls=3) for number in range(9)]
    one = found([BASE], visits)["agents@base"]
    assert (one.answer, one.calls, one.prompt_tokens) == ("yes", 21, 630)


def test_stages_with_the_same_junior_share_its_calls_but_not_their_number():
    calls = [call(number, "yes") for number in range(9)]
    few = [record(counts={"model_calls": 3, "prompt_tokens": 200, "completion_tokens": 5})]
    answers = {"base": StageAnswers(BASE, (record(),), ()), "ppo": StageAnswers(PPO, tuple(few), ())}
    by_name = {one.baseline: one for one in counted(plan(BASE, PPO), answers, calls)}
    assert (by_name["consistency@base"].calls, by_name["consistency@ppo"].calls) == (7, 2)
    own = [call(number, "no", name="single@sft") for number in range(7)]
    assert found([BASE, SFT], [*calls, *own])["consistency@sft"].answer == "no"


def test_the_juniors_vote_and_the_supervisor_decides_ties():
    vote = found([BASE])["juniors@base"]
    assert (vote.answer, vote.calls, vote.prompt_tokens, vote.completion_tokens) == ("no", 4, 400, 40)
    tied = found([BASE], records=[record(answers=("yes", "no", "maybe"), chosen="maybe")])["juniors@base"]
    assert (tied.answer, tied.calls, tied.prompt_tokens, tied.completion_tokens) == ("maybe", 6, 500, 50)


def test_where_findings_are_combined_the_rule_on_all_of_them_answers_and_no_majority() -> None:
    combining = record(answers=("yes", "yes"), chosen="no")
    combining.outputs["selection"] = {"author": "combined"}
    by_name = found([BASE], records=[combining])
    assert (by_name["rule@base"].answer, by_name["rule@base"].calls) == ("no", 4)
    assert "juniors@base" not in by_name


def test_without_board_is_the_answer_before_any_review():
    one = found([BASE])["unreviewed@base"]
    assert (one.answer, one.calls, one.prompt_tokens, one.completion_tokens) == ("maybe", 7, 530, 53)


def test_a_rollout_that_failed_has_no_vote():
    failed = record(status="failed", error="Supervisor: no JSON", outputs={}, visits={}, answer=None)
    by_name = found([BASE], records=[failed])
    for name in ("juniors@base", "unreviewed@base"):
        assert (by_name[name].answer, by_name[name].error) == (None, "Supervisor: no JSON")
        assert by_name[name].calls is None


@pytest.mark.parametrize("attempts", [1, 2])
def test_work_is_counted_by_visit_and_tries_are_added_up(attempts):
    call = model_call(prompt_tokens=100, completion_tokens=7)
    calls = [replace(call, attempt=number + 1) for number in range(attempts)]
    assert by_visit([*calls, replace(call, visit=2), tool_use("HypothesisRefiner")]) == {
        "HypothesisRefiner/1": {"calls": attempts, "prompt": 100 * attempts, "completion": 7 * attempts},
        "HypothesisRefiner/2": {"calls": 1, "prompt": 100, "completion": 7},
    }
