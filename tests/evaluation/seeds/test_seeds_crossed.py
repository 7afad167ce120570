"""The two-level interval against closed forms, against other libraries, and its coverage by simulation."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from message_kit import refused
from scipy.stats import mannwhitneyu, t

from benchmarks.coverage import coverage
from evaluation.seeds.crossed import (
    crossed_interval,
    interquartile_mean,
    mean_of_runs,
    over_data_seeds,
    probability_of_improvement,
)

TABLES = arrays(
    float, st.tuples(st.integers(2, 5), st.integers(2, 8)), elements=st.floats(-10, 10, allow_nan=False, width=16)
)


def mean_of(groups, **options):
    """The interval of the mean of tables of shape (runs, tasks)."""
    rows = [np.stack([group, np.ones_like(group)], axis=2) for group in groups]
    estimate = mean_of_runs(rows, lambda totals: totals[:, 0] / totals[:, 1])
    shapes = [group.shape for group in groups]
    return crossed_interval(estimate, shapes, **{"confidence": 0.95, "resamples": 400, "seed": 0, **options})


def simulated(seed, runs=5, tasks=60):
    generator = np.random.default_rng(seed)
    return (
        0.2 * generator.normal(size=(runs, 1))
        + 0.5 * generator.normal(size=(1, tasks))
        + generator.normal(size=(runs, tasks))
    )


def test_the_interval_is_that_of_the_analysis_of_variance():
    """Mean squares of a crossed table and Cochran's t, computed directly."""
    table = simulated(3)
    runs, tasks = table.shape
    of_runs, of_tasks = table.mean(axis=1), table.mean(axis=0)
    rest = table - of_runs[:, None] - of_tasks[None, :] + table.mean()
    a, b = of_runs.var(ddof=1) / runs, of_tasks.var(ddof=1) / tasks
    c = (rest**2).sum() / ((runs - 1) * (tasks - 1)) / (runs * tasks)
    quantile = (a * t.ppf(0.975, runs - 1) + b * t.ppf(0.975, tasks - 1)) / (a + b)
    found = mean_of([table], resamples=20_000)
    assert found.value == pytest.approx(table.mean())
    assert (found.high - found.low) / 2 == pytest.approx(quantile * np.sqrt(a + b - c), rel=0.02)


@given(TABLES, st.floats(-3, 3, allow_nan=False), st.floats(0.1, 4))
@settings(max_examples=30, deadline=None)
@example(np.array([[1.5, 0.0], [0.0, 1.5]]), 0.0, 0.1)  # Only the interaction differs: runs and tasks are all alike.
def test_the_interval_moves_and_grows_with_the_values(table, shift, scale):
    plain, moved = mean_of([table]), mean_of([table * scale + shift])
    for end in ("value", "low", "high"):
        assert getattr(moved, end) == pytest.approx(getattr(plain, end) * scale + shift, abs=1e-6)


def test_the_order_of_runs_and_tasks_does_not_matter():
    table, generator = simulated(5), np.random.default_rng(0)
    shuffled = table[generator.permutation(len(table))][:, generator.permutation(table.shape[1])]
    plain, other = (mean_of([one], resamples=20_000) for one in (table, shuffled))
    assert other.value == pytest.approx(plain.value)
    assert other.low == pytest.approx(plain.low, abs=0.03 * (plain.high - plain.low))
    assert other.high == pytest.approx(plain.high, abs=0.03 * (plain.high - plain.low))


def test_runs_that_differ_widen_the_interval_however_many_tasks_there_are():
    alike, apart = np.zeros((5, 100)), np.zeros((5, 100)) + np.arange(5)[:, None]
    assert (mean_of([alike]).low, mean_of([alike]).high) == (0, 0)
    found = mean_of([apart], resamples=20_000)
    assert found.high - found.value == pytest.approx(t.ppf(0.975, 4) * np.std(range(5), ddof=1) / np.sqrt(5), rel=0.02)


