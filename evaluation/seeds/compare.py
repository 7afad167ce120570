"""Builds study.json, the comparison over several runs, as a pure function of their reports.

A comparison is of two systems on the same tasks, in every run: stages of a run, or a baseline and the last stage. Each
metric has the mean difference with its interval over runs and tasks (`evaluation.seeds.crossed`), the interquartile
mean of the runs' differences, and the probability of improvement.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Literal, TypeAlias

import numpy as np

from evaluation.baselines.simple import MAP_REDUCE
from evaluation.measures.metrics import MACRO_F1, task_means
from evaluation.measures.statistics import (
    Mean,
    Numbers,
    Statistic,
    bootstrap_statistic,
    f1_rows,
    macro_f1_of_totals,
)
from evaluation.records.plan import ALONE
from evaluation.records.study import BASE
from evaluation.seeds import gains
from evaluation.seeds.crossed import (
    Estimate,
    crossed_interval,
    interquartile_mean,
    mean_of_runs,
    over_data_seeds,
    probability_of_improvement,
    unless_unseen,
)
from evaluation.seeds.runs import FINAL, SeedRun, by_data_seed, by_task

FORMAT, VERSION = "chimera-study", 1
METRICS = ("reward", "alignment", MACRO_F1, "decision_alignment")
"""The metrics that a study compares, in this order, if the reports have them."""

Kind = Literal["whole", "sequence", "alone", "baseline"]
Table: TypeAlias = Mapping[str, Sequence[float]]
"""Value before and value after, by task."""
Side: TypeAlias = Callable[[Numbers, Literal[0, 1]], float]
"""Maps a run's totals, of shape (1, columns), to its value before (0) or after (1)."""


@dataclass(frozen=True, slots=True)
class Pair:
    """Two systems that are compared, as a study names them.

    Attributes:
        before: A stage ("base", "final", a phase, "only-<phase>") or a baseline's name.
        kind: "whole" for base and final, "sequence" for a phase beside what was live before it, "alone" for a single
            policy beside the base, "baseline" for a baseline beside the final society.
        studies: Only on the tasks that so many studies answer; None for all.
    """

    before: str
    after: str
    kind: Kind
    title: str
    studies: int | None = None


def build(runs: Sequence[SeedRun]) -> dict[str, Any]:
    """The study of `runs`: the plain data of study.json.

    Args:
        runs: Runs whose settings differ only in the seeds.

    Raises:
        ValueError: There are no runs.
    """
    if not runs:
        raise ValueError("a study needs at least one run, got none")
    settings = runs[0].report["settings"]
    groups = by_data_seed(runs)
    metrics = {name: runs[0].report["metrics"][name] for name in METRICS if name in runs[0].report["metrics"]}
    return {
        "format": FORMAT,
        "version": VERSION,
        "settings": {key: settings[key] for key in ("confidence", "resamples")},
        "counts": {
            "runs": len(runs),
            "training_seeds": len({run.seed for run in runs}),
            "data_seeds": len(groups),
            "tasks": sum(len(_tasks(group)) for group in groups.values()),
        },
        "same_tasks": all(len(run.tasks) == len(_tasks(groups[run.data_seed])) for run in runs),
        "runs": [_about(run) for run in runs],
        "metrics": metrics,
        "comparisons": [
            comparison
            for pair in pairs_of(runs)
            if (comparison := _comparison(pair, runs, metrics, settings))["metrics"]
        ],
        "shapley": gains.shapley(runs),
        "blame": gains.blame(runs),
    }


def pairs_of(runs: Sequence[SeedRun]) -> list[Pair]:
    """The comparisons: the whole run, each phase in the sequence, each alone, each baseline with the final stage, and
    the baseline that divides the evidence also for each number of studies."""
    phases = list(dict.fromkeys(phase for run in runs for phase in run.phases if phase in run.learning))
    baselines = dict.fromkeys(name for run in runs for name in run.baselines)
    steps = zip([BASE, *phases], phases, strict=False)
    counts = sorted({task.get("studies") or 0 for run in runs for task in run.report["plan"]["tasks"]} - {0})
    dividing = [name for name in baselines if name.partition("@")[0] == MAP_REDUCE and len(counts) > 1]
    return [
        *([Pair(BASE, FINAL, "whole", "the whole run")] if phases else []),
        *(Pair(before, after, "sequence", f"of it, added by {after}") for before, after in steps),
        *(Pair(BASE, f"{ALONE}{phase}", "alone", f"{phase} alone") for phase in phases),
        *(Pair(name, FINAL, "baseline", f"the end against {name}") for name in baselines),
        *(Pair(name, FINAL, "baseline", f"... {name}, {n} studies", n) for name in dividing for n in counts),
    ]


