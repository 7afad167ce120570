"""Compares two stages, or a baseline and a stage, on the same tasks and seeds: difference, test, verdict in words.

A difference is shown if its p-value after Holm's correction over its family (`evaluation.families`) is small enough.
Otherwise an interval above minus the margin shows non-inferiority. The interval is not corrected.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import ceil, sqrt
from typing import Any

import numpy as np

from chimera.config.tree import Config
from evaluation.measures.families import family_of
from evaluation.measures.metrics import (
    LATENCY,
    MACRO_F1,
    Metric,
    TaskAnswers,
    answers_of,
    hits,
    interval_settings,
    measured,
    metrics_of,
    task_means,
    values_of,
)
from evaluation.measures.statistics import (
    Numbers,
    bootstrap_mean,
    exchange_test,
    f1_rows,
    holm,
    interval_around,
    macro_f1_of_totals,
    minimum_detectable_effect,
    of_all,
    resampled,
    sign_test,
    unseen_share,
)
from evaluation.measures.verdicts import NON_INFERIOR, NOT_SHOWN, Verdict, margins, verdict
from evaluation.records.study import Plan, StageAnswers

POWER = 0.8
"""With which the minimum detectable effect is found."""
EXCHANGES = 10
"""Random exchanges of a paired test for each bootstrap sample of an interval."""


def exchanges(config: Config) -> int:
    """Number of random exchanges of a paired test."""
    return EXCHANGES * config.evaluation.resamples


EXCHANGE = "exchange test"
MCNEMAR = "McNemar's exact test"
SHARES = ("alignment", "success")


@dataclass(frozen=True, slots=True)
class Comparison:
    """One metric of two systems, over the tasks that have a value in both.

    Attributes:
        before: Mean or macro-F1 of the first system.
        after: Mean or macro-F1 of the second system.
        difference: `after` minus `before`.
        low: Lower end of the difference's interval; None for a single task.
        high: Upper end.
        p: Two-sided p-value.
        p_adjusted: p-value after correction for the report's other tests; None until `adjust`.
        n: Number of tasks.
        mde: Smallest true difference that `n` tasks would show with the configured power, before correction; None
            if nothing varied.
        verdict: The verdict in words; None until `adjust`.
        primary: True if the report's conclusions rest on it.
        margin: The loss that non-inferiority tolerates; None if the metric has no margin.
        by_gate: True if training's gate made this test. It is corrected for no others.
    """

    before: float
    after: float
    difference: float
    low: float | None
    high: float | None
    p: float
    p_adjusted: float | None
    n: int
    mde: float | None
    test: str
    verdict: Verdict | None
    primary: bool
    margin: float | None = None
    by_gate: bool = False

    def dump(self) -> dict[str, Any]:
        return asdict(self)


Comparisons = Mapping[str, Mapping[str, Comparison]]
"""Comparisons by "<before>:<after>", then by metric."""


def compare(before: StageAnswers, after: StageAnswers, plan: Plan, config: Config) -> dict[str, Comparison]:
    """Compare every metric that has a value in both stages for some task and seed, not yet adjusted.

    Latency is left out if their rollouts were made in different places, beside other work.
    """
    comparisons: dict[str, Comparison] = {}
    of_answers = compare_answers(answers_of(before), answers_of(after), plan, config)
    for metric in measured(config, before, after):
        if metric.name == LATENCY and not before.timed_like(after):
            continue
        if metric.name in of_answers:
            comparisons[metric.name] = of_answers[metric.name]
        elif metric.value is not None:
            old, new = (values_of(metric.value, answers.records) for answers in (before, after))
            if means := task_means((task.id for task in plan.tasks), old, new):
                exact = metric.binary and plan.repeats == 1
                old_means, new_means = zip(*means.values(), strict=True)
                comparisons[metric.name] = compare_means(old_means, new_means, metric, config, exact=exact)
    return comparisons


def compare_answers(before: TaskAnswers, after: TaskAnswers, plan: Plan, config: Config) -> dict[str, Comparison]:
    """Compare right answers and macro-F1 of two systems, not yet adjusted; empty if they share no task.

    Args:
        before: Answers of the first system by task id, one for each repeat. None is no answer and counts as a miss.
        after: Answers of the second system. Its number of repeats may differ.
    """
    tasks = [task for task in plan.tasks if task.id in before and task.id in after]
    if not tasks:
        return {}
    sides = before, after
    metrics = {metric.name: metric for metric in metrics_of(config)}
    old_hits, new_hits = (hits(answers, tasks) for answers in sides)
    exact = all(len(answers[task.id]) == 1 for answers in sides for task in tasks)
    rows = [f1_rows([(task.label, answers[task.id]) for task in tasks], plan.labels) for answers in sides]
    return {
        "alignment": compare_means(old_hits, new_hits, metrics["alignment"], config, exact=exact),
        MACRO_F1: _of_macro_f1(rows, metrics[MACRO_F1], config),
    }


def adjust(comparisons: Comparisons, config: Config, main: str | None = None) -> dict[str, dict[str, Comparison]]:
    """The comparisons with Holm's correction over each family, and with verdicts. The gate's own stay as they are.

    Args:
        main: The report's main comparison, as "<before>:<after>"; None if it has none.
    """
    adjusted: dict[tuple[str, str], float] = {}
    for family in families_of(comparisons, config, main).values():
        adjusted |= dict(zip(family, holm([comparison.p for comparison in family.values()]), strict=True))
    metrics = {metric.name: metric for metric in metrics_of(config)}
    return {
        pair: {
            name: comparison if comparison.by_gate else judged(comparison, metrics[name], adjusted[pair, name], config)
            for name, comparison in rows.items()
        }
        for pair, rows in comparisons.items()
    }


def judged(comparison: Comparison, metric: Metric, p_adjusted: float, config: Config) -> Comparison:
    word = verdict(
        comparison.difference,
        comparison.low,
        p_adjusted,
        level=1 - config.evaluation.confidence,
        better=metric.better,
        margin=comparison.margin,
    )
    return replace(comparison, p_adjusted=p_adjusted, verdict=word)


def families_of(
    comparisons: Comparisons, config: Config, main: str | None
) -> dict[str, dict[tuple[str, str], Comparison]]:
    """The tests of each family, by pair and metric. The tests of a family are corrected together; the gate's are in
    none."""
    families: dict[str, dict[tuple[str, str], Comparison]] = {}
    for pair, rows in comparisons.items():
        for name, comparison in rows.items():
            if comparison.by_gate:
                continue
            family = family_of(pair, name, config.evaluation.families, main)
            families.setdefault(family, {})[pair, name] = comparison
    return families


def too_few_permutations(adjusted: Comparisons, config: Config, main: str | None = None) -> str | None:
    """A warning if a difference was not shown only because there are too few exchanges for so many tests, else None.

    With N exchanges no p-value is below 1 / (N + 1), and Holm multiplies it by at most the size of the family.

    Args:
        main: The value that `adjust` was given.
    """
    most, level = exchanges(config), 1 - config.evaluation.confidence
    stuck: dict[int, int] = {}
    for family in families_of(adjusted, config, main).values():
        tests = [
            comparison
            for comparison in family.values()
            if comparison.test == EXCHANGE and comparison.verdict in (NOT_SHOWN, NON_INFERIOR)
        ]
        if least := sum(comparison.p * (most + 1) < 1.5 for comparison in tests):
            stuck[len(family)] = stuck.get(len(family), 0) + least
    if not stuck:
        return None
    largest, count = max(stuck.items())
    return (
        f"evaluation.resamples={config.evaluation.resamples} gives {most} random exchanges, too few for a family of "
        f"{largest} tests: {count} of them could not pass the level {level:.3g} however large the difference; raise it "
        f"above {ceil(largest / level / EXCHANGES)}"
    )


def verdict_sentence(before: str, after: str, comparisons: Mapping[str, Comparison], config: Config) -> str:
    """One sentence on the change in reward and right answers with intervals, and in success if rollouts failed.

    Failed rollouts have no reward, so failures could make the mean reward look better.

    Args:
        before: The first system in words, such as "the base".
        comparisons: Their adjusted comparison. A missing metric is said to have no value in both.

    Raises:
        ValueError: The comparison is not adjusted.
    """
    success = comparisons.get("success")
    failures = success is not None and min(success.before, success.after) < 1
    names = ("reward", "alignment", *(["success"] if failures else []))
    clauses = [_clause(name, comparisons.get(name), config) for name in names]
    return f"{after[:1].upper()}{after[1:]} beside {before}: {'; '.join(clauses)}."


def compare_means(
    before: Sequence[float], after: Sequence[float], metric: Metric, config: Config, *, exact: bool
) -> Comparison:
    """Compare the means of tasks' values, not yet adjusted.

    Args:
        before: One value for each task.
        after: The other values, in the same order.
        exact: True if all values are 0 or 1.
    """
    old, new = np.asarray(before, dtype=float), np.asarray(after, dtype=float)
    changes, n = new - old, len(old)
    interval = bootstrap_mean(changes.tolist(), **interval_settings(config))
    ends, deviation = (interval.low, interval.high), float(changes.std(ddof=1)) if n > 1 else 0.0
    if n > 1 and metric.unit == "share" and not np.ptp(changes):
        unseen, same = unseen_share(n, config.evaluation.confidence), float(changes[0])
        ends = same - unseen * (1 + same), same + unseen * (1 - same)
    if exact:
        p = sign_test(int(np.count_nonzero(changes > 0)), int(np.count_nonzero(changes < 0)))
    else:
        p = exchange_test(old, new, permutations=exchanges(config), seed=config.seed)
    values = float(old.mean()), float(new.mean()), float(changes.mean())
    return _comparison(values, ends, deviation, p, n, MCNEMAR if exact else EXCHANGE, metric, config)


def _of_macro_f1(pair: Sequence[Numbers], metric: Metric, config: Config) -> Comparison:
    """Compare macro-F1; `pair`: the rows of `f1_rows` of both systems, for the same tasks."""
    old, new = pair
    settings, n = config.evaluation, len(old)
    first, second = (of_all(rows, macro_f1_of_totals) for rows in (old, new))
    ends, deviation = (None, None), 0.0
    if n > 1:
        draws = {"resamples": settings.resamples, "seed": config.seed}
        drawn = resampled(new, macro_f1_of_totals, **draws) - resampled(old, macro_f1_of_totals, **draws)
        ends = interval_around(second - first, drawn, n, settings.confidence)
        # Convert the bootstrap's standard error to a deviation of tasks, comparable to `ddof=1` for means.
        deviation = float(drawn.std()) * n / sqrt(n - 1)
    p = exchange_test(old, new, macro_f1_of_totals, permutations=exchanges(config), seed=config.seed)
    return _comparison((first, second, second - first), ends, deviation, p, n, EXCHANGE, metric, config)


def _comparison(
    values: tuple[float, float, float],
    ends: tuple[float | None, float | None],
    deviation: float,
    p: float,
    n: int,
    test: str,
    metric: Metric,
    config: Config,
) -> Comparison:
    """Not yet adjusted. `values`: before, after, difference. `deviation`: standard deviation of tasks' differences."""
    alpha = 1 - config.evaluation.confidence
    mde = minimum_detectable_effect(deviation, n, alpha=alpha, power=POWER)
    margin = margins(config).get(metric.name)
    return Comparison(*values, *ends, p, None, n, mde, test, None, metric.primary, margin)


