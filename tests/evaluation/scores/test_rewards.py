"""The reward: every part by name, exact sums, and nothing made up when something is missing."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from message_kit import refused
from record_kit import model_call, tool_use

from agents.roles import ROLES
from agents.visit.prompting import opening, tool_message
from agents.visit.record import CallRecord, ToolUse
from chimera.config.sections.rollouts import RewardConfig
from chimera.core.types import ResearchTask, Section
from evaluation.scores.judge import CRITERIA
from evaluation.scores.rewards import Reward, call_reward, compute_reward, reward_names

SENTENCE = "Pain score was lower with melanolix (p=0.01)."
TASK = ResearchTask("17", "Does melanolix reduce pain?", (Section("RESULTS", SENTENCE),), "yes", "generated")
SIX = (0.76, 0.85, 0.88, 0.91, 0.89, 0.82)
OTHERS = ("alignment", "parsed", "call_valid", "tool_succeeded", "repeated_call", "unverifiable_quote", "overlong",
          "broken_rule")  # fmt: skip
ONLY_JUDGE = dict.fromkeys(OTHERS, 0.0)


def finished(scores: tuple[float | None, ...] = SIX, **changes: Any) -> dict[str, Any]:
    messages = opening(ROLES["Geneticist"], TASK.goal)
    messages.append(tool_message("1", {"results": [{"id": "17", "text": f"RESULTS: {SENTENCE}"}]}, TASK.goal))
    return {
        "messages": {"Geneticist": messages},
        "refined_hypothesis": {"evidence": [SENTENCE], "comparison": "lower", "claim": "it helps", "answer": "yes"},
        "final_answer": "yes",
        "final_decision": "GO",
        "final_evaluation": {"scores": dict(zip(CRITERIA, scores, strict=True)), "error": None},
        **changes,
    }


def reward(
    *records: CallRecord, state: dict[str, Any] | None = None, config: RewardConfig | None = None, **weights: float
) -> Reward:
    return compute_reward(state or finished(), records or (model_call(),), TASK, config or RewardConfig(**weights))


@pytest.mark.parametrize(("scores", "total"), [(SIX, 0.8655), ((0.8, 0.7, 0.9, 0.85, 0.95, 0.9), 0.8525)])
def test_the_weighted_criteria(scores: tuple[float, ...], total: float):
    made = reward(state=finished(scores), **ONLY_JUDGE)
    assert tuple(made.parts) == CRITERIA
    assert made.total == pytest.approx(total, abs=1e-12)


@pytest.mark.parametrize(
    ("changes", "value"),
    [
        ({}, 0.15),
        ({"ok": False}, 0.10),
        ({"ok": False, "valid": False}, 0.05),
        ({"ok": False, "valid": False, "arguments": "{query"}, 0.0),
        ({"ok": False, "valid": False, "arguments": "[1]"}, 0.0),
    ],
)
def test_the_immediate_reward_of_one_call(changes: dict[str, Any], value: float):
    assert call_reward(tool_use(**changes), RewardConfig()) == pytest.approx(value)


def test_every_weight_of_the_configuration_is_a_part():
    names = reward_names(RewardConfig())
    assert names == tuple(RewardConfig.model_fields)
    assert tuple(reward().parts) == names


def test_a_weight_of_zero_leaves_its_part_out():
    made = reward(state=finished((None, 1.0, 1.0, 1.0, 1.0, 1.0)), novelty=0.0)
    assert "novelty" not in made.parts
    assert "novelty" not in reward_names(RewardConfig(novelty=0.0))
    assert made.total is not None


@pytest.mark.parametrize(
    ("answer", "value"), [("yes", 1.0), ("no", 0.0), ("maybe", 0.0)], ids=["right", "wrong", "undecided"]
)
@pytest.mark.parametrize("decision", ["GO", "NO-GO"])
def test_alignment_is_about_the_answer_and_not_about_the_decision(answer: str, value: float, decision: str):
    state = finished(final_answer=answer, final_decision=decision)
    assert reward(state=state).parts["alignment"] == value


def test_parsed_is_the_share_of_first_answers():
    records = (
        model_call("Geneticist", parsed=None, finish_reason="tool_calls"),
        model_call("Geneticist", step=2, parsed=False, error="answer: not JSON"),
        model_call("Geneticist", step=3, parsed=True, repair=True),
        model_call("Supervisor"),
        model_call("HypothesisRefiner"),
        model_call("ProtocolDesigner"),
    )
    assert reward(*records).parts["parsed"] == pytest.approx(0.05 * 3 / 4)


def test_tool_calls_earn_up_to_three():
    calls = [tool_use(query=f"q{number}", ok=number % 2 == 0) for number in range(5)]
    for many, valid, ok in ((1, 0.05, 0.05), (2, 0.10, 0.05), (5, 0.15, 0.15)):
        parts = reward(model_call(), *calls[:many]).parts
        assert parts["call_valid"] == pytest.approx(valid)
        assert parts["tool_succeeded"] == pytest.approx(ok)
    parts = reward(model_call(), tool_use(valid=False, ok=False)).parts
    assert parts["call_valid"] == parts["tool_succeeded"] == 0.0


@pytest.mark.parametrize(
    ("calls", "repeats"),
    [
        ([tool_use(), tool_use()], 1),
        ([tool_use(), tool_use(step=2), tool_use(step=3)], 2),
        ([tool_use(), tool_use(query="other")], 0),
        ([tool_use(), tool_use(tool="clinical_trials")], 0),
        ([tool_use(), tool_use("Neurologist"), tool_use("Pharmacologist")], 0),
        ([tool_use(), tool_use(visit=2)], 0),
    ],
)
def test_repeats_are_penalised_where_the_earlier_result_was_in_sight(calls: list[ToolUse], repeats: int):
    assert reward(model_call(), *calls).parts["repeated_call"] == pytest.approx(-0.1 * repeats)


def test_a_visit_that_was_tried_again_counts_once():
    records = (
        tool_use("HypothesisRefiner"),
        model_call(step=2, parsed=False, attempt=1),
        model_call(step=3, parsed=None, finish_reason="error", error="503"),
        tool_use("HypothesisRefiner", visit=2),
        tool_use("HypothesisRefiner", attempt=2),
        model_call(step=2, attempt=2),
        tool_use("HypothesisRefiner", visit=3, ok=False),
        model_call("Supervisor", finish_reason="stop"),
    )
    parts = reward(*records).parts
    assert parts["repeated_call"] == 0.0
    assert parts["parsed"] == 0.05
    assert parts["call_valid"] == 0.10
    assert parts["tool_succeeded"] == 0.05


def test_quotes_are_checked_against_what_the_society_saw_not_against_the_task():
    hypothesis = {**finished()["refined_hypothesis"], "evidence": [SENTENCE, "Pain vanished for good in all."]}
    assert reward(state=finished(refined_hypothesis=hypothesis)).parts["unverifiable_quote"] == pytest.approx(-0.1)
    assert reward(state=finished(messages={})).parts["unverifiable_quote"] == pytest.approx(-0.1)
    assert reward().parts["unverifiable_quote"] == 0.0


def test_overlong_counts_once_however_often():
    cut = model_call(finish_reason="length", parsed=False)
    assert reward(cut, cut, model_call()).parts["overlong"] == pytest.approx(-0.1)
    assert reward(model_call()).parts["overlong"] == 0.0


def missing_parts(made: Reward) -> list[str]:
    return [name for name, value in made.parts.items() if value is None]


def test_an_evaluation_without_any_score_has_no_total():
    made = reward(state=finished(final_evaluation={"scores": {}, "error": "the judge's model failed"}))
    assert made.total is None
    assert missing_parts(made) == list(CRITERIA)


@pytest.mark.parametrize("field", ["refined_hypothesis", "final_answer", "final_evaluation"])
def test_an_unfinished_rollout_has_no_reward(field: str):
    state = finished()
    del state[field]
    with refused(ValueError, "task 17", field):
        reward(state=state)


def test_an_unrecorded_rollout_has_no_reward():
    with refused(ValueError, "task 17", "1 records"):
        reward(tool_use())


WEIGHTS = st.floats(-2, 2, allow_nan=False).map(lambda value: round(value, 3))
PENALTIES = st.floats(-2, 0, allow_nan=False).map(lambda value: round(value, 3))
CONFIGS = st.fixed_dictionaries(
    {
        name: PENALTIES if name in ("repeated_call", "unverifiable_quote", "overlong", "broken_rule") else WEIGHTS
        for name in RewardConfig.model_fields
    }
).map(lambda weights: RewardConfig(**weights))
RECORDS = st.lists(
    st.one_of(
        st.builds(
            model_call,
            role=st.sampled_from(list(ROLES)),
            parsed=st.sampled_from([True, False, None]),
            finish_reason=st.sampled_from(["stop", "length"]),
            repair=st.booleans(),
            attempt=st.integers(1, 2),
        ),
        st.builds(
            tool_use,
            role=st.sampled_from(list(ROLES)),
            query=st.sampled_from("ab"),
            valid=st.booleans(),
            ok=st.booleans(),
            attempt=st.integers(1, 2),
        ),
    ),
    max_size=12,
)
SCORES = st.lists(st.one_of(st.none(), st.floats(0, 1)), min_size=6, max_size=6).map(tuple)


@given(config=CONFIGS, records=RECORDS, scores=SCORES, answer=st.sampled_from(["yes", "no", "maybe"]))
def test_the_parts_always_sum_to_the_total(
    config: RewardConfig, records: list[CallRecord], scores: tuple[float | None, ...], answer: str
):
    always = model_call("PrincipalInvestigator", visit=9)
    made = reward(*records, always, state=finished(scores, final_answer=answer), config=config)
    assert tuple(made.parts) == reward_names(config)
    gaps = [name for name, score in zip(CRITERIA, scores, strict=True) if score is None and getattr(config, name)]
    assert missing_parts(made) == gaps
    if gaps:
        assert made.total is None
    else:
        assert made.total == math.fsum(value for value in made.parts.values() if value is not None)
        for name, score in zip(CRITERIA, scores, strict=True):
            if name in made.parts and score is not None:
                assert made.parts[name] == getattr(config, name) * score


@given(records=RECORDS, order=st.randoms(use_true_random=False))
def test_the_order_of_roles_does_not_matter(records: list[CallRecord], order: Any):
    records = [*records, model_call("PrincipalInvestigator", visit=9)]
    roles = [record.role for record in records]
    of_role = {role: iter([record for record in records if record.role == role]) for role in roles}
    order.shuffle(roles)
    assert reward(*(next(of_role[role]) for role in roles)) == reward(*records)