def _about(run: SeedRun) -> dict[str, Any]:
    return {
        "name": run.name,
        "seed": run.seed,
        "data_seed": run.data_seed,
        "data": run.report["plan"]["data"],
        "split": run.report["plan"]["split"],
        "tasks": len(run.tasks),
        "phases": run.phases,
        "rolled_back": run.rolled_back,
        "written": run.report["written"],
    }


def _comparison(
    pair: Pair, runs: Sequence[SeedRun], metrics: Mapping[str, Any], settings: Mapping[str, Any]
) -> dict[str, Any]:
    having = [run for run in runs if _has(run, pair)]
    phase = pair.after.removeprefix(ALONE)
    rows = {name: _row(pair, having, name, settings) for name in metrics} if having else {}
    return {
        "before": pair.before,
        "after": pair.after,
        "kind": pair.kind,
        "title": pair.title,
        "runs": [run.name for run in having],
        "without": [run.name for run in runs if run not in having],
        "rolled_back": [run.name for run in having if phase in run.rolled_back],
        "metrics": {name: row for name, row in rows.items() if row is not None},
    }


def _has(run: SeedRun, pair: Pair) -> bool:
    before = bool(run.baseline(pair.before)) if pair.kind == "baseline" else run.stage(pair.before) is not None
    return before and run.stage(pair.after) is not None and bool(_tasks([run], pair.studies))


def _row(pair: Pair, runs: Sequence[SeedRun], metric: str, settings: Mapping[str, Any]) -> dict[str, Any] | None:
    """One metric of a comparison over `runs`; None if a run has no value of it on any task."""
    groups = by_data_seed(runs)
    if metric == MACRO_F1:
        sides = (run.answers(_stage(run, name)) for run in runs for name in (pair.before, pair.after))
        if pair.kind == "baseline" or not all(any(answers.values()) for answers in sides):
            return None
        arrays = [np.stack(rows) for group in groups.values() if (rows := _f1_rows(pair, group))]
        return _figures(groups, arrays, _f1_difference, _f1_side, settings, None)
    tables = [[_table(pair, run, metric) for run in group] for group in groups.values()]
    if not all(table for group in tables for table in group):
        return None
    names = [_tasks(group, pair.studies) for group in groups.values()]
    matrices = [_matrices(tasks, table) for tasks, table in zip(names, tables, strict=True)]
    arrays = [_mean_rows(before, after) for before, after in matrices]
    share = runs[0].report["metrics"][metric]["unit"] == "share"
    row = _figures(groups, arrays, _mean_difference, _mean_side, settings, pair if share else None)
    improvement = probability_of_improvement(*zip(*matrices, strict=True))
    interval = crossed_interval(improvement, [array.shape[:2] for array in arrays], **_bootstrap(settings))
    return {**row, "improvement": interval.within(0.0, 1.0).dump()}


def _figures(
    groups: Mapping[int, Sequence[SeedRun]],
    arrays: Sequence[Numbers],
    difference: Statistic,
    side: Side,
    settings: Mapping[str, Any],
    shares: Pair | None,
) -> dict[str, Any]:
    """The figures of one metric.

    Args:
        arrays: For each data seed, shape (runs, tasks, columns): what each task adds to a run's totals.
        difference: After minus before, from totals.
        side: The value before (0) or after (1), from totals.
        shares: The comparison, if the values are shares in [0, 1], which may be equal for all tasks; else None.
    """
    shapes = [array.shape[:2] for array in arrays]
    bootstrap = _bootstrap(settings)

    def estimated(estimate: Estimate, of: Sequence[SeedRun], sizes: Sequence[tuple[int, int]]) -> dict[str, Any]:
        interval = crossed_interval(estimate, sizes, **bootstrap).dump()
        return _unless_unseen(interval, of, shares, settings)

    runs = [run for group in groups.values() for run in group]
    rows = [row for array in arrays for row in array]
    per_run = [
        {"run": run.name, **_unless_unseen(_of_tasks(row, difference, run).dump(), [run], shares, settings)}
        for run, row in zip(runs, rows, strict=True)
    ]
    per_data_seed = [
        {"data_seed": seed, **estimated(mean_of_runs([array], difference), group, [shape])}
        for (seed, group), array, shape in zip(groups.items(), arrays, shapes, strict=True)
    ]
    beyond = over_data_seeds([figure["value"] for figure in per_data_seed], confidence=settings["confidence"])
    before, after = ([side(row.sum(axis=0)[None, :], place) for row in rows] for place in (0, 1))
    return {
        "before": fmean(before),
        "after": fmean(after),
        "difference": estimated(mean_of_runs(arrays, difference), runs, shapes),
        "iqm": estimated(interquartile_mean(arrays, difference), runs, shapes),
        "per_run": [
            {**figure, "before": old, "after": new} for figure, old, new in zip(per_run, before, after, strict=True)
        ],
        "per_data_seed": per_data_seed if len(per_data_seed) > 1 else [],
        "over_data_seeds": None if beyond is None else list(beyond),
    }


