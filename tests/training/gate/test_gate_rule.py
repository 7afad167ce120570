"""The gate's rule: what goes back, in the report's own words, and how often true changes are kept or rolled back."""

from dataclasses import replace
from math import sqrt

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from record_kit import answered
from scipy.special import ndtri
from scipy.stats import multinomial

from evaluation.measures.comparison import compare as report_compare
from evaluation.measures.comparison import judged
from evaluation.measures.metrics import metrics_of
from evaluation.records.study import Plan, PlannedTask, Stage, StageAnswers
from training.configuration import load_config
from training.gate import power as gate_power
from training.gate.rule import compare

CONFIG = load_config(overrides=["evaluation.resamples=20"])
REWARDS = st.lists(st.floats(-1, 2), min_size=6, max_size=20)


def record(task_id, reward, answer="yes"):
    return answered(f"ro-{task_id}", task_id, answer, reward, phase="gate-base")


def stage(right):
    """A stage whose rollouts are right or not, with the reward that goes with it."""
    return [record(str(i), 0.9 + hit, "yes" if hit else "no") for i, hit in enumerate(right)]


@given(REWARDS, st.floats(0.2, 1))
@settings(max_examples=30, deadline=None)
def test_a_reward_that_rose_or_fell_everywhere_is_better_or_worse(rewards, step):
    before = [record(str(i), reward) for i, reward in enumerate(rewards)]
    for change, verdict in ((step, "better"), (-step, "worse")):
        after = [record(str(i), reward + change) for i, reward in enumerate(rewards)]
        found = compare(before, after, ("base", "sft"), CONFIG)
        assert found.verdict == verdict
        assert found.reward.difference == pytest.approx(change)
        assert bool(found.faults) == (verdict == "worse")


@given(REWARDS)
@settings(max_examples=30, deadline=None)
def test_the_same_rewards_may_go_live(rewards):
    records = [record(str(i), reward) for i, reward in enumerate(rewards)]
    found = compare(records, records, ("base", "sft"), CONFIG)
    assert found.faults == ()
    assert found.reward.verdict == "non-inferior"
    assert found.verdict in ("non-inferior", "no difference shown")


def test_rewards_are_compared_where_both_have_one_and_right_answers_everywhere():
    before = [record("a", 1.0), record("b", None), record("c", 1.0, "no"), record("d", 2.0)]
    after = [record("a", 2.0), record("b", 9.0), record("c", 3.0), record("d", None, None)]
    found = compare(before, after, ("base", "ppo"), CONFIG)
    assert (found.reward.n, found.reward.difference) == (2, 1.5)
    assert (found.alignment.n, found.alignment.before, found.alignment.after) == (4, 0.75, 0.75)
    assert found.failed == (0, 1)


def test_many_more_failures_are_worse_even_when_rewards_rise():
    before = [record(str(i), 1.0) for i in range(20)]
    after = [record(str(i), 1.5) for i in range(10)]
    after += [record(str(i), None, None) for i in range(10, 20)]
    found = compare(before, after, ("base", "ppo"), CONFIG)
    assert found.verdict == "worse"
    assert "10 rollouts failed, 0 of base" in found.faults


def test_without_any_reward_right_answers_decide():
    before = [record(str(i), None) for i in range(20)]
    after = [record(str(i), None, "no") for i in range(20)]
    found = compare(before, after, ("base", "ppo"), CONFIG)
    assert found.reward is None
    assert found.faults == ("right answers -100.0 points, significantly worse than base, past the margin of 5.0",)


def test_a_mean_at_minus_the_margin_goes_back_and_one_above_it_stays():
    before = stage([True] * 80 + [False] * 20)
    at, above = ([i >= lost and i < 80 for i in range(100)] for lost in (5, 4))
    found = compare(before, stage(at), ("base", "sft"), CONFIG)
    assert found.verdict in ("past the margin", "worse")
    assert found.faults[-1].endswith("past the margin of 5.0")
    assert compare(before, stage(above), ("base", "sft"), CONFIG).faults == ()


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=8, max_size=40), st.data())
@settings(max_examples=30, deadline=None)
def test_one_more_right_answer_never_makes_right_answers_a_fault(pairs, data):
    before, after = stage([old for old, _ in pairs]), [new for _, new in pairs]
    place = data.draw(st.integers(0, len(pairs) - 1))
    improved = [new or at == place for at, new in enumerate(after)]
    if not compare(before, stage(after), ("base", "sft"), CONFIG).faults:
        found = compare(before, stage(improved), ("base", "sft"), CONFIG)
        assert found.alignment.verdict != "worse"
        assert found.alignment.difference > -CONFIG.gate.margin_alignment


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=8, max_size=40))
@settings(max_examples=30, deadline=None)
def test_one_test_of_a_report_says_the_same_of_the_same_pairs(pairs):
    before, after = stage([old for old, _ in pairs]), stage([new for _, new in pairs])
    plan = Plan("val", "generated", "", tuple(PlannedTask(str(i), "So?", "yes") for i in range(len(pairs))), 1, ())
    sides = [StageAnswers(Stage("a", "a", "sequence", (), {}), tuple(records), ()) for records in (before, after)]
    reported = report_compare(*sides, plan, CONFIG)
    found = compare(before, after, ("base", "sft"), CONFIG)
    for name, own in (("reward", found.reward), ("alignment", found.alignment)):
        metric = next(one for one in metrics_of(CONFIG) if one.name == name)
        alone = judged(reported[name], metric, reported[name].p, CONFIG)
        assert replace(alone, by_gate=True) == own


