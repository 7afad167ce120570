"""A run's metrics as series to draw, read from the lines of its metrics.jsonl or from the same lines out of W&B.

A line is {"time", "phase", "step", ...values} (see `training.watch.metrics`). What a feed does not have is left out
here, so an empty result means that there is nothing to draw.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from evaluation.measures.off_policy import Estimate
from evaluation.records.study import GATE

Line = Mapping[str, Any]

ROLLOUT = "rollout"
"""The phase name of lines that tell of one finished rollout."""
ESTIMATES = ("logged", "ips", "snips", "dr", "gain")
"""The bandit's figures with intervals: what the logged choices earned, three estimates of its policy, and its gain."""


@dataclass(frozen=True, slots=True)
class RolloutPoint:
    """One finished rollout; `number` counts from 1 in the order in which they ended, a failed one has no reward."""

    number: int
    phase: str
    reward: float | None
    parts: Mapping[str, float | None]


@dataclass(frozen=True, slots=True)
class PhaseStretch:
    """Consecutive rollouts of one phase.

    Attributes:
        phase: The phase; for held-out rollouts the stage, such as "base".
        held_out: Whether training's gate made them: other tasks than those that are learned from.
        points: The rollouts.
    """

    phase: str
    held_out: bool
    points: tuple[RolloutPoint, ...]


@dataclass(frozen=True, slots=True)
class Forecast:
    """What the bandit's policy was expected to earn before it was tried.

    Attributes:
        step: How many rounds of its own choices were among those that it is estimated from.
        choices: Logged choices.
        ess: How many choices of its own they are worth (Kish's effective sample size).
        estimates: By name, see `ESTIMATES`; one that the log could not give is missing.
    """

    step: int
    choices: int
    ess: float
    estimates: Mapping[str, Estimate]


def rollouts(lines: Iterable[Line]) -> list[RolloutPoint]:
    """The finished rollouts, by number."""
    found = {
        line["step"]: RolloutPoint(line["step"], line["of"], line.get("reward"), line.get("parts") or {})
        for line in lines
        if line["phase"] == ROLLOUT
    }
    return [found[number] for number in sorted(found)]


def spans(points: Iterable[RolloutPoint]) -> list[PhaseStretch]:
    """The rollouts, cut where the phase changes."""
    groups: list[list[RolloutPoint]] = []
    for point in points:
        if not groups or groups[-1][0].phase != point.phase:
            groups.append([])
        groups[-1].append(point)
    return [_span(group) for group in groups]


def _span(group: Sequence[RolloutPoint]) -> PhaseStretch:
    phase = group[0].phase
    held_out = phase.startswith(f"{GATE}-")
    return PhaseStretch(phase.removeprefix(f"{GATE}-"), held_out, tuple(group))


def running_mean(values: Sequence[float | None], window: int, least: int = 1) -> list[float | None]:
    """At each position the mean of the last `window` values up to it.

    Missing values do not count; where fewer than `least` are left there is no mean.
    """
    means: list[float | None] = []
    for end in range(1, len(values) + 1):
        known = [value for value in values[max(0, end - window) : end] if value is not None]
        means.append(sum(known) / len(known) if len(known) >= max(1, least) else None)
    return means


def part_names(points: Iterable[RolloutPoint]) -> list[str]:
    """The reward's parts that have a value anywhere, in the order of first appearance."""
    return list(dict.fromkeys(name for point in points for name, value in point.parts.items() if value is not None))


def series(lines: Iterable[Line], phase: str, key: str) -> list[tuple[int, float]]:
    """One figure of a phase by step; of several lines for a step the last counts, for a resumed run repeats some."""
    found = {
        line["step"]: float(line[key])
        for line in lines
        if line["phase"] == phase and line["step"] is not None and line.get(key) is not None
    }
    return sorted(found.items())


def forecasts(lines: Iterable[Line], phase: str) -> list[Forecast]:
    """The value estimates of a phase that learns to choose, in the order of its rounds."""
    found: dict[int, Forecast] = {}
    for line in lines:
        if line["phase"] == phase and line["step"] is not None and "choices" in line:
            estimates = {name: estimate for name in ESTIMATES if (estimate := _estimate(line, name)) is not None}
            found[line["step"]] = Forecast(line["step"], line["choices"], line["ess"], estimates)
    return [found[step] for step in sorted(found)]


def _estimate(line: Line, name: str) -> Estimate | None:
    values = [float(value) for end in ("", "_low", "_high") if (value := line.get(f"{name}{end}")) is not None]
    return Estimate(*values) if len(values) == 3 else None
