"""Compares the society with its baselines: right answers, calls, tokens, right answers by level and by studies."""

from collections.abc import Collection, Iterable
from dataclasses import replace
from statistics import fmean
from typing import Any

from evaluation.baselines import simple as baselines
from evaluation.measures.comparison import compare_answers
from evaluation.measures.metrics import TaskAnswers, answers_by_baseline, answers_of, hits, interval_settings
from evaluation.measures.statistics import bootstrap_mean, slope
from evaluation.records.study import PlannedTask, Study

BESIDE = (
    baselines.UNREVIEWED,
    baselines.JUNIOR_VOTE,
    baselines.BY_RULE,
    baselines.AGENT_VOTE,
    baselines.AGENT,
    baselines.MAP_REDUCE,
    baselines.CONSISTENCY,
    baselines.SINGLE,
    baselines.GREEDY,
)
"""The baselines of the last stage that the first screen shows, in this order, before those of no stage."""
PARTS = (baselines.UNREVIEWED, baselines.JUNIOR_VOTE, baselines.BY_RULE)
"""Baselines that are counted from the society's own rollouts: parts of it, so no rivals."""
STEP = 4
"""Number of studies for which the slope of the gap is stated."""


def work(study: Study) -> dict[str, dict[str, float | None]]:
    """Mean model calls ("calls") and tokens read and written ("tokens"): per rollout of each stage and per answer of
    each baseline. None if they are not recorded."""
    means: dict[str, dict[str, float | None]] = {}
    for name, answers in study.answers.items():
        counts = [record.counts for record in answers.records if record.counts]
        means[name] = {
            "calls": _mean(counts_row["model_calls"] for counts_row in counts),
            "tokens": _mean(counts_row["prompt_tokens"] + counts_row["completion_tokens"] for counts_row in counts),
        }
    for name in answers_by_baseline(study.baselines):
        counted_answers = [answer for answer in study.baselines if answer.baseline == name and answer.calls is not None]
        means[name] = {
            "calls": _mean(answer.calls for answer in counted_answers if answer.calls is not None),
            "tokens": _mean(answer.prompt_tokens + answer.completion_tokens for answer in counted_answers),
        }
    return means


def levels(study: Study) -> dict[str, dict[str, Any]]:
    """For each level of difficulty, the number of tasks and each stage's and baseline's share of right answers with its
    interval, over the tasks that it was asked. Empty if no task has a level."""
    rows: dict[str, dict[str, Any]] = {}
    by_name = _answers(study)
    for level in sorted({task.level for task in study.plan.tasks if task.level is not None}):
        tasks = [task for task in study.plan.tasks if task.level == level]
        right = {name: _right(study, answers, tasks) for name, answers in by_name.items()}
        rows[str(level)] = {"tasks": len(tasks), "right": {name: mean for name, mean in right.items() if mean}}
    return rows


def by_studies(study: Study) -> dict[str, Any]:
    """Right answers against the number of studies that answer a task; empty unless at least two numbers occur.

    Returns:
        "systems": the last stage, the strongest baseline (`strongest`) and map and reduce, as far as they have answers.
        "counts": by number of studies the number of "tasks", the share "right" of each system, and the "gap", the last
        stage minus the strongest baseline, paired; None without both.
        "slope": of the gap, as a share for each "step" studies more; None without both. Intervals are not corrected.
    """
    counts = sorted({task.studies for task in study.plan.tasks if task.studies})
    if len(counts) < 2:
        return {}
    final, rival = study.plan.final.name, strongest(study)
    reduced = baselines.of_stage(baselines.MAP_REDUCE, study.plan.alone_of(study.plan.final).name)
    by_name = {name: answers for name, answers in _answers(study).items() if answers}
    systems = [name for name in dict.fromkeys((final, rival, reduced)) if name in by_name]
    society, others = by_name.get(final, {}), by_name.get(rival or "", {})
    rows: dict[str, dict[str, Any]] = {}
    for count in counts:
        plan = replace(study.plan, tasks=tuple(task for task in study.plan.tasks if task.studies == count))
        gap = compare_answers(others, society, plan, study.config).get("alignment")
        rows[str(count)] = {
            "tasks": len(plan.tasks),
            "right": {name: mean for name in systems if (mean := _right(study, by_name[name], plan.tasks))},
            "gap": gap and {key: getattr(gap, key) for key in ("difference", "low", "high", "n")},
        }
    both = [task for task in study.plan.tasks if task.studies and task.id in society and task.id in others]
    gaps = [after - before for before, after in zip(hits(others, both), hits(society, both), strict=True)]
    steps = [task.studies / STEP for task in both]
    line = slope(steps, gaps, **interval_settings(study.config)).dump() if len(set(steps)) > 1 else None
    return {"systems": systems, "counts": rows, "slope": line, "step": STEP}


def strongest(study: Study, kinds: Collection[str] | None = None) -> str | None:
    """The baseline with most right answers, of those that use at most the tokens of the last stage; of equals the
    cheapest. None if there is none. `PARTS` of the society are left out.

    Args:
        kinds: Of these kinds only, such as "single"; None for all.
    """
    used = {name: counts["tokens"] for name, counts in work(study).items()}
    limit = used[study.plan.final.name]
    rivals = {
        name: (fmean(rights), -tokens)
        for name, answers in answers_by_baseline(study.baselines).items()
        if (kind := name.partition("@")[0]) not in PARTS and (kinds is None or kind in kinds)
        if (rights := hits(answers, study.plan.tasks)) and (tokens := used[name]) is not None
        if limit is None or tokens <= limit
    }
    return max(rivals, key=lambda name: rivals[name], default=None)


def undivided(study: Study) -> str | None:
    """The strongest baseline of a model that reads all in one context; None if no baseline divides the evidence."""
    models = {answer.baseline.partition("@")[0] for answer in study.baselines if answer.calls}
    return strongest(study, models - {baselines.MAP_REDUCE}) if baselines.MAP_REDUCE in models else None


def beside(study: Study) -> list[str]:
    """Names on the first screen: the last stage, the baselines that it is compared with, and the strongest."""
    final = study.plan.final.name
    answers, best = answers_by_baseline(study.baselines), strongest(study)
    junior = study.plan.alone_of(study.plan.final).name
    names = [baselines.of_stage(kind, stage) for kind in BESIDE for stage in dict.fromkeys((final, junior))]
    shown = [name for name in (*names, baselines.LABELS, baselines.READER) if name in answers]
    return [final, *shown, *([best] if best is not None and best not in shown else [])]


def _answers(study: Study) -> dict[str, TaskAnswers]:
    """The answers of each stage and baseline by its name."""
    return {name: answers_of(answers) for name, answers in study.answers.items()} | answers_by_baseline(study.baselines)


def _right(study: Study, answers: TaskAnswers, tasks: Iterable[PlannedTask]) -> dict[str, Any] | None:
    """The share of right answers as plain data; None if no task of `tasks` was asked."""
    rights = hits(answers, tasks)
    return bootstrap_mean(rights, share=True, **interval_settings(study.config)).dump() if rights else None


def _mean(values: Iterable[float]) -> float | None:
    numbers = list(values)
    return fmean(numbers) if numbers else None
