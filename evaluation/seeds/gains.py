"""What each phase gave, and which repairs mend wrong answers, over several runs.

Both are computed from each report's values on single tasks, so that their intervals are over runs and tasks as all of
a study's are (`evaluation.seeds.crossed`).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from evaluation.causes.blame import share_of_totals, totals_by_task
from evaluation.causes.shapley import METRICS, shapley_values, worths
from evaluation.measures.statistics import Numbers
from evaluation.records import coalitions
from evaluation.seeds.crossed import crossed_interval, mean_of_runs, of_share, unless_unseen
from evaluation.seeds.runs import SeedRun, by_data_seed

TOGETHER = "all together"
"""The row of the whole gain."""
ANY = "any of them"
"""The row of wrong answers that some repair mends."""
ByTask = Mapping[str, tuple[float, float]]
"""What each task adds to a run's score: numerator and denominator."""


def shapley(runs: Sequence[SeedRun]) -> dict[str, dict[str, Any]]:
    """The Shapley value of each phase, by metric and phase, and of all together, each with its interval.

    Runs whose reports were not made with `evaluation.contributions=shapley` are left out. What the gate rolled back is
    in no coalition of its run and counts as 0 there.
    """
    having = [run for run in runs if run.report["settings"].get("contributions") == "shapley"]
    phases = list(dict.fromkeys(phase for run in having for phase in run.phases if phase in run.learning))
    rows: dict[str, dict[str, Any]] = {}
    for metric in METRICS:
        by_run = {run.name: _values(run, metric) for run in having if metric in run.report["metrics"]}
        valued_runs = [run for run in having if by_run.get(run.name, {}).get(TOGETHER)]
        if not valued_runs:
            continue
        first = valued_runs[0].report
        learned = {phase for run in valued_runs if run.learned for phase in (*run.learned, TOGETHER)}
        for phase in (*phases, TOGETHER):
            figures = _pooled(valued_runs, lambda run, phase=phase, by_run=by_run: _of_phase(by_run[run.name], phase))
            if first["metrics"][metric]["unit"] == "share" and phase in learned:
                figures = unless_unseen(figures, first["settings"]["confidence"])
            rows.setdefault(metric, {})[phase] = figures
    return rows


def blame(runs: Sequence[SeedRun]) -> dict[str, Any]:
    """The share of the examined wrong answers that the repair of each step mends, each with its interval.

    Runs whose reports examined no wrong answer are left out.
    """
    having = [run for run in runs if (blame_row := run.report.get("blame")) and blame_row["examined"]]
    if not having:
        return {}
    steps, confidence = list(having[0].report["blame"]["steps"]), having[0].report["settings"]["confidence"]
    return {
        step: of_share(_pooled(having, lambda run, step=step: _mended(run, step)), confidence) for step in (*steps, ANY)
    }


def _pooled(runs: Sequence[SeedRun], of: Callable[[SeedRun], ByTask]) -> dict[str, Any]:
    """A score over runs, from what each task adds to it."""
    settings = runs[0].report["settings"]
    groups = by_data_seed(runs)
    arrays: list[Numbers] = []
    for group in groups.values():
        tables = [of(run) for run in group]
        tasks = dict.fromkeys(task for table in tables for task in table)
        arrays.append(np.array([[table.get(task, (0.0, 0.0)) for task in tasks] for table in tables], dtype=float))
    with np.errstate(invalid="ignore"):
        scores = [float(share_of_totals(row.sum(axis=0)[None])[0]) for array in arrays for row in array]
        interval = crossed_interval(
            mean_of_runs(arrays, share_of_totals),
            [array.shape[:2] for array in arrays],
            confidence=settings["confidence"],
            resamples=settings["resamples"],
            seed=0,
        )
    names = [run.name for group in groups.values() for run in group]
    return {
        **interval.dump(),
        "per_run": [{"run": name, "value": score} for name, score in zip(names, scores, strict=True)],
    }


def _of_phase(values: Mapping[str, ByTask], phase: str) -> ByTask:
    """What a phase gave on each task: nothing if it is in no coalition of the run."""
    return values.get(phase) or dict.fromkeys(values[TOGETHER], (0.0, 1.0))


def _values(run: SeedRun, metric: str) -> Mapping[str, ByTask]:
    """The Shapley value of each phase on each task that has a value in all coalitions, and the whole gain."""
    learned = run.learned
    values = {coalition: run.values(run.coalition(coalition), metric) for coalition in coalitions.every(list(learned))}
    tasks, worth = worths(sorted(run.tasks), values)
    whole = worth[frozenset(learned)] - worth[frozenset()]
    shares = {**shapley_values(list(learned), worth), TOGETHER: whole}
    return {
        phase: {task: (value, 1.0) for task, value in zip(tasks, numbers.tolist(), strict=True)}
        for phase, numbers in shares.items()
    }


def _mended(run: SeedRun, step: str) -> ByTask:
    """Of each task the wrong answers that the repair of a step mends, and all that were examined."""
    blame_row = run.report["blame"]
    tasks = {row["id"]: row["task"] for row in run.report["outcomes"][blame_row["stage"]]["rollouts"]}
    return totals_by_task(
        (tasks[row["id"]], row["mended"] and step in (ANY, row["step"]), 1) for row in blame_row["rollouts"]
    )
