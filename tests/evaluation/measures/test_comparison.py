"""Comparisons of a report: pairing, the right test, correction over families, and verdicts in words."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from record_kit import answered
from sklearn.metrics import f1_score
from statsmodels.stats.contingency_tables import mcnemar
from statsmodels.stats.power import TTestPower

from chimera.core.types import LABELS
from evaluation.measures.comparison import (
    Comparison,
    adjust,
    compare,
    compare_answers,
    families_of,
    too_few_permutations,
    verdict_sentence,
)
from evaluation.measures.metrics import metrics_of, stage_metrics
from evaluation.measures.statistics import bootstrap_mean, exchange_test
from evaluation.records.study import Plan, PlannedTask, Stage, StageAnswers
from training.configuration import load_config

CONFIG = load_config(overrides=["evaluation.resamples=300"])
ANSWERS = st.lists(
    st.tuples(
        st.sampled_from(LABELS),
        st.one_of(st.none(), st.sampled_from(LABELS)),
        st.one_of(st.none(), st.sampled_from(LABELS)),
    ),
    min_size=2,
    max_size=25,
)


def plan(labels, repeats=1):
    tasks = tuple(PlannedTask(f"t{number}", "Is it so?", label) for number, label in enumerate(labels))
    return Plan("val", "generated", "tasks", tasks, repeats, ())


def stage(labels, answers, rewards, repeat=0, **fields):
    """One rollout a task; an answer that is None is a failed rollout."""
    records = [
        answered(
            f"ro-{number}-{repeat}", f"t{number}", answer, reward,
            phase="gate-base", repeat=repeat, seed=number, label=label, **fields,
        )
        for number, (label, answer, reward) in enumerate(zip(labels, answers, rewards, strict=True))
    ]  # fmt: skip
    return StageAnswers(Stage("base", "the base", "sequence", (), {}), tuple(records), ())


def both(*stages):
    return replace(stages[0], records=tuple(record for one in stages for record in one.records))


def one(p, difference=1.0, primary=True, **fields):
    standard = Comparison(1.0, 1.0 + difference, difference, 0.5, 1.5, p, None, 10, 0.4, "exchange test", None, primary)
    return replace(standard, **fields)


def test_rewards_are_compared_over_the_tasks_that_have_one_in_both():
    labels = ["yes"] * 6
    before = stage(labels, ["yes", "yes", None, "no", "no", "yes"], [1.0, 2.0, 9.0, 0.5, 1.5, 1.0])
    after = stage(labels, ["yes", None, "yes", "yes", "no", "yes"], [1.5, 7.0, 7.0, 2.0, 1.0, 2.0])
    found = compare(before, after, plan(labels), CONFIG)["reward"]
    old, new = [1.0, 0.5, 1.5, 1.0], [1.5, 2.0, 1.0, 2.0]
    reference = bootstrap_mean(np.subtract(new, old), confidence=0.95, resamples=300, seed=CONFIG.seed)
    assert (found.n, found.before, found.after) == (4, 1.0, 1.625)
    assert (found.difference, found.low, found.high) == (reference.mean, reference.low, reference.high)
    assert found.p == exchange_test(np.array(old), np.array(new), permutations=3000, seed=CONFIG.seed)
    deviation = np.std(np.subtract(new, old), ddof=1)
    assert found.mde == pytest.approx(deviation * TTestPower().solve_power(nobs=4, alpha=0.05, power=0.8), rel=1e-4)
    assert (found.test, found.p_adjusted, found.verdict, found.primary) == ("exchange test", None, None, True)


def test_alignment_is_compared_over_all_tasks_by_mcnemars_exact_test():
    labels = ["yes"] * 20
    before = stage(labels, ["yes"] * 8 + ["no"] * 10 + [None, None], [1.0] * 20)
    after = stage(labels, [None, "no", *["yes"] * 16, "yes", None], [1.0] * 20)
    found = compare(before, after, plan(labels), CONFIG)["alignment"]
    assert (found.n, found.before, found.after, found.difference) == (20, 0.4, 0.85, pytest.approx(0.45))
    assert found.p == pytest.approx(mcnemar([[6, 2], [11, 1]], exact=True).pvalue)
    assert found.test == "McNemar's exact test"


def test_latency_is_compared_only_where_rollouts_were_made_in_the_same_way():
    labels, rewards = ["yes"] * 3, [1.0] * 3
    by_gate = stage(labels, labels, rewards, seconds=2.0)
    evaluated = replace(by_gate, records=tuple(replace(record, phase="eval-val-base") for record in by_gate.records))
    assert compare(evaluated, evaluated, plan(labels), CONFIG)["seconds"].before == 2.0
    for pair in [(by_gate, evaluated), (evaluated, by_gate), (by_gate, by_gate)]:
        found = compare(*pair, plan(labels), CONFIG)
        assert ("seconds" in found) == (pair[0] is pair[1])
        assert "reward" in found


def test_success_is_compared_over_all_tasks_too():
    labels = ["yes"] * 8
    found = compare(
        stage(labels, [None] * 6 + ["no"] * 2, [1.0] * 8), stage(labels, ["no"] * 8, [1.0] * 8), plan(labels), CONFIG
    )
    assert (found["success"].n, found["success"].difference, found["success"].p) == (8, 0.75, 2 / 2**6)
    assert (found["alignment"].difference, found["alignment"].p) == (0, 1)


@given(ANSWERS)
@settings(max_examples=30)
def test_macro_f1_is_scikit_learns_and_neither_system_is_favoured(rows):
    labels, first, second = (list(column) for column in zip(*rows, strict=True))
    there = compare_answers(_by_task(first), _by_task(second), plan(labels), CONFIG)
    back = compare_answers(_by_task(second), _by_task(first), plan(labels), CONFIG)
    for value, answers in ((there["macro_f1"].before, first), (there["macro_f1"].after, second)):
        given = [answer or "none" for answer in answers]
        occurring = [label for label in LABELS if label in labels or label in given]
        assert value == pytest.approx(f1_score(labels, given, labels=occurring, average="macro", zero_division=0))
    for name, found in there.items():
        assert found.difference == pytest.approx(found.after - found.before)
        assert found.low - 1e-12 <= found.difference <= found.high + 1e-12
        assert (back[name].difference, back[name].p) == (pytest.approx(-found.difference), pytest.approx(found.p))
        assert 0 < found.p <= 1


def _by_task(answers):
    return {f"t{number}": [answer] for number, answer in enumerate(answers)}


def test_a_stage_beside_itself_shows_nothing():
    labels = ["yes", "no", "maybe", "yes"] * 5
    same = stage(labels, ["yes"] * 20, list(range(20)), counts={"model_calls": 3}, seconds=1.0)
    found = adjust({"base:base": compare(same, same, plan(labels), CONFIG)}, CONFIG)["base:base"]
    assert {(one.difference, one.p) for one in found.values()} == {(0, 1)}
    words = {name: one.verdict for name, one in found.items()}
    assert words.pop("reward") == "non-inferior"
    assert set(words.values()) == {"no difference shown"}  # the margin of 5 points is less than 20 tasks exclude
    assert all(one.mde is None for one in found.values())
    bound = 1 - 0.025 ** (1 / 20)
    assert (found["alignment"].low, found["alignment"].high) == pytest.approx((-bound, bound))


def test_the_figures_of_complete_stages_are_those_of_the_stages():
    labels = ["yes", "no", "maybe", "yes"] * 5
    rng = np.random.default_rng(0)
    stages = [
        stage(labels, list(rng.choice(LABELS, 20)), list(rng.random(20)), counts={"model_calls": 3}) for _ in range(2)
    ]
    found = compare(*stages, plan(labels), CONFIG)
    alone = [stage_metrics(one, plan(labels), CONFIG) for one in stages]
    assert set(found) == set(alone[0])
    for name, figures in found.items():
        assert (figures.before, figures.after) == pytest.approx((alone[0][name].mean, alone[1][name].mean))
        assert figures.n == alone[0][name].n


def test_repeats_are_paired_by_seed_and_tasks_are_counted():
    labels = ["yes", "yes"]
    before = both(stage(labels, ["yes", "no"], [1.0, 1.0]), stage(labels, [None, "yes"], [9.0, 2.0], repeat=1))
    after = both(stage(labels, ["yes", "yes"], [1.5, 3.0]), stage(labels, ["yes", "yes"], [8.0, 2.0], repeat=1))
    found = compare(before, after, plan(labels, 2), CONFIG)
    assert (found["reward"].n, found["reward"].before, found["reward"].after) == (2, 1.25, 2.0)
    assert (found["alignment"].n, found["alignment"].before, found["alignment"].after) == (2, 0.5, 1.0)
    assert {found[name].test for name in ("alignment", "success", "decision_two_way")} == {"exchange test"}


def test_a_baseline_with_one_answer_is_compared_with_a_stage_of_several():
    labels = ["yes", "no", "maybe"]
    baseline = {"t0": ["yes"], "t1": ["yes"]}
    repeated = {"t0": ["yes", "no"], "t1": ["no", "no"], "t2": ["maybe", "maybe"]}
    found = compare_answers(baseline, repeated, plan(labels), CONFIG)
    assert (found["alignment"].n, found["alignment"].before, found["alignment"].after) == (2, 0.5, 0.75)
    assert found["alignment"].test == "exchange test"
    assert found["macro_f1"].before == pytest.approx((2 / 3 + 0) / 2)
    assert found["macro_f1"].after == pytest.approx((1 / 1.5 + 2 / 2.5) / 2)
    assert compare_answers({}, repeated, plan(labels), CONFIG) == {}


def test_an_interval_does_not_vanish_where_all_tasks_differ_alike():
    """What was not seen among n tasks may be as much as the exact bound of a share (Clopper and Pearson)."""
    unseen = 1 - 0.025 ** (1 / 4)
    yes = plan(["yes"] * 4)
    wrong, right = ({task.id: [answer] for task in yes.tasks} for answer in ("no", "yes"))
    row = compare_answers(right, wrong, yes, CONFIG)["alignment"]
    assert (row.difference, row.low, row.high) == (-1, -1, pytest.approx(-1 + 2 * unseen))
    row = compare_answers(right, right, yes, CONFIG)["alignment"]
    assert (row.low, row.high) == (pytest.approx(-unseen), pytest.approx(unseen))


def test_a_single_task_has_no_interval():
    found = compare(stage(["yes"], ["no"], [1.0]), stage(["yes"], ["yes"], [2.0]), plan(["yes"]), CONFIG)
    assert {name: (one.low, one.high, one.mde, one.p) for name, one in found.items()} == dict.fromkeys(
        ("success", "reward", "alignment", "macro_f1", "decision_alignment", "decision_two_way", "vetoed"),
        (None, None, None, 1.0),
    )


def test_macro_f1s_minimum_detectable_effect_comes_from_its_own_spread():
    labels = ["yes", "no"] * 40
    rng = np.random.default_rng(1)
    first = [label if rng.random() < 0.5 else "no" for label in labels]
    second = [label if rng.random() < 0.8 else "no" for label in labels]
    found = compare_answers(_by_task(first), _by_task(second), plan(labels), CONFIG)["macro_f1"]
    # 2.8 standard errors are found with 80 %, an interval of 95 % is 3.9 of them wide.
    assert found.mde == pytest.approx((found.high - found.low) / 3.92 * 2.83, rel=0.15)


@pytest.mark.parametrize(
    ("metric", "difference", "p", "verdict"),
    [
        ("reward", 0.2, 0.01, "better"),
        ("reward", -0.2, 0.01, "worse"),
        ("reward", 0.2, 0.06, "no difference shown"),
        ("seconds", 0.2, 0.01, "worse"),
        ("repairs", -0.2, 0.01, "better"),
        ("turns", 0.2, 0.01, "higher"),
        ("completion_tokens", -0.2, 0.01, "lower"),
    ],
)
def test_verdicts_follow_the_metrics_direction(metric, difference, p, verdict):
    assert adjust({"a:b": {metric: one(p, difference)}}, CONFIG)["a:b"][metric].verdict == verdict


def test_a_verdict_rests_on_the_adjusted_p_value_and_the_configured_level():
    many = {"a:b": {"reward": one(0.02)}, "b:c": {"reward": one(0.02)}, "c:d": {"reward": one(0.9)}}
    assert adjust(many, CONFIG)["a:b"]["reward"].verdict == "no difference shown"
    lenient = load_config(overrides=["evaluation.confidence=0.9"])
    assert adjust(many, lenient)["a:b"]["reward"].verdict == "better"


def test_every_metric_can_be_judged():
    config = load_config(overrides=["evaluation.prices={junior: [1, 2]}"])
    found = adjust({"a:b": {metric.name: one(1e-9, primary=metric.primary) for metric in metrics_of(config)}}, config)
    assert {figures.verdict for figures in found["a:b"].values()} <= {"better", "worse", "higher", "lower"}


def test_a_test_of_the_gate_is_in_no_family_and_keeps_its_verdict():
    decided = replace(one(0.02), p_adjusted=0.02, verdict="better", by_gate=True)
    many = {f"s{number}:x": {"reward": one(0.02)} for number in range(10)}
    found = adjust({**many, "base:sft": {"reward": decided}}, CONFIG)
    assert found["base:sft"]["reward"] == decided
    assert {found[pair]["reward"].p_adjusted for pair in many} == {0.2}
    words = verdict_sentence("a", "b", found["base:sft"], CONFIG)
    assert "reward better, from" in words
    assert "after correction" not in words.partition(";")[0]


def test_the_declared_families_are_corrected_together():
    families = '{quick: ["*/reward", "s0:x/turns"], slow: ["s?:x/*"]}'
    config = load_config(overrides=[f"evaluation.families={families}"])
    tests = {"reward": one(0.01), "turns": one(0.02, primary=False), "alignment": one(0.03)}
    compared = {"s0:x": tests, "s1:x": tests, "other:x": tests}
    sizes = {name: len(found) for name, found in families_of(compared, config, "s0:x").items()}
    assert sizes == {"quick": 4, "slow": 3, "everything else": 2}
    found = adjust(compared, config, "s0:x")
    assert found["s0:x"]["turns"].p_adjusted == pytest.approx(0.04)
    assert found["other:x"]["alignment"].p_adjusted == pytest.approx(0.04)


def test_the_main_comparison_is_a_family_of_its_own():
    many = {f"s{number}:x": {"reward": one(0.02), "turns": one(0.02, primary=False)} for number in range(10)}
    found = adjust(many, CONFIG, "s0:x")
    assert found["s0:x"]["reward"].p_adjusted == pytest.approx(0.02)
    assert found["s1:x"]["reward"].p_adjusted == pytest.approx(9 * 0.02)
    assert found["s0:x"]["turns"].p_adjusted == pytest.approx(10 * 0.02)


def test_no_comparison_is_no_family():
    assert adjust({}, CONFIG) == {}
    assert too_few_permutations({}, CONFIG) is None


def test_too_few_permutations_for_a_family_are_said():
    smallest = {f"s{number}": {"reward": one(1 / 3001)} for number in range(150)}
    assert too_few_permutations(adjust(smallest, CONFIG), CONFIG) is None
    larger = {**smallest, "x:y": {"reward": one(0.5), "alignment": one(0.5, test="McNemar's exact test")}}
    warning = too_few_permutations(adjust(larger, CONFIG), CONFIG)
    assert (
        "evaluation.resamples=300 gives 3000 random exchanges, too few for a family of 152 tests: 150 of them"
        in warning
    )
    raised = int(warning.rsplit(maxsplit=1)[-1])
    enough = load_config(overrides=[f"evaluation.resamples={raised}"])
    finer = {**larger, **{pair: {"reward": one(1 / (10 * raised + 1))} for pair in smallest}}
    assert too_few_permutations(adjust(finer, enough), enough) is None
    assert adjust(finer, enough)["s0"]["reward"].verdict == "better"


def test_the_main_comparison_is_a_family_of_its_own_for_permutations_too():
    others = {f"s{number}": {"reward": one(0.5)} for number in range(170)}
    main = {"base:final": {"reward": one(1 / 3001)}}
    adjusted = adjust({**main, **others}, CONFIG, "base:final")
    assert adjusted["base:final"]["reward"].verdict == "better"
    stuck = {f"t{number}": {"reward": one(1 / 3001)} for number in range(170)}
    warning = too_few_permutations(adjust({**main, **stuck}, CONFIG, "base:final"), CONFIG, "base:final")
    assert "a family of 170 tests: 170 of them" in warning


def test_differences_that_are_not_shown_for_other_reasons_need_no_more_permutations():
    plain = {f"s{number}": {"reward": one(0.01)} for number in range(17)}
    exact = {f"e{number}": {"alignment": one(1 / 301, test="McNemar's exact test")} for number in range(3)}
    assert too_few_permutations(adjust({**plain, **exact}, CONFIG), CONFIG) is None


def test_the_sentence_names_both_with_intervals():
    found = {
        "reward": one(0.01, 0.25, low=0.1, high=0.4, verdict="better", p_adjusted=0.03),
        "alignment": one(
            0.5,
            0.1,
            before=0.6,
            after=0.7,
            low=-0.05,
            high=0.25,
            verdict="no difference shown",
            p_adjusted=1.0,
            mde=0.15,
        ),
    }
    assert verdict_sentence("the base", "after ppo", found, CONFIG) == (
        "After ppo beside the base: reward better, from 1.000 to 1.250 (+0.250, 95 % interval +0.100 to +0.400, "
        "p = 0.03 after correction, n = 10); answers right no difference shown, from 60.0 to 70.0 % (+10.0 points, "
        "95 % interval -5.0 to +25.0, p = 1 after correction, n = 10), where 15.0 points or more would be found "
        "80 times in 100, before correction."
    )


def test_the_sentence_tells_of_failures_where_there_are_some():
    fine = one(1.0, 0.0, before=1.0, after=1.0, verdict="no difference shown", p_adjusted=1.0)
    worse = one(1e-9, -0.2, before=1.0, after=0.8, low=-0.3, high=-0.1, verdict="worse", p_adjusted=1e-8)
    assert "success" not in verdict_sentence("a", "b", {"success": fine}, CONFIG)
    found = verdict_sentence("a", "b", {"success": worse}, CONFIG)
    assert "success worse, from 100.0 to 80.0 % (-20.0 points, 95 % interval -30.0 to -10.0" in found


def test_there_is_no_sentence_before_correction():
    with pytest.raises(ValueError, match="not adjusted"):
        verdict_sentence("the base", "after ppo", {"reward": one(0.01)}, CONFIG)


def test_the_sentence_says_what_is_missing():
    alone = one(1.0, low=None, high=None, n=1, mde=None, verdict="no difference shown", p_adjusted=1.0)
    found = verdict_sentence("the base", "after sft", {"alignment": alone}, CONFIG)
    assert "reward has no value in both" in found
    assert "no interval from a single task" in found
