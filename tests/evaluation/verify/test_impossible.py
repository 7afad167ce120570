"""Tables that cannot be true are refused, whatever else they leave out; possible ones are not."""

import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chimera.config.sections.rollouts import RewardConfig
from evaluation.scores.judge import CRITERIA
from evaluation.verify.impossible import impossible

TUTORIAL = {
    "success_rate": 98.50,
    "reward": 0.81,
    "alignment": 87.82,
    "clarity": 0.91,
    "efficiency": 0.82,
    "feasibility": 0.85,
    "groundedness": 0.89,
    "impact": 0.88,
    "novelty": 0.76,
}
WEIGHTS = RewardConfig().model_dump()


def mean(value, low=None, high=None, n=100):
    return {"mean": value, "low": value if low is None else low, "high": value if high is None else high, "n": n}


def test_the_tutorial_s_table_is_refused_because_the_weighted_criteria_give_another_reward():
    problems = impossible({"stages": {"final": TUTORIAL}})
    assert any("reward is 0.81" in problem and "0.8655" in problem for problem in problems)


@pytest.mark.parametrize("form", [lambda value: value, lambda value: {"mean": value}, mean])
def test_its_form_does_not_matter(form):
    table = {name: form(value) for name, value in TUTORIAL.items() if name not in ("success_rate", "alignment")}
    (problem,) = impossible({"stages": {"final": table}})
    assert "0.8655" in problem


def test_the_reward_that_its_criteria_give_is_possible_rounded_or_not():
    for reward in (0.8655, 0.87):
        assert impossible({"stages": {"final": {**TUTORIAL, "reward": reward, "alignment": 0.88}}}) == []


def test_other_weights_give_another_reward():
    weights = {**WEIGHTS, "novelty": 0.0, "clarity": 0.25}
    report = {"settings": {"reward": weights}, "stages": {"final": {**TUTORIAL, "reward": 0.8805, "alignment": 0.88}}}
    assert impossible(report) == []
    del report["stages"]["final"]["novelty"]
    assert impossible(report) == []
    report["stages"]["final"]["reward"] = 0.8655
    assert any("0.8805" in problem for problem in impossible(report))


@given(st.lists(st.floats(0, 1), min_size=6, max_size=6), st.integers(0, 100), st.floats(-0.5, 0.5))
def test_parts_must_add_up_to_the_reward(scores, aligned, off):
    table = {name: mean(score) for name, score in zip(CRITERIA, scores, strict=True)}
    table |= {f"part_{name}": mean(WEIGHTS[name] * table[name]["mean"]) for name in CRITERIA}
    table |= {"part_alignment": mean(aligned / 100), "alignment": mean(aligned / 100)}
    total = sum(part["mean"] for name, part in table.items() if name.startswith("part_"))
    assert impossible({"stages": {"base": {**table, "reward": mean(total)}}}) == []
    problems = impossible({"stages": {"base": {**table, "reward": mean(total + off)}}})
    assert bool(problems) == (abs(off) > 1e-7) or abs(off) < 1e-6


def test_parts_over_other_rollouts_than_the_reward_need_not_add_up():
    table = {"reward": mean(1.2, n=90), "part_alignment": mean(0.7), "part_impact": mean(0.2, n=90)}
    assert impossible({"stages": {"base": table}}) == []


def rollout(name, reward, parts, status="succeeded", **more):
    return {"id": name, "status": status, "reward": reward, "parts": parts, **more}


DIFFERENCE = {"before": 0.5, "after": 0.75, "difference": 0.25, "low": 0.1, "high": 0.4}
REPORT = {
    "settings": {"reward": WEIGHTS, "confidence": 0.95},
    "plan": {"repeats": 1},
    "stages": {
        "base": {
            "success": mean(0.75, 0.5, 1.0, 4),
            "alignment": mean(0.5, 0.25, 0.75, 4),
            "impact": mean(0.5, 0.4, 0.6, 4),
            "part_impact": mean(0.15, 0.1, 0.2, 4),
            "reward": mean(0.15, 0.1, 0.2, 4),
        },
        "sft": {"alignment": mean(0.75, 0.5, 1.0, 4), "macro_f1": mean(0.6, 0.5, 0.9, 4)},
    },
    "outcomes": {
        "base": {
            "count": 4,
            "failed": 1,
            "failures": {"broken": 1},
            "confusion": {
                "yes": {"yes": 1, "no": 0, "maybe": 0, "none": 1},
                "no": {"yes": 1, "no": 1, "maybe": 0, "none": 0},
            },
            "rollouts": [
                rollout("a", None, {}, "failed"),
                rollout("b", 1.25, {"alignment": 1.0, "impact": 0.25}, task="b", values={"reward": 0.1}),
                rollout("c", None, {"alignment": 1.0, "impact": None}),
                rollout("d", 0.5, {"impact": 0.5}, task="d", values={"reward": 0.2}),
            ],
        }
    },
    "pairs": {"base:sft": [["a", None, 1.0, 0.0, 1.0], *[[task, 1.0, 1.0, 0.5, 0.5] for task in "bcd"]]},
    "comparisons": {
        "base:sft": {"alignment": {**DIFFERENCE, "p": 0.01, "p_adjusted": 0.03, "n": 4, "verdict": "better"}}
    },
}