@pytest.mark.parametrize("shape", [(1, 50), (5, 1)])
def test_one_run_or_one_task_gives_no_interval(shape):
    found = mean_of([simulated(1, *shape)])
    assert (found.low, found.high) == (None, None)
    assert found.value == pytest.approx(simulated(1, *shape).mean())


def test_data_seeds_are_strata():
    """A difference between data sets does not widen the interval; their runs and tasks are counted together."""
    table = simulated(7)
    near, far = mean_of([table, table]), mean_of([table, table + 100])
    assert far.value == pytest.approx(near.value + 50)
    assert far.high - far.low == pytest.approx(near.high - near.low)
    assert (far.runs, far.tasks) == (10, 120)
    with refused(ValueError, "a run and a task", "[]"):
        mean_of([])


def test_missing_values_are_left_out_of_their_run():
    table = simulated(2)
    rows = np.stack([table, np.ones_like(table)], axis=2)
    rows[0, :30] = 0
    estimate = mean_of_runs([rows], lambda totals: totals[:, 0] / totals[:, 1])
    found = crossed_interval(estimate, [table.shape], confidence=0.95, resamples=400, seed=0)
    assert found.value == pytest.approx(np.mean([table[0, 30:].mean(), *table[1:].mean(axis=1)]))
    assert found.low < found.value < found.high


def test_the_interquartile_mean_is_of_the_middle_half_of_the_runs():
    scores = np.array([-100.0, 1, 2, 3, 4, 5, 6, 700])
    rows = np.repeat(scores[:, None, None], 3, axis=1)
    estimate = interquartile_mean([rows], lambda totals: totals[:, 0] / 3)
    assert crossed_interval(estimate, [(8, 3)], confidence=0.95, resamples=200, seed=0).value == pytest.approx(3.5)


def test_the_probability_of_improvement_is_the_mean_of_mann_whitneys_u():
    generator = np.random.default_rng(4)
    before, after = generator.integers(4, size=(5, 30)), generator.integers(1, 5, size=(5, 30))
    wanted = np.mean([mannwhitneyu(after[:, task], before[:, task]).statistic / 25 for task in range(30)])
    estimate = probability_of_improvement([before.astype(float)], [after.astype(float)])
    found = crossed_interval(estimate, [(5, 30)], confidence=0.95, resamples=2000, seed=0)
    assert found.value == pytest.approx(wanted)
    assert found.low < wanted < found.high
    swapped = probability_of_improvement([after.astype(float)], [before.astype(float)])
    assert crossed_interval(swapped, [(5, 30)], confidence=0.95, resamples=200, seed=0).value == pytest.approx(
        1 - wanted
    )


def test_tasks_without_a_value_are_no_duels():
    before, after = np.zeros((2, 3)), np.array([[1.0, 0, np.nan], [1, 0, np.nan]])
    estimate = probability_of_improvement([before], [after])
    assert crossed_interval(estimate, [(2, 3)], confidence=0.9, resamples=200, seed=0).value == pytest.approx(0.75)


def test_other_data_sets_have_students_interval():
    low, high = over_data_seeds([1.0, 3.0, 5.0], confidence=0.95)
    assert (low + high) / 2 == pytest.approx(3)
    assert high - 3 == pytest.approx(t.ppf(0.975, 2) * 2 / np.sqrt(3))
    assert over_data_seeds([1.0], confidence=0.95) is None


def test_more_confidence_is_wider():
    widths = [mean_of([simulated(1)], confidence=level).high for level in (0.8, 0.9, 0.95, 0.99)]
    assert all(less < more for less, more in pairwise(widths))


def test_it_covers_what_it_says_where_pooled_pairs_do_not():
    """5 training seeds and 200 tasks, 400 studies: sampling alone moves a share of 95 % by 2 points (two sigma)."""
    pooled, _, ours, middle = coverage(5, (0.03, 0.3, 0.4), trials=400, resamples=200)
    assert pooled < 0.84
    assert 0.93 <= ours <= 0.97
    assert 0.93 <= middle <= 0.98
