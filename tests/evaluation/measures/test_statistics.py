"""The report's statistics: beside SciPy, statsmodels and scikit-learn, and by simulation with values like rewards."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from statsmodels.stats.contingency_tables import mcnemar as statsmodels_mcnemar
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.power import TTestPower

from chimera.core.types import LABELS
from evaluation.measures.statistics import (
    Mean,
    bootstrap_mean,
    bootstrap_statistic,
    exchange_test,
    f1_rows,
    holm,
    macro_f1_of_totals,
    minimum_detectable_effect,
    of_all,
    sign_test,
    slope,
    unseen_share,
)

INTERVAL = {"confidence": 0.95, "resamples": 1000, "seed": 0}
EXCHANGES = {"permutations": 500, "seed": 0}
EXPERIMENTS = 1000
N = 100
FALSE_POSITIVES = stats.binom.ppf(0.999, EXPERIMENTS, 0.05)
"""A test of exactly 5 % would be above this in one of a thousand such simulations."""
VALUES = st.lists(st.floats(-3, 3), min_size=2, max_size=30)


def rewards(difficulty, share, rng):
    """Bimodal: about 0.9 without an aligned decision, 1.9 with one."""
    return (difficulty < share) + rng.normal(0.9, 0.15, len(difficulty))


@given(VALUES)
def test_an_interval_contains_the_mean_and_stays_within_the_values(values):
    found = bootstrap_mean(values, **INTERVAL)
    assert (found.n, found.mean) == (len(values), pytest.approx(math.fsum(values) / len(values), abs=1e-9))
    assert min(values) - 1e-9 <= found.low <= found.mean <= found.high <= max(values) + 1e-9


def test_an_interval_is_scipys_percentile_one_at_the_expanded_level():
    values = np.random.default_rng(1).gamma(2.0, size=30)
    tail = stats.norm.cdf(math.sqrt(30 / 29) * stats.t.ppf(0.025, 29))
    reference = stats.bootstrap(
        (values,), np.mean, confidence_level=1 - 2 * tail, method="percentile", n_resamples=40000, rng=2
    ).confidence_interval
    found = bootstrap_mean(values, confidence=0.95, resamples=40000, seed=3)
    width = reference.high - reference.low
    assert (found.low, found.high) == pytest.approx((reference.low, reference.high), abs=0.02 * width)
    assert width > 2 * 1.96 * values.std() / math.sqrt(30), "wider than the normal interval"


@given(VALUES, st.floats(-2, 2))
def test_a_constant_gain_moves_the_interval_and_nothing_else(values, gain):
    found, moved = (bootstrap_mean([value + more for value in values], **INTERVAL) for more in (0.0, gain))
    for name in ("mean", "low", "high"):
        assert getattr(moved, name) == pytest.approx(getattr(found, name) + gain, abs=1e-9)


def test_one_task_has_no_interval_and_none_has_no_mean():
    assert bootstrap_mean([0.4], **INTERVAL).dump() == {"mean": 0.4, "low": None, "high": None, "n": 1}
    with pytest.raises(ValueError, match="at least one task"):
        bootstrap_mean([], **INTERVAL)


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_a_share_that_no_task_contradicts_has_the_exact_bound(value):
    found = bootstrap_mean([value] * 40, share=True, **INTERVAL)
    reference = stats.binomtest(int(40 * value), 40).proportion_ci(0.95, "exact")
    assert (found.low, found.high) == pytest.approx((reference.low, reference.high))
    assert unseen_share(40, 0.95) == pytest.approx(stats.binomtest(0, 40).proportion_ci(0.95, "exact").high)
    same_counts = bootstrap_mean([value] * 40, **INTERVAL)
    assert (same_counts.low, same_counts.high) == (value, value), "only shares are known to have bounds"


def test_a_share_that_varies_has_the_bootstrap_interval():
    values = [0.0, 1.0] * 20
    assert bootstrap_mean(values, share=True, **INTERVAL) == bootstrap_mean(values, **INTERVAL)


def test_the_interval_of_a_mean_covers_the_truth_as_often_as_it_says():
    rng = np.random.default_rng(0)
    found = [bootstrap_mean(rewards(rng.random(N), 0.7, rng), **INTERVAL) for _ in range(EXPERIMENTS)]
    assert sum(one.low <= 1.6 <= one.high for one in found) / EXPERIMENTS == pytest.approx(0.95, abs=0.02)


def test_the_interval_of_a_paired_difference_covers_the_truth_as_often_as_it_says():
    rng = np.random.default_rng(0)
    covered = 0
    for _ in range(EXPERIMENTS):
        difficulty = rng.random(N)
        changed = np.where(rng.random(N) < 0.7, difficulty, rng.random(N))
        before, after = rewards(difficulty, 0.6, rng), rewards(changed, 0.75, rng)
        found = bootstrap_mean(list(after - before), **INTERVAL)
        covered += found.low <= 0.15 <= found.high
    assert covered / EXPERIMENTS == pytest.approx(0.95, abs=0.02)


@given(st.integers(0, 30), st.integers(0, 30), st.integers(0, 30))
def test_mcnemar_is_statsmodels_exact_one(kept, gained, lost):
    reference = statsmodels_mcnemar([[kept, gained], [lost, 5]], exact=True).pvalue
    assert sign_test(gained, lost) == pytest.approx(min(1.0, reference))


@pytest.mark.parametrize("shift", [0.0, 0.3, 0.8])
def test_the_exchange_test_of_means_is_scipys_exact_one(shift):
    rng = np.random.default_rng(3)
    before = rng.normal(size=12)
    after = before + rng.normal(shift, 0.6, size=12)
    exact = stats.permutation_test(
        (before, after), lambda a, b, axis: np.abs((b - a).mean(axis)), permutation_type="samples",
        n_resamples=np.inf, alternative="greater", vectorized=True,
    ).pvalue  # fmt: skip
    assert exchange_test(before, after, permutations=40000, seed=0) == pytest.approx(exact, abs=0.01)


def test_the_exchange_test_of_macro_f1_is_the_count_over_all_exchanges():
    labels = ["yes", "yes", "no", "no", "maybe", "yes", "no"]
    first = ["yes", "no", "no", "yes", "yes", "yes", None]
    second = ["yes", "yes", "no", "no", "maybe", "no", "no"]

    def rows_of_answers(answers):
        return f1_rows([(label, [answer]) for label, answer in zip(labels, answers, strict=True)], LABELS)

    def gap(one, other):
        scores = [of_all(rows_of_answers(answers), macro_f1_of_totals) for answers in (one, other)]
        return abs(scores[0] - scores[1])

    reached = 0
    for exchange in range(2**7):
        pairs = [(b, a) if exchange >> i & 1 else (a, b) for i, (a, b) in enumerate(zip(first, second, strict=True))]
        reached += gap(*zip(*pairs, strict=True)) >= gap(first, second) - 1e-12
    rows = (rows_of_answers(answers) for answers in (first, second))
    found = exchange_test(*rows, macro_f1_of_totals, permutations=40000, seed=0)
    assert found == pytest.approx(reached / 2**7, abs=0.01)


@given(st.lists(st.tuples(st.floats(-3, 3), st.floats(-3, 3)), min_size=1, max_size=20))
def test_the_exchange_test_has_no_direction_and_is_never_zero(pairs):
    before, after = np.array(pairs).T
    found = exchange_test(before, after, **EXCHANGES)
    assert 1 / 501 <= found <= 1
    assert exchange_test(after, before, **EXCHANGES) == pytest.approx(found)
    assert exchange_test(before, before, **EXCHANGES) == 1


def test_equal_gains_tie_whatever_their_rounding():
    before = np.full(6, 0.1)
    assert exchange_test(before, before + 0.2, permutations=20000, seed=0) == pytest.approx(2 / 2**6, abs=0.005)


@pytest.mark.parametrize(("before", "after"), [([], []), ([1.0], [1.0, 2.0])])
def test_nothing_to_pair_is_refused(before, after):
    with pytest.raises(ValueError, match="as many results of both"):
        exchange_test(np.array(before), np.array(after), **EXCHANGES)


def test_exchange_tests_and_mcnemar_of_equal_systems_are_false_alarms_in_at_most_5_percent():
    rng = np.random.default_rng(0)
    of_rewards = of_shares = 0
    for _ in range(EXPERIMENTS):
        difficulty = rng.random(N)
        noisy = [difficulty + rng.normal(0, 0.2, N) for _ in range(2)]
        of_rewards += exchange_test(*(rewards(one, 0.6, rng) for one in noisy), **EXCHANGES) <= 0.05
        old, new = (one < 0.6 for one in noisy)
        of_shares += sign_test(int((new & ~old).sum()), int((old & ~new).sum())) <= 0.05
    assert EXPERIMENTS * 0.02 <= of_rewards <= FALSE_POSITIVES, "valid, and not for being blind"
    assert of_shares <= FALSE_POSITIVES


def random_answers(labels, rng):
    """Answers of a system that is right in 70, 75 and 50 % of yes, no and maybe."""
    shares = np.array([[0.7, 0.25, 0.05], [0.2, 0.75, 0.05], [0.3, 0.2, 0.5]])[labels]
    return (rng.random((len(labels), 1)) > shares.cumsum(axis=1)).sum(axis=1)


def rows_of(labels, answers):
    rows = np.zeros((len(labels), 9))
    places = np.arange(len(labels))
    rows[places, 3 + labels] = rows[places, 6 + answers] = 1
    rows[places, labels] = labels == answers
    return rows


def test_macro_f1_of_equal_systems_is_a_false_alarm_in_at_most_5_percent_and_its_interval_covers():
    rng = np.random.default_rng(0)
    mix = [0.55, 0.34, 0.11]
    many = rng.choice(3, 1_000_000, p=mix)
    truth = macro_f1_of_totals(rows_of(many, random_answers(many, rng)).sum(axis=0)[None])[0]
    alarms = covered = 0
    for _ in range(EXPERIMENTS):
        labels = rng.choice(3, N, p=mix)
        before, after = (rows_of(labels, random_answers(labels, rng)) for _ in range(2))
        alarms += exchange_test(before, after, macro_f1_of_totals, **EXCHANGES) <= 0.05
        found = bootstrap_statistic(before, macro_f1_of_totals, **INTERVAL)
        covered += found.low <= truth <= found.high
    assert alarms <= FALSE_POSITIVES
    assert covered / EXPERIMENTS == pytest.approx(0.95, abs=0.03), "11 % maybe of 100 tasks are few"


def test_a_family_of_tests_after_holm_has_a_false_alarm_in_at_most_5_percent():
    rng = np.random.default_rng(0)
    families, size = 300, 8
    alarms = 0
    for _ in range(families):
        difficulty = rng.random(N)
        pairs = [[rewards(difficulty + rng.normal(0, 0.2, N), 0.6, rng) for _ in range(2)] for _ in range(size)]
        alarms += min(holm([exchange_test(*pair, **EXCHANGES) for pair in pairs])) <= 0.05
    assert alarms <= stats.binom.ppf(0.999, families, 0.05)


@given(st.lists(st.integers(0, 50).map(lambda n: n / 1000) | st.floats(0, 1), min_size=1, max_size=30))
@settings(max_examples=50)
def test_holm_is_statsmodels_and_raises_p_values_in_their_order(ps):
    adjusted = holm(ps)
    assert adjusted == pytest.approx(list(multipletests(ps, method="holm")[1]))
    assert all(p <= raised <= 1 for p, raised in zip(ps, adjusted, strict=True))
    assert [adjusted[i] for i in np.argsort(ps, kind="stable")] == sorted(adjusted)


def test_holm_of_no_test_is_empty():
    assert holm([]) == []


@pytest.mark.parametrize("n", [5, 20, 100, 500])
@pytest.mark.parametrize(("alpha", "power"), [(0.05, 0.8), (0.05, 0.95), (0.1, 0.3)])
def test_the_minimum_detectable_effect_is_statsmodels(n, alpha, power):
    reference = np.squeeze(TTestPower().solve_power(nobs=n, alpha=alpha, power=power))
    assert minimum_detectable_effect(0.4, n, alpha=alpha, power=power) == pytest.approx(0.4 * reference, rel=1e-4)


@given(st.integers(2, 60), st.floats(0.002, 0.4), st.floats(0.05, 0.99))
@settings(max_examples=60)
def test_the_test_has_the_power_that_was_asked_for_at_the_minimum_detectable_effect(n, alpha, power):
    effect = minimum_detectable_effect(1.0, n, alpha=alpha, power=power)
    noncentrality, critical = effect * math.sqrt(n), stats.t.isf(alpha / 2, n - 1)
    spread = np.sqrt(stats.chi2.ppf((np.arange(5000) + 0.5) / 5000, n - 1) / (n - 1))
    tails = stats.norm.sf(critical * spread - noncentrality) + stats.norm.cdf(-critical * spread - noncentrality)
    assert tails.mean() == pytest.approx(max(alpha, power), abs=2e-3)


def test_without_scale_there_is_no_minimum_detectable_effect():
    assert minimum_detectable_effect(0.3, 1, alpha=0.05, power=0.8) is None
    assert minimum_detectable_effect(0.0, 50, alpha=0.05, power=0.8) is None
    assert minimum_detectable_effect(0.3, 50, alpha=0.05, power=0.05) == 0


def test_a_label_that_is_left_by_rounding_alone_does_not_occur():
    totals = np.array([[2.0, 0.0, 0.0, 2.0, 0.0, 0.0, 2.0, 0.0, 1e-16]])
    assert macro_f1_of_totals(totals)[0] == 1.0


def test_a_slope_is_that_of_least_squares_and_its_interval_covers_like_the_classical_one():
    rng = np.random.default_rng(5)
    x = np.repeat([1.0, 2.0, 3.0, 4.0], 50)
    y = 0.3 * x + rng.normal(size=200)
    line, fitted = slope(x.tolist(), y.tolist(), confidence=0.95, resamples=4000, seed=1), stats.linregress(x, y)
    assert line.mean == pytest.approx(fitted.slope)
    assert line.low is not None
    assert line.high is not None
    assert line.high - line.low == pytest.approx(2 * 1.97 * fitted.stderr, rel=0.1)


def test_a_slope_has_no_interval_where_nothing_differs_and_bears_samples_of_one_x():
    assert slope([1, 1, 2], [0.5, 0.5, 0.5], **INTERVAL) == Mean(0.0, None, None, 3)
    line = slope([1, 2], [0, 1], **INTERVAL)
    assert (line.mean, line.n) == (1.0, 2)
    assert line.low is not None
    assert math.isfinite(line.low)
