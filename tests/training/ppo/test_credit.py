"""Credit: what each senior call gets of its rollout's reward, against closed forms."""

import json
import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chimera.config.sections.rollouts import RewardConfig
from evaluation.records.rollouts import RolloutRecord
from training.learning.experience import Call
from training.ppo.credit import AUTOMATIC, credit, reached
from training.ppo.verl.settings import PpoSettings

LABELS = ("yes", "no", "maybe")
number = st.floats(-2, 2).map(lambda value: round(value, 3))


def call(role="HypothesisRefiner", immediate=0.05, outcome=True, handed=None):
    return Call("ro-1", role, 1, 1, 1, "answer-1", (1, 2), (3,), "v1", immediate, outcome, handed)


def record(parts, label="yes", status="succeeded"):
    total = None if None in parts.values() else math.fsum(parts.values())
    missing = [name for name, value in parts.items() if value is None]
    about = ("ro-1", "t", "generated", 1, "ppo", 0, 0)
    return RolloutRecord(*about, status, None, label, "yes", "GO", total, parts=parts, missing=missing)


def config(credit="calls", role_baseline=False):
    return PpoSettings(credit=credit, role_baseline=role_baseline)


calls = st.lists(
    st.builds(
        call, st.sampled_from(["HypothesisRefiner", "ProtocolDesigner"]), number, st.booleans(),
        st.sampled_from([*LABELS, None]),
    ),
    max_size=6,
)  # fmt: skip
parts = st.fixed_dictionaries(
    dict.fromkeys(("alignment", "impact", "repeated_call"), number), optional=dict.fromkeys(AUTOMATIC, number)
)


@given(calls, parts)
def test_broadcast_gives_every_call_that_earns_it_the_whole_reward(calls, parts):
    credited = credit(calls, record(parts), config("broadcast"), RewardConfig())
    assert [item.call for item in credited] == calls
    for item in credited:
        assert item.reward == pytest.approx(math.fsum(parts.values()) if item.call.outcome else item.call.immediate)


@given(calls, parts)
def test_by_call_each_gets_its_own_part_and_the_rest_that_is_not_automatic(calls, parts):
    rest = math.fsum(value for name, value in parts.items() if name not in AUTOMATIC)
    for item in credit(calls, record(parts), config("calls"), RewardConfig()):
        expected = item.call.immediate + (rest if item.call.outcome else 0.0)
        assert item.reward == pytest.approx(expected)


def test_the_return_to_go_of_a_calculator_trace():
    """Immediate rewards .15 .15 .15 and 1.0 in the end: 1.45, 1.30, 1.15 and 1.00; another role's calls count apart."""
    trace = [call(immediate=value) for value in (0.15, 0.15, 0.15, 0.0)]
    other = call("ProtocolDesigner", immediate=0.3)
    made = record({"alignment": 1.0, "parsed": 0.45, "call_valid": 0.15, "tool_succeeded": 0.15})
    found = credit([*trace[:2], other, *trace[2:]], made, config("return_to_go"), RewardConfig())
    assert [item.reward for item in found] == pytest.approx([1.45, 1.30, 1.30, 1.15, 1.00])


@given(calls, parts)
def test_nothing_follows_from_a_call_that_does_not_earn_the_outcome(calls, parts):
    for item in credit(calls, record(parts), config("return_to_go"), RewardConfig()):
        if not item.call.outcome:
            assert item.reward == pytest.approx(item.call.immediate)


@given(calls, parts)
def test_a_phase_with_a_reward_of_its_own_pays_only_the_parts_that_it_names(calls, parts):
    for name in ("impact", "parsed"):
        own = PpoSettings(credit="calls", role_baseline=False, reward={name: 2.0})
        for item in credit(calls, record(parts), own, RewardConfig()):
            expected = 2.0 * parts.get(name, 0.0) / getattr(RewardConfig(), name) if item.call.outcome else 0.0
            assert item.reward == pytest.approx(expected)