def _clause(name: str, comparison: Comparison | None, config: Config) -> str:
    title = "answers right" if name == "alignment" else name
    if comparison is None:
        return f"{title} has no value in both"
    if comparison.p_adjusted is None:
        raise ValueError(f"the comparison of {name} is not adjusted, so it has no verdict: call adjust first")
    scale, digits, unit, points = (100, 1, " %", " points") if name in SHARES else (1, 3, "", "")
    around = "no interval from a single task"
    if comparison.low is not None and comparison.high is not None:
        ends = f"{comparison.low * scale:+z.{digits}f} to {comparison.high * scale:+z.{digits}f}"
        around = f"{100 * config.evaluation.confidence:.4g} % interval {ends}"
    old, new = (f"{value * scale:z.{digits}f}" for value in (comparison.before, comparison.after))
    margin = ""
    if comparison.verdict == NON_INFERIOR and comparison.margin:
        margin = f" (margin {comparison.margin * scale:.{digits}f}{points})"
    words = (
        f"{title} {comparison.verdict}{margin}, from {old} to {new}{unit} "
        f"({comparison.difference * scale:+z.{digits}f}{points}, {around}, "
        f"p = {comparison.p_adjusted:.2g}{'' if comparison.by_gate else ' after correction'}, n = {comparison.n})"
    )
    if comparison.verdict not in (NOT_SHOWN, NON_INFERIOR) or comparison.mde is None:
        return words
    power = f"{100 * POWER:.4g} times in 100"
    return (
        f"{words}, where {comparison.mde * scale:.{digits}f}{points} or more would be found {power}, before correction"
    )
