"""Plots of training: rewards, their parts, and the metrics of the learners."""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from evaluation.report.plots.curves import (
    Line,
    PhaseStretch,
    RolloutPoint,
    part_names,
    rollouts,
    running_mean,
    series,
    spans,
)
from evaluation.report.plots.paper import BLUE, INK, ORANGE, Drawing, panels
from evaluation.scores.rewards import part_title

WINDOW = 30
LEAST = 10
"""Least number of rollouts in a running mean. With fewer, the mean depends too much on single rollouts."""
FLAT = 1e-9
LINES = (
    f"Blue is training, its line the mean of the last {WINDOW} rollouts, anew in each phase. Orange is validation, its "
    "line the mean of the stage: the same tasks with the same seeds each time, which training tasks are not."
)
PPO = {
    "reward/mean": "mean reward",
    "alignment/mean": "share of answers right",
    "actor/ppo_kl": "KL to the sampling policy",
    "actor/kl_loss": "KL to the reference",
    "actor/pg_clipfrac": "clip fraction",
    "actor/entropy": "entropy, nats",
    "actor/grad_norm": "gradient norm",
    "critic/vf_loss": "value loss",
    "critic/vf_explained_var": "value: explained variance",
    "response_length/mean": "answer length, tokens",
    "group/zero_variance": "share of groups without variance",
    "group/differs_only_by_input": "share of groups that differ only by input",
}
"""VeRL's names of the PPO metrics that are drawn. Metrics that a run does not have are left out."""
SFT = {
    "loss": "loss",
    "token_accuracy": "token accuracy",
    "entropy": "entropy, nats",
    "grad_norm": "gradient norm",
}

SEARCH = {"right": "share of answers right", "best": "the same, best so far", "reward": "mean reward"}
LEARNERS = (
    (PPO, "step", "One point a step. Rewards are of the step's own training tasks, which differ from step to step."),
    (SFT, "step", "One point a step, on the conversations that are learned from."),
    (
        SEARCH,
        "candidate",
        "One point a candidate that was tried on the phase's whole search share of the training tasks.",
    ),
)
"""The titles of metrics of each kind of learner, its unit, and its caption; the first that a phase has is drawn."""


def reward(lines: Sequence[Line]) -> Drawing | str:
    """Reward of each rollout with a running mean and marked phases; a sentence if there is no reward."""
    points = rollouts(lines)
    if not any(point.reward is not None for point in points):
        return _no_rollouts(points)
    figure, (axes,) = panels(1, 1, 3.7)
    for span in spans(points):
        rewards = [point.reward for point in span.points]
        axes.plot(
            [point.number for point in span.points],
            [math.nan if value is None else value for value in rewards],
            ".",
            color=_colour(span.held_out),
            alpha=0.5,
            markersize=4,
            markeredgewidth=0,
        )
        mean = _mean_line(axes, span, rewards)
        if mean is not None and span.held_out:
            axes.annotate(
                f"{mean:z.2f}", (_middle(span), mean), (0, 3), textcoords="offset points", ha="center", weight="bold"
            )
    _mark_phases(axes, spans(points))
    _name_phases(axes, spans(points))
    axes.set_xlabel("rollout")
    axes.set_ylabel("reward")
    axes.grid(axis="y")
    failed = sum(point.reward is None for point in points)
    lost = f" {failed} of {len(points)} rollouts have no reward and no dot." if failed else ""
    return Drawing(
        figure,
        f"A dot is a rollout. {LINES}{lost}",
    )


def parts(lines: Sequence[Line]) -> Drawing | str:
    """Running means of the reward's parts, one panel each; a sentence if there are no parts."""
    points = rollouts(lines)
    names = part_names(points)
    if not names:
        return _no_rollouts(points)
    moving = [name for name in names if not _flat([point.parts.get(name) for point in points])]
    constant = [name for name in names if name not in moving]
    if not moving:
        names = ", ".join(map(part_title, constant))
        return f"No part of the reward ever changed: {names} had the same value in every rollout."
    figure, grid = panels(len(moving), 2, 1.45)
    for axes, name in zip(grid, moving, strict=True):
        for span in spans(points):
            _mean_line(axes, span, [point.parts.get(name) for point in span.points])
        _mark_phases(axes, spans(points))
        axes.set_title(part_title(name))
        axes.grid(axis="y")
        axes.yaxis.set_major_locator(MaxNLocator(3))
        axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
    figure.supxlabel("rollout", fontsize=9.5)
    still = (
        f" Not drawn, because the same in every rollout: {', '.join(map(part_title, constant))}." if constant else ""
    )
    return Drawing(
        figure,
        f"Means of each part of the reward, weight included: the parts add up to the reward. {LINES}{still}",
    )


