"""Intervals over training seeds and tasks: a two-level bootstrap of runs that answered the same tasks.

Runs of one data seed differ in their training seed and share their test tasks, so seeds and tasks are crossed:

    x[run, task] = mean + effect of the run + effect of the task + the rest.

Pooling all pairs (run, task) as if they were independent ignores both effects and gives too narrow intervals. Here
runs and tasks are resampled separately, each with all of its values (the pigeonhole bootstrap: Owen 2007, Annals of
Applied Statistics 1, 386), and a third time together. The variances of the three give

    V = a + b - c,   a: of runs,   b: of tasks,   c: of their interaction, which a and b both contain

(the analysis of variance of a crossed table, or Cameron, Gelbach and Miller 2011, Journal of Business & Economic
Statistics 29, 238). Each is multiplied by n / (n - 1), because resampling n cases shows (n - 1) / n of their variance.
V is at least c: no effect has a negative variance.

Five runs say little about their variance. So the interval is the estimate -+ t sqrt(V) with Cochran's t (Cochran and
Cox 1957, section 4.14), the mean of Student's t for the runs and for the tasks with weights a and b. In simulations
(`python -m benchmarks.coverage`) an interval of 95 % covers 94 to 97 % with 3 to 10 runs and 200 tasks that differ, and
up to 99 % where neither runs nor tasks differ. Percentiles of the same bootstrap cover too little where runs differ.

Data seeds are strata: each has its own tasks and runs, and is in every resample. An interval is about these data sets.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from math import sqrt
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit
from scipy.stats import trim_mean

from evaluation.measures.statistics import Numbers, Statistic, unseen_share

TRIMMED = 0.25
"""Share of the scores that the interquartile mean leaves out at either end."""
ROUNDING = 1e-12
"""Variances of runs and tasks below this share of their interaction's are rounding errors, and narrower intervals."""


@dataclass(frozen=True, slots=True)
class Draw:
    """Which runs and tasks of one data seed are in each resample.

    Attributes:
        runs: Shape (resamples, runs): the drawn runs' numbers; (1, runs) when runs are not resampled.
        tasks: Shape (resamples, tasks): how often each task was drawn; (1, tasks) of ones when tasks are not resampled.
    """

    runs: NDArray[np.int64]
    tasks: Numbers