def _of_tasks(row: Numbers, difference: Statistic, run: SeedRun) -> Mean:
    """A run's difference with its interval over tasks, as in its report but for their order. `row`: of `_figures`."""
    settings = run.report["settings"]
    return bootstrap_statistic(row[row.any(axis=1)], difference, **{**_bootstrap(settings), "seed": settings["seed"]})


def _unless_unseen(
    interval: dict[str, Any], runs: Sequence[SeedRun], shares: Pair | None, settings: Mapping[str, Any]
) -> dict[str, Any]:
    """The figures, by `unless_unseen`. Two names of the same stage have no difference and no interval."""
    if shares is None or all(run.stage(shares.before) == run.stage(shares.after) for run in runs):
        return interval
    return unless_unseen(interval, settings["confidence"])


def _bootstrap(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {key: settings[key] for key in ("confidence", "resamples")} | {"seed": 0}


def _tasks(group: Sequence[SeedRun], studies: int | None = None) -> list[str]:
    tasks = [task for run in group for task in run.report["plan"]["tasks"]]
    return list(dict.fromkeys(task["id"] for task in tasks if studies in (None, task.get("studies"))))


def _table(pair: Pair, run: SeedRun, metric: str) -> Table:
    """Means before and after by task, over the repeats that have a value in both."""
    after = run.values(_stage(run, pair.after), metric)
    if pair.kind != "baseline":
        before = run.values(_stage(run, pair.before), metric)
    elif metric == "alignment":
        # Baselines have no repeats in a report: the mean over a task's repeats stands beside them as repeat 0.
        before = run.baseline(pair.before)
        after = {(task, 0): mean for task, (mean,) in task_means(run.tasks, after).items()}
    else:
        return {}
    return task_means(run.tasks, before, after)


def _stage(run: SeedRun, stage_name: str) -> str:
    name = run.stage(stage_name)
    assert name is not None
    return name


def _matrices(tasks: Sequence[str], tables: Sequence[Table]) -> tuple[Numbers, Numbers]:
    """Shape (runs, tasks) before and after; NaN where a run has no value for a task."""
    nothing = (np.nan, np.nan)
    both = np.array([[table.get(task, nothing) for task in tasks] for table in tables], dtype=float)
    return both[:, :, 0], both[:, :, 1]


def _mean_rows(before: Numbers, after: Numbers) -> Numbers:
    """Shape (runs, tasks, 3): before, after, and whether there is a value."""
    return np.stack([np.nan_to_num(before), np.nan_to_num(after), ~np.isnan(before)], axis=2).astype(float)


def _f1_rows(pair: Pair, group: Sequence[SeedRun]) -> list[Numbers]:
    """For each run the contribution of each task to the totals of macro-F1, before and after.

    The shape is (tasks, 6 x labels): first the columns of `f1_rows` before, then those after.
    """
    tasks, labels = _tasks(group), group[0].labels
    blocks: list[Numbers] = []
    for run in group:
        sides: list[Numbers] = []
        for stage_name in (pair.before, pair.after):
            task_answers = by_task(run.answers(_stage(run, stage_name)))
            rows = np.zeros((len(tasks), 3 * len(labels)))
            rows[[tasks.index(task) for task in task_answers]] = f1_rows(
                [(run.tasks[task], answers) for task, answers in task_answers.items()], labels
            )
            sides.append(rows)
        blocks.append(np.concatenate(sides, axis=1))
    return blocks


def _mean_difference(totals: Numbers) -> Numbers:
    with np.errstate(invalid="ignore"):
        return (totals[:, 1] - totals[:, 0]) / totals[:, 2]


def _mean_side(totals: Numbers, place: Literal[0, 1]) -> float:
    return float(totals[0, place] / totals[0, 2])


def _f1_difference(totals: Numbers) -> Numbers:
    with np.errstate(invalid="ignore"):
        before, after = np.split(totals, 2, axis=1)
        return macro_f1_of_totals(after) - macro_f1_of_totals(before)


def _f1_side(totals: Numbers, place: Literal[0, 1]) -> float:
    return float(macro_f1_of_totals(np.split(totals, 2, axis=1)[place])[0])