def steps(lines: Sequence[Line], phase: str) -> Drawing | str:
    """Metrics by step of a phase that learns weights; a sentence if there are none."""
    for titles, unit, caption in LEARNERS:
        if curves := {title: points for key, title in titles.items() if (points := series(lines, phase, key))}:
            return _curves(phase, curves, caption, unit)
    return f"{phase} has not run, or has not finished a step: the run's metrics have no line of it."


def _curves(phase: str, curves: Mapping[str, list[tuple[int, float]]], caption: str, unit: str) -> Drawing | str:
    """A panel for each metric that changes; a sentence if none does. Constant ones are named with their value."""
    constant = {title: points[0][1] for title, points in curves.items() if _flat([value for _, value in points])}
    moving = {title: points for title, points in curves.items() if title not in constant}
    if not moving:
        steps = max(len(points) for points in curves.values())
        return f"{phase} has no curve: {'it made one step' if steps == 1 else 'no metric changed from step to step'}."
    figure, grid = panels(len(moving), 2, 1.45)
    for axes, (title, points) in zip(grid, moving.items(), strict=True):
        axes.plot(*zip(*points, strict=True), "o-", color=BLUE, markersize=3.5, linewidth=1.5)
        axes.set_title(title)
        axes.grid(axis="y")
        axes.yaxis.set_major_locator(MaxNLocator(3))
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True, steps=[1, 2, 5, 10]))
    figure.supxlabel(unit, fontsize=9.5)
    return Drawing(figure, caption + _constant_words(constant))


def _constant_words(constant: Mapping[str, float]) -> str:
    """Which metrics are not drawn, with their values, and why KL and clip fraction are 0."""
    if not constant:
        return ""
    still = ", ".join(f"{title} {value:z.4g}" for title, value in constant.items())
    zero = {title for title, value in constant.items() if value == 0}
    on_policy = {PPO["actor/ppo_kl"], PPO["actor/pg_clipfrac"]} <= zero
    why = (
        " KL to the sampling policy and clip fraction are 0 because each batch is learned from once, by the weights "
        "that sampled it."
    )
    return f" Not drawn, because the same in every step: {still}.{why * on_policy}"


def _mean_line(axes: Axes, span: PhaseStretch, values: Sequence[float | None]) -> float | None:
    """Draw the running mean of training rollouts. Rollouts of validation have no meaningful order: draw their mean."""
    numbers = [point.number for point in span.points]
    means = running_mean(values, len(values) if span.held_out else WINDOW, 1 if span.held_out else LEAST)
    if span.held_out:
        numbers, means = [numbers[0] - 0.5, numbers[-1] + 0.5], [means[-1]] * 2
    present = [(number, mean) for number, mean in zip(numbers, means, strict=True) if mean is not None]
    if not present:
        return None
    axes.plot(*zip(*present, strict=True), color=_colour(span.held_out), linewidth=2, solid_capstyle="butt")
    return present[-1][1]


def _mark_phases(axes: Axes, stretches: Sequence[PhaseStretch]) -> None:
    """Draw a line wherever the phase changes."""
    axes.set_xlim(stretches[0].points[0].number - 1, stretches[-1].points[-1].number + 1)
    for left, right in pairwise(stretches):
        between = (left.points[-1].number + right.points[0].number) / 2
        axes.axvline(between, color=INK, alpha=0.3, linewidth=0.7, linestyle=(0, (3, 2)))


def _name_phases(axes: Axes, stretches: Sequence[PhaseStretch]) -> None:
    """Write the phases' names above the panel: training in one row, validation in another."""
    left, right = axes.get_xlim()
    names = [("training", False, left - 0.02 * (right - left), "right")]
    names += [("validation", True, left - 0.02 * (right - left), "right")]
    names += [(span.phase, span.held_out, _middle(span), "center") for span in stretches]
    for name, held_out, place, side in names:
        axes.annotate(
            name,
            (place, 1),
            (0, 4 if held_out else 17),
            xycoords=("data", "axes fraction"),
            textcoords="offset points",
            ha=side,
            color=_colour(held_out),
        )


def _middle(span: PhaseStretch) -> float:
    return (span.points[0].number + span.points[-1].number) / 2


def _colour(held_out: bool) -> str:
    return ORANGE if held_out else BLUE


def _flat(values: Sequence[float | None]) -> bool:
    present = [value for value in values if value is not None]
    return max(present) - min(present) < FLAT


def _no_rollouts(points: Sequence[RolloutPoint]) -> str:
    if points:
        return f"None of the {len(points)} rollouts in the run's metrics has a reward."
    return "The run's metrics have no rollout."