Estimate: TypeAlias = Callable[[Sequence[Draw]], Numbers]
"""Maps one draw for each data seed to one value for each resample."""


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate over runs and tasks, in its own unit.

    Attributes:
        low: Lower end of the interval; None if some data seed has one run only, because one run cannot tell how much
            runs differ, or one task only.
        high: Upper end.
        runs: Number of runs, of all data seeds.
        tasks: Number of tasks, of all data seeds.
    """

    value: float
    low: float | None
    high: float | None
    runs: int
    tasks: int

    def within(self, least: float, most: float) -> "Interval":
        """The same interval, with ends limited to the possible values of the estimate."""
        if self.low is None or self.high is None:
            return self
        return replace(self, low=max(self.low, least), high=min(self.high, most))

    def dump(self) -> dict[str, float | int | None]:
        return asdict(self)


def mean_of_runs(groups: Sequence[Numbers], statistic: Statistic) -> Estimate:
    """The mean of all runs' scores.

    Args:
        groups: For each data seed an array of shape (runs, tasks, columns): what each task adds to a run's totals.
    """
    return lambda draws: _run_scores(groups, statistic, draws).mean(axis=1)


def interquartile_mean(groups: Sequence[Numbers], statistic: Statistic) -> Estimate:
    """The mean of the middle half of the runs' scores (Agarwal et al. 2021, arXiv 2108.13264; `rliable`'s IQM).

    A score is a run's result over all tasks of its data seed. With fewer than four runs it is the plain mean.
    """
    return lambda draws: trim_mean(_run_scores(groups, statistic, draws), TRIMMED, axis=1)


def probability_of_improvement(before: Sequence[Numbers], after: Sequence[Numbers]) -> Estimate:
    """The probability that a run of `after` is better on a task than a run of `before`; a tie counts one half.

    As in `rliable` (Agarwal et al. 2021): on each task every run of one side is compared with every run of the other.

    Args:
        before: For each data seed an array of shape (runs, tasks); NaN where a run has no value for a task.
    """
    duels = [_duels(old, new) for old, new in zip(before, after, strict=True)]

    def estimate(draws: Sequence[Draw]) -> Numbers:
        ratios: list[Numbers] = []
        for (won, met), draw in zip(duels, draws, strict=True):
            runs = len(won)
            times = (draw.runs[:, :, None] == np.arange(runs)).sum(axis=1).astype(float)
            pairs = (times[:, :, None] * times[:, None, :]).reshape(len(times), -1)
            sums = [((pairs @ part.reshape(runs * runs, -1)) * draw.tasks).sum(axis=1) for part in (won, met)]
            with np.errstate(invalid="ignore"):
                ratios.append(sums[0] / sums[1])
        return np.mean(np.broadcast_arrays(*ratios), axis=0)

    return estimate


def crossed_interval(
    estimate: Estimate, shapes: Sequence[tuple[int, int]], *, confidence: float, resamples: int, seed: int
) -> Interval:
    """An estimate with its interval over runs and tasks (see the module's docstring).

    Args:
        estimate: Of resampled runs and tasks; NaN where a run has no value for any drawn task, which is left out.
        shapes: Number of runs and of tasks in each data seed.
        confidence: Coverage of the interval, such as 0.95.

    Raises:
        ValueError: There is no data seed, or one has no run or no task.
    """
    if not shapes or min(min(shape) for shape in shapes) < 1:
        raise ValueError(f"an estimate over runs needs a run and a task in each data seed, got shapes {list(shapes)}")
    whole = [Draw(np.arange(runs)[None, :], np.ones((1, tasks))) for runs, tasks in shapes]
    value = float(estimate(whole)[0])
    runs, tasks = (sum(sizes) for sizes in zip(*shapes, strict=True))
    if min(min(shape) for shape in shapes) < 2:
        return Interval(value, None, None, runs, tasks)
    drawn = resample(shapes, resamples, seed)
    of_runs = estimate([Draw(draw.runs, all_.tasks) for draw, all_ in zip(drawn, whole, strict=True)])
    of_tasks = estimate([Draw(all_.runs, draw.tasks) for draw, all_ in zip(drawn, whole, strict=True)])
    rest = estimate(drawn) - of_runs - of_tasks + value
    free = runs - len(shapes), tasks - len(shapes)
    grow = runs / free[0], tasks / free[1]
    a, b, c = (
        float(np.nanvar(drawn_values)) * factor
        for drawn_values, factor in ((of_runs, grow[0]), (of_tasks, grow[1]), (rest, grow[0] * grow[1]))
    )
    variance = max(a + b - c, c)
    quantiles = [-float(stdtrit(degrees, (1 - confidence) / 2)) for degrees in free]
    # Where neither runs nor tasks differ, rounding alone would decide the weights: the wider interval is taken.
    has_spread = a + b > ROUNDING * c
    quantile = (a * quantiles[0] + b * quantiles[1]) / (a + b) if has_spread else max(quantiles)
    half = quantile * sqrt(variance)
    return Interval(value, value - half, value + half, runs, tasks)


def unless_unseen(interval: dict[str, Any], confidence: float) -> dict[str, Any]:
    """The figures of a share. Of one that differs alike on all tasks resampling repeats the difference: the bound of
    the share of tasks that may still differ otherwise stands there instead, as in a report."""
    same = interval["low"]
    if same is None or interval["high"] - same > ROUNDING:
        return interval
    unseen = unseen_share(interval["tasks"] if "tasks" in interval else interval["n"], confidence)
    return {**interval, "low": same - unseen * (1 + same), "high": same + unseen * (1 - same)}


def of_share(interval: dict[str, Any], confidence: float) -> dict[str, Any]:
    """The figures of a share: within 0 and 1, and where all tasks agree up to the bound of what may still differ."""
    if interval["low"] is None:
        return interval
    unseen = unseen_share(interval["tasks"], confidence) if interval["low"] == interval["high"] else 0.0
    return {**interval, "low": max(0.0, interval["low"] - unseen), "high": min(1.0, interval["high"] + unseen)}


def over_data_seeds(estimates: Sequence[float], *, confidence: float) -> tuple[float, float] | None:
    """Student's interval for the mean over the population of data sets, from one estimate for each data seed.

    None with fewer than two estimates. With two it is very wide: one degree of freedom.
    """
    count = len(estimates)
    if count < 2:
        return None
    half = -float(stdtrit(count - 1, (1 - confidence) / 2)) * float(np.std(estimates, ddof=1)) / sqrt(count)
    centre = float(np.mean(estimates))
    return centre - half, centre + half


def _run_scores(groups: Sequence[Numbers], statistic: Statistic, draws: Sequence[Draw]) -> Numbers:
    """Shape (resamples, runs of all data seeds): the drawn runs' scores over the drawn tasks."""
    blocks: list[Numbers] = []
    for rows, draw in zip(groups, draws, strict=True):
        totals = np.tensordot(draw.tasks, rows, axes=(1, 1))
        scores = statistic(totals.reshape(-1, rows.shape[-1])).reshape(totals.shape[:2])
        resamples = max(len(scores), len(draw.runs))
        shape = (resamples, rows.shape[0])
        blocks.append(np.take_along_axis(np.broadcast_to(scores, shape), np.broadcast_to(draw.runs, shape), axis=1))
    return np.concatenate(blocks, axis=1)


def _duels(before: Numbers, after: Numbers) -> tuple[Numbers, Numbers]:
    """Two arrays of shape (runs, runs, tasks): score of each run after against each run before, and whether both have
    a value."""
    old, new = before[None, :, :], after[:, None, :]
    met = ~(np.isnan(old) | np.isnan(new))
    return np.where(met, (new > old) + 0.5 * (new == old), 0.0), met.astype(float)


def resample(shapes: Sequence[tuple[int, int]], resamples: int, seed: int) -> list[Draw]:
    """Draw runs and tasks of each data seed with replacement; `shapes` are the numbers of both."""
    generator = np.random.default_rng(seed)
    draws: list[Draw] = []
    for runs, tasks in shapes:
        chosen = generator.integers(runs, size=(resamples, runs))
        places = generator.integers(tasks, size=(resamples, tasks)) + np.arange(resamples)[:, None] * tasks
        counts = np.bincount(places.ravel(), minlength=resamples * tasks).reshape(resamples, tasks)
        draws.append(Draw(chosen, counts.astype(float)))
    return draws