def test_a_table_that_fits_together_is_possible():
    assert impossible(REPORT) == []


@pytest.mark.parametrize(
    ("place", "value", "words"),
    [
        ("stages.base.success.mean", 1.2, "a share lies between 0 and 1"),
        ("stages.base.impact.mean", 0.7, "outside its own interval"),
        ("stages.base.impact.low", 0.9, "above its upper end"),
        ("stages.base.impact.high", None, "both ends must be numbers"),
        ("stages.base.alignment", mean(0.6251, 0.25, 0.75, 4), "not a whole number"),
        ("stages.base.alignment.n", 3.5, "whole tasks"),
        ("stages.base.alignment.mean", 0.75, "but outcomes.base gives 0.5"),
        ("stages.base.success.mean", 0.5, "but outcomes.base gives 0.75"),
        ("stages.base.part_impact", mean(0.16, 0.1, 0.2, 4), "its weight 0.3 times the score 0.5 gives 0.15"),
        ("stages.base.reward", mean(0.19, 0.1, 0.2, 4), "its parts give 0.15"),
        ("stages.base.reward.mean", "high", "no mean that is a number"),
        ("outcomes.base.failed", 2, "1 of the listed rollouts failed"),
        ("outcomes.base.failures", {"broken": 3}, "failures adds up to 3"),
        ("outcomes.base.confusion.yes.yes", 3, "confusion adds up to 6"),
        ("outcomes.base.rollouts.3.reward", 0.75, "rollout d has reward 0.75, its parts give 0.5"),
        ("outcomes.base.rollouts.3.values.reward", 0.4, "the rollouts listed in outcomes.base give 0.25"),
        ("comparisons.base:sft.alignment.difference", 0.35, "difference is 0.35"),
        ("pairs.base:sft.1.4", 1.0, "the report's pairs give 0.375"),
        ("comparisons.base:sft.alignment.high", 0.2, "outside its own interval"),
        ("comparisons.base:sft.alignment.p", 1.5, "a probability lies between 0 and 1"),
        ("comparisons.base:sft.alignment.p_adjusted", 0.001, "a correction never helps"),
        ("comparisons.base:sft.alignment.verdict", "worse", "verdict is 'worse'"),
        ("comparisons.base:sft.alignment.before", 0.25, "but stages.base.alignment is 0.5"),
        ("stages.base", "broken", "no table of metrics"),
        ("stages", {}, "no stages"),
    ],
)
def test_what_cannot_be_is_named(place, value, words):
    report = copy.deepcopy(REPORT)
    at, keys = report, place.split(".")
    for key in keys[:-1]:
        at = at[int(key)] if isinstance(at, list) else at[key]
    at[int(keys[-1]) if isinstance(at, list) else keys[-1]] = value
    assert any(words in problem for problem in impossible(report)), impossible(report)


def test_with_repeats_a_share_is_a_whole_number_of_rollouts():
    report = {"plan": {"repeats": 2}, "stages": {"base": {"alignment": mean(0.625, 0.1, 0.9, 4)}}}
    assert impossible(report) == []
    report["plan"]["repeats"] = 1
    assert len(impossible(report)) == 1


def test_a_statistic_that_is_no_mean_may_lie_outside_the_middle_of_its_bootstrap():
    assert impossible({"stages": {"base": {"macro_f1": mean(0.333333333333, 0.4, 0.9, 12)}}}) == []


def places(tree, place=()):
    """Every place of a report, the report itself not."""
    pairs = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    return [found for key, value in pairs for found in ((*place, key), *places(value, (*place, key)))]


@pytest.mark.parametrize("rubbish", ["x", None, [], {}, ["x"], {"x": "x"}, True, -7.5])
def test_rubbish_anywhere_is_no_crash(rubbish):
    for place in places(REPORT):
        report = copy.deepcopy(REPORT)
        at = report
        for key in place[:-1]:
            at = at[key]
        at[place[-1]] = rubbish
        assert all(isinstance(problem, str) for problem in impossible(report))
