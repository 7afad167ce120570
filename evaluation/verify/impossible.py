"""Finds contradictions between the numbers of a report, without its run.

A mean reward is the sum of the means of its parts; a share of n rollouts is a whole number of them (GRIM, Brown and
Heathers 2017); a mean lies in its interval; a difference is what lies between before and after. Only what a table
states is checked, so that one from elsewhere may be shorter; numbers that were rounded may be off by their rounding.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any, TypeGuard

from chimera.config.sections.rollouts import RewardConfig
from evaluation.measures.metrics import PART
from evaluation.scores.judge import CRITERIA

COUNTED_SHARES = ("success", "alignment", "decision_alignment", "decision_two_way")
"""Shares of all rollouts: times their number they must be whole numbers."""
SHARES = (*COUNTED_SHARES, "macro_f1", "tool_success", *CRITERIA)
EXACT_DECIMALS = 9
"""From this number of decimals on, a table counts as not rounded."""
SLACK = 1e-9


def impossible(report: Mapping[str, Any]) -> list[str]:
    """The contradictions in `report`, one sentence each; empty if there are none.

    Args:
        report: As in report.json; sections may be missing, and a metric may be a plain number instead of an object
            with mean, low, high and n.
    """
    stages = report.get("stages")
    if not isinstance(stages, Mapping) or not stages:
        return ["the report has no stages, so there is nothing to believe"]
    problems: list[str] = []
    for name, metrics in stages.items():
        if not isinstance(metrics, Mapping):
            problems.append(f"stages.{name} is no table of metrics")
            continue
        problems += _stage(f"stages.{name}", metrics, report, name)
    problems += _outcomes(report)
    problems += _comparisons(report)
    return problems


def _stage(place: str, metrics: Mapping[str, Any], report: Mapping[str, Any], stage: str) -> Iterator[str]:
    broken = [name for name, value in metrics.items() if not _number(_mean(value))]
    yield from (f"{place}.{name} has no mean that is a number" for name in broken)
    means = {name: float(_mean(value)) for name, value in metrics.items() if name not in broken}
    yield from _reward(place, means, metrics, report, stage)
    repeats = _repeats(report)
    for name, mean in means.items():
        if name in SHARES and not -SLACK <= mean <= 1 + SLACK:
            yield f"{place}.{name} is {_short(mean)}, and a share lies between 0 and 1"
        yield from _interval(f"{place}.{name}", mean, metrics[name], biased=name == "macro_f1")
        n = _n(metrics[name])
        if n is not None and (not float(n).is_integer() or n < 1):
            yield f"{place}.{name}.n is {n}, and one counts in whole tasks"
        elif n is not None and name in COUNTED_SHARES and 0 <= mean <= 1:
            yield from _grim(f"{place}.{name}", mean, int(n), repeats)


def _reward(
    place: str, means: Mapping[str, float], metrics: Mapping[str, Any], report: Mapping[str, Any], stage: str
) -> Iterator[str]:
    weights = _weights(report)
    parts = {name: means[name] for name in means if name.startswith(PART)}
    if "reward" in means and parts and _same_rollouts(metrics, ["reward", *parts], report, stage):
        total = math.fsum(parts.values())
        if abs(total - means["reward"]) > _rounding([means["reward"], *parts.values()]) * (1 + len(parts)) + SLACK:
            yield f"{place}.reward is {_short(means['reward'])}, but its parts give {_short(total)}"
    scores = {name: means[name] for name in CRITERIA if name in means and weights[name] != 0}
    complete = all(name in scores for name in CRITERIA if weights[name] != 0)
    if "reward" in means and scores and complete and not parts:
        total = math.fsum(weights[name] * score for name, score in scores.items())
        loose = _rounding([means["reward"], *scores.values()]) * (1 + sum(abs(weights[name]) for name in scores))
        if abs(total - means["reward"]) > loose + SLACK:
            yield (
                f"{place}.reward is {_short(means['reward'])}, but the weighted criteria give {_short(total)}, and no "
                "part is named that accounts for the difference"
            )
    for name, score in scores.items():
        part = parts.get(PART + name)
        if part is None or not _same_rollouts(metrics, [name, PART + name], report, stage):
            continue
        loose = _rounding([part, score]) * (1 + abs(weights[name])) + SLACK
        if abs(weights[name] * score - part) > loose:
            yield (
                f"{place}.{PART}{name} is {_short(part)}, but its weight {weights[name]} times the score "
                f"{_short(score)} gives {_short(weights[name] * score)}"
            )


def _interval(place: str, mean: float, value: Any, *, biased: bool = False) -> Iterator[str]:
    """Check an interval. With `biased`, it need not contain the statistic: only the order of its ends is checked."""
    if not isinstance(value, Mapping):
        return
    low, high = value.get("low"), value.get("high")
    if low is None and high is None:
        return
    if not _number(low) or not _number(high):
        yield f"{place} has an interval from {low} to {high}, and both ends must be numbers"
        return
    loose = _rounding([mean, low, high]) + SLACK
    if low > high + loose:
        yield f"{place} has an interval whose lower end {_short(low)} is above its upper end {_short(high)}"
    elif not biased and not low - loose <= mean <= high + loose:
        yield f"{place} is {_short(mean)}, outside its own interval from {_short(low)} to {_short(high)}"


def _grim(place: str, mean: float, n: int, repeats: int) -> Iterator[str]:
    rollouts = n * repeats
    count = mean * rollouts
    if abs(count - round(count)) > _rounding([mean]) * rollouts + SLACK * rollouts:
        yield f"{place} is {_short(mean)}, which is {_short(count)} of {rollouts} rollouts: not a whole number of them"


def _outcomes(report: Mapping[str, Any]) -> Iterator[str]:
    for stage, outcome in _mapping(report.get("outcomes")).items():
        outcome = _mapping(outcome)
        place, rows = f"outcomes.{stage}", _listed(outcome)
        total = len(rows) if rows else outcome.get("count")
        failures = _numbers(outcome.get("failures"))
        if failures and sum(failures.values()) != outcome.get("failed"):
            yield f"{place}.failures adds up to {sum(failures.values())}, but {outcome.get('failed')} rollouts failed"
        cells = {
            (label, answer): count
            for label, row in _mapping(outcome.get("confusion")).items()
            for answer, count in _numbers(row).items()
        }
        if cells and total is not None and sum(cells.values()) != total:
            yield f"{place}.confusion adds up to {sum(cells.values())}, but there are {total} rollouts"
        stated = _mapping(_mapping(report.get("stages")).get(stage))
        yield from _counted(place, stage, cells, outcome.get("failed"), stated)
        if rows:
            yield from _rows(place, rows, outcome)
            yield from _means_of_rows(place, stage, rows, stated)


def _counted(
    place: str, stage: str, cells: Mapping[tuple[str, str], float], failed: Any, stated: Mapping[str, Any]
) -> Iterator[str]:
    """Recompute alignment and success from the confusion matrix."""
    total = sum(cells.values())
    if not total:
        return
    right = sum(count for (label, answer), count in cells.items() if label == answer)
    again = {"alignment": right / total}
    if _number(failed):
        again["success"] = 1 - failed / total
    for name, share in again.items():
        mean = _mean(stated.get(name))
        if _number(mean) and abs(mean - share) > _rounding([mean]) + SLACK:
            yield f"stages.{stage}.{name} is {_short(mean)}, but {place} gives {_short(share)}"


def _rows(place: str, rows: Sequence[Mapping[str, Any]], outcome: Mapping[str, Any]) -> Iterator[str]:
    failed = sum(row.get("status") == "failed" for row in rows)
    if outcome.get("failed") is not None and outcome["failed"] != failed:
        yield f"{place}.failed is {outcome['failed']}, but {failed} of the listed rollouts failed"
    for row in rows:
        parts = list(_numbers(row.get("parts")).values())
        reward = row.get("reward")
        if _number(reward) and parts and abs(math.fsum(parts) - reward) > _rounding([reward, *parts]) + SLACK:
            yield f"{place}: rollout {row.get('id')} has reward {_short(reward)}, its parts give {_short(sum(parts))}"


def _means_of_rows(
    place: str, stage: str, rows: Sequence[Mapping[str, Any]], stated: Mapping[str, Any]
) -> Iterator[str]:
    """Recompute every mean from the listed rollouts: over repeats first, then over tasks."""
    values: dict[str, dict[Any, list[float]]] = {}
    for row in rows:
        for name, value in _numbers(row.get("values")).items():
            values.setdefault(name, {}).setdefault(repr(row.get("task")), []).append(value)
    for name, of_task in values.items():
        mean, again = _mean(stated.get(name)), fmean(map(fmean, of_task.values()))
        if _number(mean) and abs(mean - again) > _rounding([mean]) + SLACK * max(1.0, abs(again)):
            yield f"stages.{stage}.{name} is {_short(mean)}, but the rollouts listed in {place} give {_short(again)}"


def _comparisons(report: Mapping[str, Any]) -> Iterator[str]:
    stages = _mapping(report.get("stages"))
    for pair, metrics in _mapping(report.get("comparisons")).items():
        for name, row in _mapping(metrics).items():
            place = f"comparisons.{pair}.{name}"
            if not isinstance(row, Mapping):
                yield f"{place} is no comparison"
                continue
            yield from _comparison(place, row)
            if not any(_unscored_repeats(report, stage) for stage in pair.split(":")):
                yield from _difference_of_pairs(place, row, _mapping(report.get("pairs")).get(pair), name)
            for stage, side in zip(pair.split(":"), ("before", "after"), strict=False):
                stated = _mapping(stages.get(stage)).get(name)
                mean, value = _mean(stated), row.get(side)
                whole = _n(stated) == row.get("n") and not _unscored_repeats(report, stage)
                if not whole or not _number(mean) or not _number(value):
                    continue
                if abs(mean - value) > _rounding([mean, value]) + SLACK:
                    yield f"{place}.{side} is {_short(value)}, but stages.{stage}.{name} is {_short(mean)}"


def _comparison(place: str, row: Mapping[str, Any]) -> Iterator[str]:
    before, after, difference = (row.get(name) for name in ("before", "after", "difference"))
    if _number(before) and _number(after) and _number(difference):
        loose = 3 * _rounding([before, after, difference]) + SLACK
        if abs(after - before - difference) > loose:
            yield (
                f"{place}.difference is {_short(difference)}, but from {_short(before)} to {_short(after)} it is "
                f"{_short(after - before)}"
            )
    if _number(difference):
        yield from _interval(f"{place}.difference", difference, row, biased=place.endswith(".macro_f1"))
    p, adjusted = row.get("p"), row.get("p_adjusted")
    for name, value in (("p", p), ("p_adjusted", adjusted)):
        if value is not None and (not _number(value) or not 0 <= value <= 1):
            yield f"{place}.{name} is {value}, and a probability lies between 0 and 1"
    if _number(p) and _number(adjusted) and adjusted < p - SLACK:
        yield f"{place}.p_adjusted is {_short(adjusted)}, below p, which is {_short(p)}: a correction never helps"
    verdict = row.get("verdict")
    primary = place.rpartition(".")[2] in ("reward", "alignment", "macro_f1")
    if primary and verdict in ("better", "worse") and _number(difference) and (difference > 0) != (verdict == "better"):
        yield f"{place}.verdict is {verdict!r}, but the difference is {_short(difference)}"


def _difference_of_pairs(place: str, row: Mapping[str, Any], pairs: Any, name: str) -> Iterator[str]:
    """Recompute the difference from the pairs of tasks, if their number is equal."""
    column = {"reward": 1, "alignment": 3}.get(name)
    if column is None or not isinstance(pairs, list):
        return
    sides = [pair[column : column + 2] for pair in pairs if isinstance(pair, list)]
    changes = [side[1] - side[0] for side in sides if len(side) == 2 and all(map(_number, side))]
    difference = row.get("difference")
    if not changes or not _number(difference) or len(changes) != row.get("n"):
        return
    if abs(fmean(changes) - difference) > _rounding([difference]) + SLACK:
        yield f"{place}.difference is {_short(difference)}, but the report's pairs give {_short(fmean(changes))}"


def _weights(report: Mapping[str, Any]) -> dict[str, float]:
    defaults = RewardConfig().model_dump()
    return {**defaults, **_numbers(_mapping(report.get("settings")).get("reward"))}


def _repeats(report: Mapping[str, Any]) -> int:
    repeats = _mapping(report.get("plan")).get("repeats", 1)
    return repeats if isinstance(repeats, int) and repeats > 0 else 1


def _same_rollouts(metrics: Mapping[str, Any], names: Iterable[str], report: Mapping[str, Any], stage: str) -> bool:
    """True if the metrics are means over the same rollouts, so that they must add up.

    A rollout without a judge's score has some parts and no reward.
    """
    return len({_n(metrics[name]) for name in names} - {None}) <= 1 and not _unscored_repeats(report, stage)


def _unscored_repeats(report: Mapping[str, Any], stage: str) -> bool:
    """True if some repeats of a task may lack a value. n counts tasks, so it does not show this."""
    rows = _listed(_mapping(_mapping(report.get("outcomes")).get(stage)))
    values = [row.get("reward") is None or row.get("status") == "failed" for row in rows]
    return _repeats(report) > 1 and any(values)


def _mean(value: Any) -> Any:
    return value.get("mean") if isinstance(value, Mapping) else value


def _n(value: Any) -> Any:
    n = value.get("n") if isinstance(value, Mapping) else None
    return n if _number(n) else None


def _number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _listed(outcome: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    rows = outcome.get("rollouts")
    return [row for row in rows if isinstance(row, Mapping)] if isinstance(rows, list) else []


def _numbers(value: Any) -> dict[str, float]:
    return {key: number for key, number in _mapping(value).items() if _number(number)}


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _rounding(values: Iterable[float]) -> float:
    """Half a unit of the last decimal that any of `values` is written with; 0 when they are not rounded."""
    decimals = max(len(repr(float(value)).partition("e")[0].partition(".")[2]) for value in values)
    tiny = any("e-" in repr(float(value)) for value in values)
    return 0.0 if tiny or decimals >= EXACT_DECIMALS else 0.5 * 10.0**-decimals


def _short(value: float) -> str:
    return f"{value:.6g}"
