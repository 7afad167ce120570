"""The metrics of a stage: one table of them, and their means with intervals.

There are two kinds of metrics. Success and right answers are over all tasks, and a failed rollout is a miss; if all of
a stage failed, only its success has a value. Reward, its parts, the judge's scores and the amount of work are over the
rollouts that have a value. A failed rollout has no reward, so read a stage's mean reward together with its success.

A task's value is the mean over its repeats. Tasks are resampled, and `n` is the number of tasks with a value.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Literal

from chimera.config.sections.rollouts import RewardConfig
from chimera.config.tree import Config
from chimera.core.types import DECISIONS, LABELS, Decision, Label, decides
from evaluation.measures.statistics import Mean, bootstrap_mean, bootstrap_statistic, f1_rows, macro_f1_of_totals
from evaluation.records.rollouts import RolloutRecord, failures, vetoes
from evaluation.records.study import BaselineAnswer, Plan, PlannedTask, StageAnswers
from evaluation.scores.alignment import aligned, decision_aligned, decision_aligned_two_way
from evaluation.scores.judge import CRITERIA
from evaluation.scores.rewards import part_title

Unit = Literal["share", "points", "seconds", "usd", "count"]
Value = Callable[[RolloutRecord], float | None]
Key = tuple[str, int]
"""A task's id and the number of the repeat."""
TaskAnswers = Mapping[str, Sequence[Label | None]]
"""Answers by task id, one for each repeat; None is no answer."""

PART = "part_"
"""Begins the names of metrics that are parts of the reward."""
MACRO_F1 = "macro_f1"
OF_ANSWERS = ("alignment", MACRO_F1, "decision_alignment", "decision_two_way")
"""Metrics of answers and decisions, in which a failed rollout is a miss."""
LATENCY = "seconds"
NONE = "none"
"""The answer and the decision of a failed rollout in counts."""


@dataclass(frozen=True, slots=True)
class Metric:
    """One row of the tables.

    Attributes:
        name: Its name in report.json.
        unit: Its unit; "share" lies in [0, 1].
        better: 1 if more is better, -1 if less is better, 0 if it depends.
        primary: True if the report's conclusions rest on it.
        value: Returns the value of a rollout, None if it has none. None for macro-F1, a statistic over tasks.
        binary: True if every rollout has 0 or 1.
    """

    name: str
    title: str
    unit: Unit
    better: Literal[1, -1, 0]
    primary: bool
    value: Value | None
    binary: bool = False


def metrics_of(config: Config) -> list[Metric]:
    """All metrics under `config`, in the order of tables. Cost is among them if prices are configured."""
    return [
        Metric("success", "rollouts that succeeded", "share", 1, False, _succeeded, binary=True),
        Metric("reward", "reward", "points", 1, True, lambda record: record.reward),
        Metric("alignment", "answers right (accuracy)", "share", 1, True, _right, binary=True),
        Metric(MACRO_F1, "macro-F1 of the answers", "share", 1, True, None),
        Metric("decision_alignment", "decisions aligned", "share", 1, False, _fits(decision_aligned), binary=True),
        Metric(
            "decision_two_way",
            "decisions aligned, two-way",
            "share",
            1,
            False,
            _fits(decision_aligned_two_way),
            binary=True,
        ),
        Metric("vetoed", "protocols vetoed", "share", -1, False, _vetoed, binary=True),
        *(_part(name) for name in RewardConfig.model_fields if getattr(config.reward, name) != 0),
        *(_criterion(name) for name in CRITERIA),
        Metric("turns", "turns", "count", 0, False, _of_result(lambda outputs: outputs.get("turn_count"))),
        _count("model_calls", "model calls", 0),
        _count("tool_calls", "tool calls", 0),
        Metric("tool_success", "tool calls that succeeded", "share", 1, False, _tool_success),
        Metric("revisions", "revision loops", "count", 0, False, _of_result(_revisions)),
        _count("repairs", "answers asked for again", -1),
        _count("refused_answers", "answers that a model's server refused", -1),
        _count("broken_rules", "calls and answers against a hard rule", -1),
        _count("prompt_tokens", "tokens read", 0),
        _count("completion_tokens", "tokens written", 0),
        Metric(LATENCY, "latency", "seconds", -1, False, lambda record: record.seconds),
        *([_cost(config.evaluation.prices)] if config.evaluation.prices else []),
    ]


