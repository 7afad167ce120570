"""Compares the society with its baselines: right answers, calls, tokens, and right answers by level."""

from collections.abc import Iterable
from statistics import fmean
from typing import Any

from evaluation.baselines import simple as baselines
from evaluation.measures.metrics import TaskAnswers, answers_by_baseline, answers_of, interval_settings
from evaluation.measures.statistics import bootstrap_mean
from evaluation.records.study import PlannedTask, Study

BESIDE = (
    baselines.UNREVIEWED,
    baselines.JUNIOR_VOTE,
    baselines.AGENT_VOTE,
    baselines.AGENT,
    baselines.MAP_REDUCE,
    baselines.CONSISTENCY,
    baselines.SINGLE,
    baselines.GREEDY,
)
"""The baselines of the last stage that the first screen shows, in this order, before those of no stage."""
PARTS = (baselines.UNREVIEWED, baselines.JUNIOR_VOTE)
"""Baselines that are counted from the society's own rollouts: parts of it, so no rivals."""


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
    by_name = {name: answers_of(answers) for name, answers in study.answers.items()}
    by_name |= answers_by_baseline(study.baselines)
    for level in sorted({task.level for task in study.plan.tasks if task.level is not None}):
        tasks = [task for task in study.plan.tasks if task.level == level]
        right = {name: _right(study, answers, tasks) for name, answers in by_name.items()}
        rows[str(level)] = {"tasks": len(tasks), "right": {name: mean for name, mean in right.items() if mean}}
    return rows


def strongest(study: Study) -> str | None:
    """The baseline with most right answers, of those that use at most the tokens of the last stage; of equals the
    cheapest. None if there is none. `PARTS` of the society are left out.
    """
    used = {name: counts["tokens"] for name, counts in work(study).items()}
    limit = used[study.plan.final.name]
    rivals = {
        name: (fmean(hits), -tokens)
        for name, answers in answers_by_baseline(study.baselines).items()
        if name.partition("@")[0] not in PARTS
        if (hits := _hits(answers, study.plan.tasks)) and (tokens := used[name]) is not None
        if limit is None or tokens <= limit
    }
    return max(rivals, key=lambda name: rivals[name], default=None)


def beside(study: Study) -> list[str]:
    """Names on the first screen: the last stage, the baselines that it is compared with, and the strongest."""
    final = study.plan.final.name
    answers, best = answers_by_baseline(study.baselines), strongest(study)
    junior = study.plan.alone_of(study.plan.final).name
    names = [baselines.of_stage(kind, stage) for kind in BESIDE for stage in dict.fromkeys((final, junior))]
    shown = [name for name in (*names, baselines.LABELS, baselines.READER) if name in answers]
    return [final, *shown, *([best] if best is not None and best not in shown else [])]


def _right(study: Study, answers: TaskAnswers, tasks: Iterable[PlannedTask]) -> dict[str, Any] | None:
    """The share of right answers as plain data; None if no task of `tasks` was asked."""
    hits = _hits(answers, tasks)
    return bootstrap_mean(hits, share=True, **interval_settings(study.config)).dump() if hits else None


def _hits(answers: TaskAnswers, tasks: Iterable[PlannedTask]) -> list[float]:
    """The share of right answers to each task that was asked."""
    return [fmean(answer == task.label for answer in answers[task.id]) for task in tasks if task.id in answers]


def _mean(values: Iterable[float]) -> float | None:
    numbers = list(values)
    return fmean(numbers) if numbers else None