@given(calls, parts, st.sampled_from(LABELS), st.sampled_from(["calls", "broadcast"]), st.floats(0, 3))
def test_the_baseline_depends_on_what_the_call_was_handed_only(calls, parts, label, mode, weight):
    """Action independence keeps the gradient unbiased: the same state, the same amount, whatever the call did."""
    weights = RewardConfig(alignment=weight)
    plain = credit(calls, record(parts, label), config(mode), weights)
    based = credit(calls, record(parts, label), config(mode, role_baseline=True), weights)
    for before, after in zip(plain, based, strict=True):
        assert before.reward - after.reward == pytest.approx(weight if after.call.handed == label else 0.0)


def test_nothing_is_learned_from_a_rollout_without_a_reward():
    unscored = record({"alignment": 1.0, "impact": None})
    assert credit([call()], unscored, config(), RewardConfig()) == []
    failed = replace(record({"alignment": 1.0}), status="failed")
    assert credit([call()], failed, config(), RewardConfig()) == []


def exchange(content, found="Zorbex lowered relapse (12% versus 25%)."):
    """A traced call that has read one sentence."""
    read = json.dumps({"results": [{"id": "1", "text": found}], "goal": "?"})
    messages = [
        {"role": "system", "content": "s"},
        {"role": "user", "content": '{"goal": "?"}'},
        {"role": "tool", "content": read},
    ]
    return SimpleNamespace(messages=messages, choice={"message": {"role": "assistant", "content": content}})


def hypothesis(*evidence, answer="yes"):
    return json.dumps({"evidence": list(evidence), "comparison": "lower", "claim": "It helps.", "answer": answer})


TRUE, FALSE = "Zorbex lowered relapse (12% versus 25%).", "Zorbex lowered relapse (2% versus 25%)."


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (hypothesis(TRUE), {"readable": True, "quotes": True, "verbatim": True}),
        (hypothesis(TRUE, FALSE), {"readable": True, "quotes": True, "verbatim": False}),
        (hypothesis(), {"readable": True, "quotes": False, "verbatim": True}),
        ("no idea", {"readable": False}),
    ],
)
def test_the_sub_goals_of_a_hypothesis(content, expected):
    assert reached(replace(call(), asked=exchange(content))) == expected


@pytest.mark.parametrize(("expected_answer", "handed", "found"), [("yes", "yes", True), ("no", "yes", False)])
def test_a_protocol_expects_what_it_was_handed(expected_answer, handed, found):
    fields = ("design", "population", "intervention", "comparator", "outcome", "analysis", "safeguards")
    content = json.dumps({**dict.fromkeys(fields, "x"), "sample_size": 100, "expected": expected_answer})
    one = replace(call("ProtocolDesigner", handed=handed), asked=exchange(content))
    assert reached(one) == {"readable": True, "expects": found}


def test_sub_goals_add_their_share_and_discount_the_end_by_the_calls_that_follow():
    """Two calls with r = .05 each, R without its automatic parts is 1; half of the second one's sub-goals fail."""
    first = replace(call(), asked=exchange(hypothesis(TRUE)))
    second = replace(call(), asked=exchange(hypothesis(FALSE)))
    settings = PpoSettings(
        credit="sub_goals", sub_goal_weight=0.3, verl={"algorithm": {"gamma": 0.5}}, role_baseline=False
    )
    found = credit([first, second], record({"alignment": 1.0, "parsed": 0.1}), settings, RewardConfig())
    assert [one.reward for one in found] == pytest.approx([0.3 + 0.5 + 0.05, 0.2 + 1.0 + 0.05])


@given(calls, parts, parts)
def test_counterfactual_is_the_difference_to_the_replay(calls, parts, others):
    settings = config("counterfactual")
    plain = credit(calls, record(parts), config("calls"), RewardConfig())
    rest = math.fsum(value for name, value in others.items() if name not in AUTOMATIC)
    found = credit(calls, record(parts), settings, RewardConfig(), without=record(others))
    for one, other in zip(found, plain, strict=True):
        assert one.reward == pytest.approx(other.reward - (rest if one.call.outcome else 0.0))


@pytest.mark.parametrize("without", [None, record({"alignment": None}), record({"alignment": 1.0}, status="failed")])
def test_without_a_reward_of_the_replay_nothing_is_credited(without):
    assert credit([call()], record({"alignment": 1.0}), config("counterfactual"), RewardConfig(), without=without) == []