def test_a_true_loss_of_10_points_goes_back_and_true_gains_stay():
    found = gate_power.expected(100, CONFIG)
    assert 0.45 < found.deviation < 0.5
    assert found.rolled_back[-0.10] > 0.8
    assert found.rolled_back[-0.05] > 0.45
    assert found.rolled_back[-0.03] > 0.3
    assert found.rolled_back[0.0] < 0.2
    assert found.rolled_back[0.05] < 0.05
    assert found.rolled_back[0.08] < 0.01


@given(st.integers(2, 150), st.floats(0.01, 0.9))
@settings(max_examples=40, deadline=None)
def test_the_larger_the_loss_the_more_often_it_goes_back(tasks, margin):
    config = load_config(overrides=[f"gate.margin_alignment={margin}"])
    shares = [share for _, share in sorted(gate_power.expected(tasks, config).rolled_back.items())]
    assert shares == sorted(shares, reverse=True)
    assert max(shares) > 0 or margin > 0.05


@given(st.integers(2, 60), st.data())
@settings(max_examples=30, deadline=None)
def test_the_larger_the_loss_the_more_often_it_goes_back_as_answers_changed_here(tasks, data):
    sides = [stage(data.draw(st.lists(st.booleans(), min_size=tasks, max_size=tasks))) for _ in range(2)]
    power = gate_power.observed(*sides, CONFIG)
    if power is not None:
        shares = [share for _, share in sorted(power.rolled_back.items())]
        assert shares == sorted(shares, reverse=True)
        assert shares[0] < 1


@pytest.mark.parametrize("tasks", [2, 3, 4, 5, 10])
def test_the_odds_of_few_tasks_are_those_of_answers_that_change_whole(tasks):
    """The exact odds: any net loss is past the margin, because one answer of so few is more than 5 points."""
    changed = gate_power.TYPICAL_DEVIATION**2
    for true, share in gate_power.expected(tasks, CONFIG).rolled_back.items():
        gained, lost = (changed + true) / 2, (changed - true) / 2
        exact = sum(
            multinomial.pmf([more, fewer, tasks - more - fewer], tasks, [gained, lost, 1 - changed])
            for more in range(tasks + 1)
            for fewer in range(more + 1, tasks - more + 1)
        )
        assert share == pytest.approx(exact, abs=0.03)
    assert gate_power.expected(2, CONFIG).rolled_back[0.0] < 0.25


def test_one_answer_that_changed_does_not_make_a_true_gain_go_back():
    before = [True] * 9 + [False]
    power = gate_power.observed(stage(before), stage([True] * 10), CONFIG)
    assert power.rolled_back[0.08] < 0.1 < power.rolled_back[-0.10]


def test_a_smaller_margin_rolls_back_more():
    strict = load_config(overrides=["gate.margin_alignment=0.01"])
    usual, found = (gate_power.expected(100, config).rolled_back for config in (CONFIG, strict))
    assert all(found[true] >= usual[true] for true in usual)
    assert found[0.0] > usual[0.0]


def test_the_power_that_is_told_is_that_of_the_rule_itself():
    """Whole runs of the real rule on drawn answers, beside the resampled figures."""
    rng = np.random.default_rng(0)
    for true in (-0.10, 0.0):
        gained, lost = 0.112 + true / 2, 0.112 - true / 2
        back, powers = 0, []
        for _ in range(120):
            draw = rng.random(100)
            before = (draw < lost) | ((draw >= lost + gained) & (rng.random(100) < 0.75))
            after = np.where(draw < lost, False, np.where(draw < lost + gained, True, before))
            sides = stage(map(bool, before)), stage(map(bool, after))
            back += bool(compare(*sides, ("base", "sft"), CONFIG).faults)
        powers.append(gate_power.observed(*sides, CONFIG).rolled_back[true])
        assert back / 120 == pytest.approx(np.mean(powers), abs=0.13)


def live_after(changes, rng, tasks=100):
    """A run whose phases truly change the share of right answers so: how many go live, and what the share becomes.

    A task's difficulty and chance together decide whether it is answered right, so that the deviation of a task's
    change is that of recorded runs, 0.47, at a share of 75 %.
    """
    difficulty, share = rng.normal(size=tasks), 0.75

    def drawn(share):
        return stage(map(bool, sqrt(0.6) * difficulty + sqrt(0.4) * rng.normal(size=tasks) < ndtri(share)))

    kept, start = [drawn(share)], share
    for change in changes:
        new = drawn(share + change)
        best = max(kept, key=lambda records: sum(one.answer == "yes" for one in records))
        rivals = {id(rival): rival for rival in (kept[-1], kept[0], best)}.values()
        if not any(compare(rival, new, ("before", "after"), CONFIG).faults for rival in rivals):
            kept.append(new)
            share += change
    return len(kept) - 1, share - start


def test_ten_small_losses_in_a_row_cannot_all_go_live():
    rng = np.random.default_rng(1)
    live, lost = zip(*(live_after([-0.03] * 10, rng) for _ in range(25)), strict=True)
    assert max(live) < 10
    assert np.mean(lost) > -0.10


def test_real_gains_in_a_row_mostly_go_live():
    rng = np.random.default_rng(2)
    live, _ = zip(*(live_after([0.08, 0.05], rng) for _ in range(25)), strict=True)
    assert np.mean(live) > 1.6


def test_the_power_of_no_pairs_is_not_told():
    one = [record("a", 1.0)]
    assert gate_power.observed(one, one, CONFIG) is None
    assert gate_power.observed(one, [record("a", 0.0, "no")], CONFIG) is None


def test_the_power_in_words():
    words = gate_power.expected(100, CONFIG).words()
    assert words.startswith("with 100 tasks, true losses of 3, 5 and 10 points are rolled back in ")
    assert ", true gains of 0, 5 and 8 points in " in words