def stage_metrics(answers: StageAnswers, plan: Plan, config: Config) -> dict[str, Mean]:
    """The metrics of a stage by name, without metrics that have no value."""
    means: dict[str, Mean] = {}
    task_answers = answers_of(answers)
    of_answers = answer_metrics(task_answers, plan, config) if task_answers else {}
    for metric in measured(config, answers):
        if metric.value is None:
            means[metric.name] = of_answers[metric.name]
            continue
        by_task = task_means((task.id for task in plan.tasks), values_of(metric.value, answers.records))
        if values := [mean for (mean,) in by_task.values()]:
            means[metric.name] = bootstrap_mean(values, share=metric.unit == "share", **interval_settings(config))
    return means


def measured(config: Config, *stages: StageAnswers) -> list[Metric]:
    """The metrics that can have a value in all `stages`: without those of answers where all rollouts of one failed."""
    silent = any(not answers_of(stage) for stage in stages)
    return [metric for metric in metrics_of(config) if not (silent and metric.name in OF_ANSWERS)]


def answer_metrics(answers: TaskAnswers, plan: Plan, config: Config) -> dict[str, Mean]:
    """Alignment and macro-F1 of a stage's or a baseline's answers to the plan's tasks. No answer is a miss.

    A task that is missing from `answers` was not asked and does not count.

    Raises:
        ValueError: None of the plan's tasks is among `answers`.
    """
    settings = interval_settings(config)
    rows = f1_rows([(task.label, answers[task.id]) for task in plan.tasks if task.id in answers], plan.labels)
    return {
        "alignment": bootstrap_mean(hits(answers, plan.tasks), share=True, **settings),
        MACRO_F1: bootstrap_statistic(rows, macro_f1_of_totals, **settings),
    }


def hits(answers: TaskAnswers, tasks: Iterable[PlannedTask]) -> list[float]:
    """The share of right answers to each of `tasks` that was asked."""
    return [fmean(answer == task.label for answer in answers[task.id]) for task in tasks if task.id in answers]


def interval_settings(config: Config) -> dict[str, Any]:
    settings = config.evaluation
    return {"confidence": settings.confidence, "resamples": settings.resamples, "seed": config.seed}


def answer_of(record: RolloutRecord) -> Label | None:
    """The answer to the question; None for a failed rollout."""
    return record.answer if record.status == "succeeded" else None


def answers_of(answers: StageAnswers) -> TaskAnswers:
    """The answers to each task; empty if every rollout failed, which tells nothing of how right the society is."""
    if all(record.status == "failed" for record in answers.records):
        return {}
    by_task: dict[str, list[Label | None]] = {}
    for record in answers.records:
        by_task.setdefault(record.task_id, []).append(answer_of(record))
    return by_task


def answers_by_baseline(answers: Iterable[BaselineAnswer]) -> dict[str, TaskAnswers]:
    """The answers of each baseline to each task, without baselines that gave none, such as those without training."""
    by_baseline: dict[str, dict[str, list[Label | None]]] = {}
    for answer in sorted(answers, key=lambda answer: answer.repeat):
        by_baseline.setdefault(answer.baseline, {}).setdefault(answer.task_id, []).append(answer.answer)
    return {
        name: by_task
        for name, by_task in by_baseline.items()
        if any(label is not None for labels in by_task.values() for label in labels)
    }


def values_of(value: Value, records: Iterable[RolloutRecord]) -> dict[Key, float]:
    """A metric's values by task id and repeat, without rollouts that have no value."""
    values = {(record.task_id, record.repeat): value(record) for record in records}
    return {key: float(number) for key, number in values.items() if number is not None}


