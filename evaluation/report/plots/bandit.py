"""The plot of the bandit's estimated value beside the reward that its policy earned."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from evaluation.measures.comparison import Comparison, Comparisons
from evaluation.measures.metrics import interval_settings
from evaluation.measures.statistics import bootstrap_mean
from evaluation.records.plan import ALONE
from evaluation.records.study import BASE, SPLITS, Plan, Study
from evaluation.report.plots.curves import Forecast, Line, forecasts, rollouts
from evaluation.report.plots.paper import BLUE, INK, ORANGE, Drawing, Row, intervals, stacked
from evaluation.report.plots.stages import StageMeans

VALUES = {"ips": "IPS", "snips": "SNIPS", "dr": "doubly robust"}


@dataclass(slots=True)
class Panel:
    """Rows of one panel by name: the estimates, then the measured mean reward."""

    title: str
    expected: dict[str, Row] = field(default_factory=dict)
    happened: dict[str, Row] = field(default_factory=dict)


def reliability(
    study: Study, phase: str, lines: Sequence[Line], means: StageMeans, comparisons: Comparisons
) -> Drawing | str:
    """Estimated and measured reward of the bandit's policy; a sentence if nothing was estimated."""
    phase_forecasts = forecasts(lines, phase)
    if not phase_forecasts:
        return f"{phase} has estimated nothing: it has not run, or the run's metrics lack it."
    if not phase_forecasts[-1].estimates:
        return f"{phase} could estimate nothing: fewer than two tasks have choices with known propensities."
    values, gains = (
        _values(study, phase, lines, phase_forecasts, means),
        _gains(study.plan, phase, phase_forecasts, comparisons),
    )
    panels = [*values, *([gains] if gains.expected or gains.happened else [])]
    figure, grid = stacked([len(panel.expected) + len(panel.happened) for panel in panels])
    for axes, panel in zip(grid, panels, strict=True):
        rows = panel.expected | panel.happened
        intervals(axes, [*rows.values()], [BLUE if name in panel.expected else ORANGE for name in rows])
        axes.set_yticks(range(len(rows)), [*rows])
        axes.set_title(panel.title)
        if panel is gains:
            axes.axvline(0, color=INK, linewidth=0.9, alpha=0.6)
    ends = [axes.get_xlim() for axes in grid[: len(values)]]
    for axes in grid[: len(values)]:
        axes.set_xlim(min(low for low, _ in ends), max(high for _, high in ends))
    return Drawing(figure, _caption(study.plan, phase, phase_forecasts[-1], comparisons))


def _values(
    study: Study, phase: str, lines: Sequence[Line], phase_forecasts: Sequence[Forecast], means: StageMeans
) -> list[Panel]:
    """The first estimate beside the bandit's own rollouts, and the last one beside the report's tasks."""
    rewards = [point.reward for point in rollouts(lines) if point.phase == phase and point.reward is not None]
    first = _panel("reward, estimated before its first choice", phase_forecasts[0])
    if rewards:
        mean = bootstrap_mean(rewards, **interval_settings(study.config))
        first.happened["its own rollouts"] = (mean.mean, mean.low, mean.high)
    last = first if len(phase_forecasts) == 1 else _panel("reward, estimated with its own choices", phase_forecasts[-1])
    for stage in _around(study.plan, phase):
        if "reward" in means[stage]:
            mean = means[stage]["reward"]
            last.happened[f"{SPLITS[study.plan.split]}, {stage}"] = (mean.mean, mean.low, mean.high)
    return [first] if last is first else [first, last]


def _panel(title: str, forecast: Forecast) -> Panel:
    panel = Panel(title)
    for name, estimator in VALUES.items():
        if (estimate := forecast.estimates.get(name)) is not None:
            panel.expected[estimator] = (estimate.value, estimate.low, estimate.high)
    if (logged := forecast.estimates.get("logged")) is not None:
        panel.happened["all logged choices"] = (logged.value, logged.low, logged.high)
    return panel


def _gains(plan: Plan, phase: str, phase_forecasts: Sequence[Forecast], comparisons: Comparisons) -> Panel:
    panel = Panel("gain over the choice without it")
    for forecast in phase_forecasts if len(phase_forecasts) == 1 else (phase_forecasts[0], phase_forecasts[-1]):
        if (gain := forecast.estimates.get("gain")) is not None:
            when = "before its choices" if forecast.step == 0 else "with its choices"
            panel.expected[f"estimated {when}"] = (gain.value, gain.low, gain.high)
    for pair in (":".join(_around(plan, phase)), f"{BASE}:{ALONE}{phase}"):
        if (comparison := _reward(comparisons, pair)) is not None:
            panel.happened[f"{SPLITS[plan.split]}, {pair.replace(':', ' to ')}"] = (
                comparison.difference,
                comparison.low,
                comparison.high,
            )
    return panel


def _around(plan: Plan, phase: str) -> list[str]:
    """The stages right before and after the phase; empty if one of them was not evaluated."""
    pairs = pairwise(stage for stage in plan.stages if stage.kind == "sequence")
    near = (
        pair for pair in pairs if pair[1].own_name == phase and plan.phases_at(pair[1]) - plan.phases_at(pair[0]) == 1
    )
    return [stage.name for stage in next(near, ())]


def _reward(comparisons: Comparisons, pair: str) -> Comparison | None:
    return comparisons.get(pair, {}).get("reward")


def _caption(plan: Plan, phase: str, last: Forecast, comparisons: Comparisons) -> str:
    split = SPLITS[plan.split]
    text = (
        "Blue was estimated from logged choices on training tasks; "
        f"orange was earned. {split.capitalize()} tasks are other tasks, so their level may differ and their gain "
        "should not. "
        f"The last estimate rests on {last.choices} choices, worth {last.ess:.0f} of the policy's own."
    )
    gain = last.estimates.get("gain")
    happened = _reward(comparisons, ":".join(_around(plan, phase)))
    if gain is None or happened is None or happened.low is None or happened.high is None:
        return text
    apart = happened.high < gain.low or gain.high < happened.low
    return (
        f"{text} The last estimate of the gain is {gain.value:+z.3f} ({gain.low:+z.3f} to {gain.high:+z.3f}), on "
        f"{split} tasks it was {happened.difference:+z.3f} ({happened.low:+z.3f} to {happened.high:+z.3f}): the "
        f"intervals {'do not overlap, so the estimate cannot be relied on' if apart else 'overlap'}."
    )
