"""A run's metrics as series to draw, read from the lines of its metrics.jsonl or from the same lines in W&B.

A line is {"time", "phase", "step", ...values} (see `training.watch.metrics`). Missing values are left out, so an empty
result means that there is nothing to draw.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from typing import Any

from evaluation.measures.off_policy import Estimate
from evaluation.records.study import GATE

Line = Mapping[str, Any]

ROLLOUT = "rollout"
"""The phase name of lines about one finished rollout."""
ESTIMATES = ("logged", "ips", "snips", "dr", "gain")
"""The bandit's values with intervals: mean reward of the log, three estimates of its policy's value, and its gain."""


@dataclass(frozen=True, slots=True)
class RolloutPoint:
    """One finished rollout. `number` counts rollouts from 1 in the order of their ends. Failed ones have no reward."""

    number: int
    phase: str
    reward: float | None
    parts: Mapping[str, float | None]


@dataclass(frozen=True, slots=True)
class PhaseStretch:
    """Consecutive rollouts of one phase.

    Attributes:
        phase: The phase; for rollouts of validation the stage, such as "base".
        held_out: True if training's gate made them, on tasks that are not learned from.
    """

    phase: str
    held_out: bool
    points: tuple[RolloutPoint, ...]


@dataclass(frozen=True, slots=True)
class Forecast:
    """The estimated value of the bandit's policy before it was used.

    Attributes:
        step: Number of rounds of its own choices in the log.
        choices: Number of logged choices.
        ess: Kish's effective sample size of the log for this policy.
        estimates: The estimates by name (see `ESTIMATES`), without those that the log does not allow.
    """

    step: int
    choices: int
    ess: float
    estimates: Mapping[str, Estimate]


def rollouts(lines: Iterable[Line]) -> list[RolloutPoint]:
    points = {
        line["step"]: RolloutPoint(line["step"], line["of"], line.get("reward"), line.get("parts") or {})
        for line in lines
        if line["phase"] == ROLLOUT
    }
    return [points[number] for number in sorted(points)]


def spans(points: Iterable[RolloutPoint]) -> list[PhaseStretch]:
    """The rollouts, split where the phase changes."""
    groups = groupby(points, attrgetter("phase"))
    return [
        PhaseStretch(phase.removeprefix(f"{GATE}-"), phase.startswith(f"{GATE}-"), tuple(group))
        for phase, group in groups
    ]


def running_mean(values: Sequence[float | None], window: int, least: int = 1) -> list[float | None]:
    """For each position, the mean of the last `window` values up to it.

    Missing values do not count. Positions with fewer than `least` values have no mean.
    """
    means: list[float | None] = []
    for end in range(1, len(values) + 1):
        present = [value for value in values[max(0, end - window) : end] if value is not None]
        means.append(sum(present) / len(present) if len(present) >= max(1, least) else None)
    return means


def part_names(points: Iterable[RolloutPoint]) -> list[str]:
    """The reward's parts that have a value anywhere, in the order of first appearance."""
    return list(dict.fromkeys(name for point in points for name, value in point.parts.items() if value is not None))


def series(lines: Iterable[Line], phase: str, key: str) -> list[tuple[int, float]]:
    """One metric of a phase by step. A resumed run repeats steps: the last line of a step counts."""
    by_step = {
        line["step"]: float(line[key])
        for line in lines
        if line["phase"] == phase and line["step"] is not None and line.get(key) is not None
    }
    return sorted(by_step.items())


def forecasts(lines: Iterable[Line], phase: str) -> list[Forecast]:
    """The value estimates of a phase that learns to choose, in the order of its rounds."""
    by_step: dict[int, Forecast] = {}
    for line in lines:
        if line["phase"] == phase and line["step"] is not None and "choices" in line:
            estimates = {name: estimate for name in ESTIMATES if (estimate := _estimate(line, name)) is not None}
            by_step[line["step"]] = Forecast(line["step"], line["choices"], line["ess"], estimates)
    return [by_step[step] for step in sorted(by_step)]


def _estimate(line: Line, name: str) -> Estimate | None:
    values = [float(value) for end in ("", "_low", "_high") if (value := line.get(f"{name}{end}")) is not None]
    return Estimate(*values) if len(values) == 3 else None
