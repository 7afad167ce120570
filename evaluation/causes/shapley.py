"""Shapley values: what each phase of a run gave, averaged over all orders in which the phases could have been added.

The worth v(S) of a coalition S of the n phases is a metric of the society with what they learned and nothing else, on
one task. The value of phase i (Shapley 1953, "A value for n-person games") is

    phi_i = sum over S without i of |S|! (n - |S| - 1)! / n! * (v(S + i) - v(S)).

On every task the values sum to v(all phases) - v(base). A phase that changes no coalition has the value 0, and two
phases that change all coalitions alike have the same value. Of two phases that learned for one place, the earlier one
changes nothing where the later one is too (`evaluation.records.coalitions`): its value is what it gives without it.

A policy is judged here beside others than those that it was learned with. That is what the question means, and also a
reason why a phase can give more in the run's own order than its value.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import factorial
from typing import Any

import numpy as np

from chimera.config.tree import Config
from evaluation.measures.metrics import Key, Metric, Value, interval_settings, measured, task_means, values_of
from evaluation.measures.statistics import Mean, Numbers, bootstrap_mean, unseen_share
from evaluation.records import coalitions
from evaluation.records.coalitions import Coalition
from evaluation.records.study import Study

METRICS = ("reward", "alignment")
"""The metrics that are shared out among the phases."""


@dataclass(frozen=True, slots=True)
class Shares:
    """One metric's gain from base to the last stage, shared out among the phases.

    Attributes:
        phases: The value of each phase: mean over tasks, with its interval.
        total: The whole gain on the same tasks, which the means of `phases` sum to.
    """

    phases: Mapping[str, Mean]
    total: Mean

    def dump(self) -> dict[str, Any]:
        return {"phases": {name: mean.dump() for name, mean in self.phases.items()}, "total": self.total.dump()}


def shapley_values(players: Sequence[str], worth: Mapping[Coalition, Numbers]) -> dict[str, Numbers]:
    """The Shapley value of each player.

    Args:
        players: The players, at least one.
        worth: The worth of every coalition of them, an array of any one shape, such as one number for each task.

    Returns:
        By player, an array of the same shape.

    Raises:
        KeyError: The worth of a coalition is missing.
    """
    orders = factorial(len(players))
    credits: dict[str, Numbers] = {}
    for player in players:
        total = np.zeros_like(worth[frozenset()], dtype=float)
        for coalition in coalitions.every([other for other in players if other != player]):
            before, after = len(coalition), len(players) - len(coalition) - 1
            total += factorial(before) * factorial(after) * (worth[coalition | {player}] - worth[coalition])
        credits[player] = total / orders
    return credits


def shares(study: Study) -> dict[str, Shares]:
    """The Shapley values of the run's phases, by metric; empty unless `evaluation.contributions` asked for them.

    A task counts if it has a value in all coalitions, with the repeats that have one in all.
    """
    plan = study.plan
    if study.config.evaluation.contributions != "shapley" or not plan.learned:
        return {}
    shares_by_metric: dict[str, Shares] = {}
    for metric in measured(study.config, *study.answers.values()):
        if metric.name in METRICS and metric.value is not None:
            tasks, worth = worths((task.id for task in plan.tasks), _values(study, metric.value))
            if tasks:
                shares_by_metric[metric.name] = _shares(list(plan.learned), worth, metric, study.config)
    return shares_by_metric


def worths(
    tasks: Iterable[str], values: Mapping[Coalition, Mapping[Key, float]]
) -> tuple[list[str], dict[Coalition, Numbers]]:
    """The tasks that count, in the order of `tasks`, and the worth of every coalition on each of them."""
    means = task_means(tasks, *values.values())
    columns = np.array(list(means.values())).reshape(-1, len(values)).T
    return list(means), dict(zip(values, columns, strict=True))


def _values(study: Study, value: Value) -> dict[Coalition, Mapping[Key, float]]:
    values: dict[Coalition, Mapping[Key, float]] = {}
    for coalition in coalitions.every(study.plan.learned):
        stage = study.plan.coalition(coalition)
        if stage is None:
            raise ValueError(f"the plan lacks the stage with {sorted(coalition)}, so there are no Shapley values")
        values[coalition] = values_of(value, study.answers[stage.name].records)
    return values


def _shares(phases: Sequence[str], worth: Mapping[Coalition, Numbers], metric: Metric, config: Config) -> Shares:
    values = shapley_values(phases, worth)
    whole = worth[frozenset(phases)] - worth[frozenset()]
    return Shares(
        {phase: _mean(phase_values, metric, config) for phase, phase_values in values.items()},
        _mean(whole, metric, config),
    )


def _mean(values: Numbers, metric: Metric, config: Config) -> Mean:
    """The mean of tasks' differences with its interval. All calls draw the same tasks."""
    mean = bootstrap_mean(values.tolist(), **interval_settings(config))
    if metric.unit != "share" or mean.low is None or values.any():
        return mean
    unseen = unseen_share(mean.n, config.evaluation.confidence)
    return Mean(mean.mean, -unseen, unseen, mean.n)