def task_means(tasks: Iterable[str], *sides: Mapping[Key, float]) -> dict[str, tuple[float, ...]]:
    """Each side's mean over the repeats of a task that have a value in all, by task, in the order of `tasks`.

    Tasks without such a repeat are left out.
    """
    shared: dict[str, list[Key]] = {}
    for key in set.intersection(*map(set, sides)):
        shared.setdefault(key[0], []).append(key)
    return {
        task: tuple(fmean(values[key] for key in shared[task]) for values in sides) for task in tasks if task in shared
    }


def outcomes(answers: StageAnswers, labels: Sequence[Label] = LABELS) -> dict[str, Any]:
    """How a stage's rollouts ended: counts, failures by reason, answers by label, decisions, and vetoes by reason.

    A failed rollout has the answer and the decision `NONE`.
    """
    records = answers.records
    answered = Counter((record.label, answer_of(record) or NONE) for record in records)
    decided = Counter(_decision(record) or NONE for record in records)
    return {
        "tasks": len({record.task_id for record in records}),
        "rollouts": len(records),
        "failed": sum(record.status == "failed" for record in records),
        "failures": dict(failures(records).most_common()),
        "confusion": {label: {answer: answered[label, answer] for answer in (*labels, NONE)} for label in labels},
        "decisions": {decision: decided[decision] for decision in (*DECISIONS, NONE)},
        "vetoed": sum(record.veto is not None for record in records),
        "vetoes": dict(vetoes(records).most_common()),
    }


def _succeeded(record: RolloutRecord) -> float:
    return float(record.status == "succeeded")


def _decision(record: RolloutRecord) -> Decision | None:
    return record.decision if record.status == "succeeded" else None


def _right(record: RolloutRecord) -> float:
    """1 if the answer is the label, else 0. A missing answer counts as 0."""
    answer = answer_of(record)
    return float(answer is not None and aligned(answer, record.label))


def _vetoed(record: RolloutRecord) -> float | None:
    """1 if the protocol was vetoed, else 0; None for a failed rollout, which has no decision."""
    return float(record.veto is not None) if record.status == "succeeded" else None


def _fits(measure: Callable[[Decision, Label], bool]) -> Value:
    """1 if the decision matches the label, else 0; None for a task whose options correspond to no decision.

    A missing decision never matches.
    """

    def value(record: RolloutRecord) -> float | None:
        if not decides(record.options):
            return None
        decision = _decision(record)
        return float(decision is not None and measure(decision, record.label))

    return value


def _part(name: str) -> Metric:
    title = f"reward part: {part_title(name)}"
    return Metric(f"{PART}{name}", title, "points", 1, False, lambda record: record.parts.get(name))


def _criterion(name: str) -> Metric:
    return Metric(name, f"judge: {name}", "points", 1, False, _of_result(lambda outputs: _score(outputs, name)))


def _score(outputs: Mapping[str, Any], criterion: str) -> float | None:
    evaluated = outputs.get("final_evaluation")
    return None if evaluated is None else evaluated["scores"].get(criterion)


def _count(name: str, title: str, better: Literal[1, -1, 0]) -> Metric:
    return Metric(name, title, "count", better, False, lambda record: record.counts.get(name))


def _of_result(value: Callable[[Mapping[str, Any]], float | None]) -> Value:
    """A value of the society's outputs; None for a failed rollout."""
    return lambda record: value(record.outputs) if record.status == "succeeded" else None


def _revisions(outputs: Mapping[str, Any]) -> float | None:
    if "major_revisions" not in outputs or "critical_revisions" not in outputs:
        return None
    return outputs["major_revisions"] + outputs["critical_revisions"]


def _tool_success(record: RolloutRecord) -> float | None:
    calls = record.counts.get("tool_calls")
    return (calls - record.counts["failed_tool_calls"]) / calls if calls else None


def _cost(prices: Mapping[str, Sequence[float]]) -> Metric:
    """USD of one rollout. Models without a price cost nothing, and the judge's tokens are not recorded."""

    def cost(record: RolloutRecord) -> float | None:
        if not record.tokens:
            return None
        spent = 0.0
        for model, used in record.tokens.items():
            if model in prices:
                spent += (used["prompt"] * prices[model][0] + used["completion"] * prices[model][1]) / 1e6
        return spent

    return Metric("cost", "cost of models with a price, without the judge", "usd", -1, False, cost)
