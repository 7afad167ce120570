"""How often intervals cover the truth when runs and tasks differ: `python -m benchmarks.coverage`, two minutes.

Simulates runs that answer the same tasks, with effects of known size, and counts how often four intervals of 95 %
contain the true mean: all pairs (run, task) pooled as if independent, percentiles of the two-level bootstrap, the
interval of `evaluation.seeds.crossed`, and the same around the interquartile mean.
"""

import argparse

import numpy as np
from rich.console import Console
from rich.table import Table

from evaluation.measures.statistics import Numbers, bootstrap_mean
from evaluation.seeds.crossed import Estimate, crossed_interval, interquartile_mean, mean_of_runs, resample

CONFIDENCE = 0.95
TASKS = 200
EFFECTS = ((0.0, 0.3, 0.4), (0.02, 0.3, 0.4), (0.04, 0.3, 0.4), (0.08, 0.3, 0.4), (0.03, 0.5, 0.1), (0.0, 0.0, 0.5))
"""Standard deviations of the effects of runs and tasks, and of the rest; of aligned decisions about 0.03, 0.3, 0.4."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=1000, help="simulated studies in each row")
    parser.add_argument("--runs", type=int, nargs="+", default=[3, 5, 10], help="training seeds in each study")
    parser.add_argument("--resamples", type=int, default=400, help="bootstrap samples of each interval")
    parser.add_argument("--tiny", action="store_true", help="40 trials of 5 runs, to see that it works")
    options = parser.parse_args()
    if options.tiny:
        options.trials, options.runs, options.resamples = 40, [5], 100
    table = Table(title=f"95 % intervals that cover, %; {TASKS} tasks, {options.trials} trials", title_justify="left")
    for name in ("runs", "sd: run, task, rest", "pooled", "percentiles", "ours", "IQM"):
        table.add_column(name, justify="right", no_wrap=True)
    for runs in options.runs:
        for effects in EFFECTS:
            shares = coverage(runs, effects, trials=options.trials, resamples=options.resamples)
            shown = [f"{100 * share:.1f}" for share in shares]
            table.add_row(str(runs), "{:g}, {:g}, {:g}".format(*effects), *shown, end_section=effects == EFFECTS[-1])
    Console().print(table)


def coverage(runs: int, effects: tuple[float, float, float], *, trials: int, resamples: int) -> list[float]:
    """The share of `trials` in which each of the four intervals covers the true mean, 0."""
    generator = np.random.default_rng([runs, *(int(1000 * effect) for effect in effects)])
    hits = np.zeros(4)
    for trial in range(trials):
        settings = {"confidence": CONFIDENCE, "resamples": resamples, "seed": trial}
        values = simulated(generator, runs, effects)
        pooled = bootstrap_mean(values.ravel().tolist(), **settings)
        assert pooled.low is not None
        assert pooled.high is not None
        groups = [values[:, :, None]]
        mean, middle = mean_of_runs(groups, of_totals), interquartile_mean(groups, of_totals)
        ends = [(pooled.low, pooled.high), percentiles(mean, values.shape, resamples, trial)]
        for estimate in (mean, middle):
            interval = crossed_interval(estimate, [values.shape], **settings)
            assert interval.low is not None
            assert interval.high is not None
            ends.append((interval.low, interval.high))
        hits += [low <= 0 <= high for low, high in ends]
    return list(hits / trials)


def simulated(generator: np.random.Generator, runs: int, effects: tuple[float, float, float]) -> Numbers:
    """Shape (runs, tasks)."""
    of_run, of_task, rest = effects
    return (
        of_run * generator.normal(size=(runs, 1))
        + of_task * generator.normal(size=(1, TASKS))
        + rest * generator.normal(size=(runs, TASKS))
    )


def of_totals(totals: Numbers) -> Numbers:
    """The mean over tasks."""
    return totals[:, 0] / TASKS


def percentiles(estimate: Estimate, shape: tuple[int, int], resamples: int, seed: int) -> tuple[float, float]:
    """The usual bootstrap interval of runs and tasks resampled together."""
    low, high = np.quantile(estimate(resample([shape], resamples, seed)), [0.025, 0.975])
    return float(low), float(high)


if __name__ == "__main__":
    main()
