"""The statistics of reports: intervals, paired tests, correction for many tests, and what a sample can show at all.

Everything is about tasks: `n` is their number, and resamples and exchanges draw whole tasks. A statistic is a function
of totals over tasks (one row of numbers a task, added up), which covers means and macro-F1 and makes a resample one
matrix product.

Sources: Efron and Tibshirani 1993 (bootstrap), Hesterberg 2015 (expanded percentiles), Noreen 1989 and Yeh 2000
(exchange test), Holm 1979 (correction), Clopper and Pearson 1934 (the bound where no task differs).
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from math import sqrt
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import root_scalar
from scipy.special import nctdtr, stdtrit

from chimera.core.types import LABELS, Label
from evaluation.measures.paired import expanded_percentiles, sign_test

Numbers: TypeAlias = NDArray[np.float64]
Statistic: TypeAlias = Callable[[Numbers], Numbers]
"""From totals over tasks, of shape (samples, columns), to one value for each sample."""

EXCHANGES_AT_ONCE = 2000
"""Rows of exchanges that are numbers at a time: with 500 tasks these are 8 MB."""
TIE = 1e-9
"""Differences that are equal but for rounding count as equal: relative to the observed one."""


@dataclass(frozen=True, slots=True)
class Mean:
    """A mean, or another statistic of tasks, with its interval; no interval can be given for a single task."""

    mean: float
    low: float | None
    high: float | None
    n: int

    def dump(self) -> dict[str, float | int | None]:
        """Plain data."""
        return asdict(self)


def bootstrap_mean(
    values: Sequence[float], *, confidence: float, resamples: int, seed: int, share: bool = False
) -> Mean:
    """The mean of `values` with its bootstrap interval.

    Args:
        values: One value for each task.
        confidence: Coverage of the interval, such as 0.95.
        resamples: Bootstrap samples.
        seed: Of the bootstrap.
        share: The values lie in [0, 1]. When all of them are 0, or all are 1, resampling can only repeat them; then the
            other end is the exact bound for a share (`unseen_share`).

    Raises:
        ValueError: There are no values.
    """
    rows = np.asarray(values, dtype=float)[:, None]
    found = bootstrap_statistic(rows, _mean_of(len(rows)), confidence=confidence, resamples=resamples, seed=seed)
    if not share or found.low is None or found.low != found.high or found.mean not in (0.0, 1.0):
        return found
    unseen = unseen_share(found.n, confidence)
    return Mean(found.mean, max(0.0, found.mean - unseen), min(1.0, found.mean + unseen), found.n)


def bootstrap_statistic(rows: Numbers, statistic: Statistic, *, confidence: float, resamples: int, seed: int) -> Mean:
    """A statistic of totals with its bootstrap interval (expanded percentiles).

    For means it covers what it says from 20 tasks on. For macro-F1 it is a little narrow as long as a label is rare: in
    simulations with 11 % maybe, an interval of 95 % covers 93 % at 100 tasks, 94 % at 200 and 95 % at 500.

    Args:
        rows: Shape (tasks, columns): what each task adds to the totals.
        statistic: Of the totals.
        confidence: Coverage of the interval, such as 0.95.
        resamples: Bootstrap samples.
        seed: Of the bootstrap.

    Raises:
        ValueError: There are no rows.
    """
    n = len(rows)
    if n == 0:
        raise ValueError("an interval needs at least one task with a value, got none")
    centre = of_all(rows, statistic)
    if n == 1:
        return Mean(centre, None, None, n)
    low, high = interval_around(centre, resampled(rows, statistic, resamples=resamples, seed=seed), n, confidence)
    return Mean(centre, low, high, n)


def interval_around(centre: float, drawn: Numbers, n: int, confidence: float) -> tuple[float, float]:
    """Expanded percentiles of `drawn`, stretched where rounding or bias left out the statistic itself."""
    low, high = expanded_percentiles(drawn, n, confidence)
    return min(low, centre), max(high, centre)


def of_all(rows: Numbers, statistic: Statistic) -> float:
    """The statistic of all tasks."""
    return float(statistic(rows.sum(axis=0)[None, :])[0])


def resampled(rows: Numbers, statistic: Statistic, *, resamples: int, seed: int) -> Numbers:
    """The statistic of each bootstrap sample of tasks; calls with as many rows and the same seed draw the same tasks.

    So the difference of two calls is that of paired samples.
    """
    return statistic(_times_drawn(len(rows), resamples, seed) @ rows)


def unseen_share(n: int, confidence: float) -> float:
    """The largest share of tasks that may differ although none of `n` did (Clopper and Pearson's bound, two-sided)."""
    return 1 - ((1 - confidence) / 2) ** (1 / n)


def mcnemar(gained: int, lost: int) -> float:
    """McNemar's exact test, two-sided: p-value that tasks are as often gained as lost. Others do not count."""
    return sign_test(gained, lost)


def exchange_test(
    before: Numbers, after: Numbers, statistic: Statistic | None = None, *, permutations: int, seed: int
) -> float:
    """The p-value (two-sided) that two systems differ by chance: an approximate randomisation test.

    If the systems were alike, each task's two results could as well have come the other way round. So they are
    exchanged at random, task by task; p = (1 + exchanges with a difference at least as large) / (1 + exchanges).

    Args:
        before: Shape (tasks, columns), or (tasks,) for values of which the mean is compared.
        after: The other system's, in the same order.
        statistic: Of the totals; the mean if None.
        permutations: Random exchanges.
        seed: Of the exchanges.

    Raises:
        ValueError: The shapes differ, or there are no tasks.
    """
    if before.shape != after.shape or len(before) == 0:
        raise ValueError(f"a paired test needs as many results of both, got {before.shape} and {after.shape}")
    n = len(before)
    before, after = before.reshape(n, -1).astype(float), after.reshape(n, -1).astype(float)
    statistic = statistic or _mean_of(n)
    observed = abs(of_all(after, statistic) - of_all(before, statistic))
    change, totals = after - before, (before.sum(axis=0), after.sum(axis=0))
    exchanged = _exchanged(n, permutations, seed)
    reached = 0
    for start in range(0, permutations, EXCHANGES_AT_ONCE):
        moved = exchanged[start : start + EXCHANGES_AT_ONCE].astype(float) @ change
        drawn = np.abs(statistic(totals[1] - moved) - statistic(totals[0] + moved))
        reached += int(np.count_nonzero(drawn >= observed - TIE * max(1.0, observed)))
    return (1 + reached) / (1 + permutations)


def holm(ps: Sequence[float]) -> list[float]:
    """Holm's step-down adjustment: with all adjusted p-values below a level, any false one among them is that rare."""
    adjusted = [0.0] * len(ps)
    largest = 0.0
    for done, index in enumerate(sorted(range(len(ps)), key=ps.__getitem__)):
        largest = max(largest, min(1.0, (len(ps) - done) * ps[index]))
        adjusted[index] = largest
    return adjusted


def minimum_detectable_effect(deviation: float, n: int, *, alpha: float, power: float) -> float | None:
    """The smallest true mean difference that a two-sided paired t-test of `n` tasks finds with probability `power`.

    Args:
        deviation: Standard deviation of the tasks' differences, in their unit.
        n: Tasks.
        alpha: Level of the test.
        power: Such as 0.8. Up to `alpha` the test has it without any effect.

    Returns:
        The effect in the unit of `deviation`; None with fewer than two tasks or when nothing varied, because then there
        is no scale to measure by.
    """
    if n < 2 or deviation <= 0:
        return None
    critical = -float(stdtrit(n - 1, alpha / 2))

    def lacking(noncentrality: float) -> float:
        # SciPy gives NaN for some probabilities that are almost 0.
        below, between = np.nan_to_num(nctdtr(n - 1, noncentrality, np.array([-critical, critical])))
        return float(below + 1 - between) - power

    if power <= alpha:
        return 0.0
    largest = 2.0
    while lacking(largest) < 0:
        largest *= 2
    return root_scalar(lacking, bracket=(0.0, largest)).root * deviation / sqrt(n)


def macro_f1(pairs: Iterable[tuple[Label, Label | None]]) -> float:
    """Macro-F1 in [0, 1]: mean of F1 over the labels that occur in truth or answers.

    It is scikit-learn's `f1_score(average="macro")`, which PubMedQA's authors use (Jin et al. 2019), except that a
    missing answer is no fourth class: it is a miss of its label.

    Args:
        pairs: Label and answer; None is no answer.

    Raises:
        ValueError: There are no pairs.
    """
    rows = f1_rows([(label, [answer]) for label, answer in pairs])
    if len(rows) == 0:
        raise ValueError("macro-F1 needs at least one task, got none")
    return of_all(rows, macro_f1_of_totals)


def f1_rows(tasks: Iterable[tuple[Label, Sequence[Label | None]]]) -> Numbers:
    """What each task adds to the totals of macro-F1, as shares of its answers; shape (tasks, 9).

    The columns are, in the order of `LABELS`: whether the label is the task's and was answered, is the task's, was
    answered.
    """
    listed = list(tasks)
    rows = np.zeros((len(listed), 9))
    for row, (label, answers) in zip(rows, listed, strict=True):
        for column, one in enumerate(LABELS):
            answered = sum(answer == one for answer in answers) / len(answers)
            row[[column, 3 + column, 6 + column]] = answered * (one == label), one == label, answered
    return rows


def macro_f1_of_totals(totals: Numbers) -> Numbers:
    """Macro-F1 of each row of totals of `f1_rows`: F1 = 2 hits / (times true + times answered)."""
    hits, occurring = totals[:, :3], totals[:, 3:6] + totals[:, 6:]
    occurs = occurring > TIE
    f1 = np.divide(2 * hits, occurring, out=np.zeros_like(hits), where=occurs)
    return f1.sum(axis=1) / np.count_nonzero(occurs, axis=1)


def _mean_of(n: int) -> Statistic:
    return lambda totals: totals[:, 0] / n


@lru_cache(maxsize=4)
def _times_drawn(n: int, resamples: int, seed: int) -> Numbers:
    """How often each resample has each task; the same draws as `paired_difference` makes."""
    drawn = np.random.default_rng(seed).integers(n, size=(resamples, n))
    places = (drawn + np.arange(resamples)[:, None] * n).ravel()
    return np.bincount(places, minlength=resamples * n).reshape(resamples, n).astype(float)


@lru_cache(maxsize=4)
def _exchanged(n: int, permutations: int, seed: int) -> NDArray[np.bool_]:
    return np.random.default_rng(seed).integers(2, size=(permutations, n), dtype=np.uint8).astype(bool)
