"""What a run's phases are doing, what the gate decided, and how long the whole run will take."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from chimera.config.source import read_yaml
from chimera.core.errors import ChimeraError
from chimera.run.chain import read_events
from chimera.run.directory import LEDGER
from chimera.run.policies import ROLLED_BACK, WENT_LIVE
from evaluation.records.study import BASE, GATE
from evaluation.view.reading.watched import Snapshot

BASE_WORK, ROLLOUTS, CALLS = "validation with the base", "rollouts", "prompts asked again"
UPDATES, GATE_WORK = "updates", "validation at the gate"
"""The kinds of work of a phase."""

LEAST_SHARE = 0.1
"""A phase that takes longer than was expected is taken to have this share of it left."""

LOOKED_AT = 12
"""The number of other runs that are looked at, the newest."""
ALSO = ("gate.tasks", "rollouts.concurrency")
"""Settings outside a phase's own that change how long it takes."""

PhaseState = Literal["waits", "runs", "stopped", "failed", "finished"]
RunState = Literal["runs", "evaluates", "stopped", "failed", "finished", "empty"]


@dataclass(frozen=True, slots=True)
class GateDecision:
    """What the gate decided about one phase's policy.

    Attributes:
        policy: The policy's version.
        live: True if it went live, False if it was rolled back.
        reasons: Why it was rolled back.
        comparisons: What it was compared with, as the gate wrote it.
    """

    phase: str
    policy: str
    live: bool
    reasons: Sequence[str]
    comparisons: Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class PhaseWork:
    """What a phase does now: `done` of `total` units, such as updates; `total` is None where nothing tells it."""

    what: str
    done: int
    total: int | None


@dataclass(frozen=True, slots=True)
class ShownPhase:
    """One phase of a run.

    Attributes:
        works: What it does or did, in order.
        seconds: How long it took, or has taken since it was last started; None if it has not begun.
        left: About how many seconds it will still take; None if nothing tells.
        policy: The policy that it learned, by version.
        kept: True if that policy went live, False if it was rolled back, None if that is not decided.
    """

    name: str
    algorithm: str
    state: PhaseState
    works: tuple[PhaseWork, ...]
    seconds: float | None
    left: float | None
    policy: str | None
    kept: bool | None
    error: str | None

    @property
    def share(self) -> float | None:
        """About how much of it is done, from 0 to 1; None if that is not known."""
        if self.state in ("finished", "waits"):
            return float(self.state == "finished")
        if self.left is not None and self.seconds is not None and self.left + self.seconds > 0:
            return self.seconds / (self.left + self.seconds)
        return None


def shown_phases(
    snapshot: Snapshot, *, running: bool, now: float, earlier: Mapping[str, float] | None = None
) -> list[ShownPhase]:
    """The planned phases of a run, and those that ran beside the last plan.

    Args:
        running: True if a process trains it.
        now: Seconds since 1970.
        earlier: Seconds that the phases took in other runs with the same settings.
    """
    planned = [str(name) for event in snapshot.events if event["event"] == "planned" for name in event["phases"]]
    begun = [str(event["phase"]) for event in snapshot.events if event["event"] == "phase_started"]
    names = list(dict.fromkeys([*planned, *begun]))
    first = next((name for name in names if _learns(snapshot, name)), None)
    costs = _costs(snapshot, names, first)
    phases = [_phase(snapshot, name, running, now, first) for name in names]
    rate = _rate(phases, costs)
    expected = {name: rate * cost for name, cost in costs.items()} if rate is not None else {}
    return [replace(phase, left=_left(phase, {**expected, **(earlier or {})}.get(phase.name))) for phase in phases]


def decisions(snapshot: Snapshot) -> list[GateDecision]:
    """The gate's decisions of a run in their order."""
    return [
        GateDecision(
            phase=event["phase"],
            policy=event["policy"]["version"],
            live=event["event"] == WENT_LIVE,
            reasons=event.get("reasons", ()),
            comparisons=snapshot.gates.get(event["phase"], {}).get("comparisons", ()),
        )
        for event in snapshot.events
        if event["event"] in (WENT_LIVE, ROLLED_BACK)
    ]


def state_of(phases: Sequence[ShownPhase], *, running: bool, evaluates: bool = False) -> RunState:
    if evaluates:
        return "evaluates"
    if running:
        return "runs"
    if not phases:
        return "empty"
    if all(phase.state == "finished" for phase in phases):
        return "finished"
    return "failed" if any(phase.state == "failed" for phase in phases) else "stopped"


def time_left(phases: Sequence[ShownPhase]) -> tuple[float, list[str]]:
    """Seconds that the phases will still take, as far as that is known, and the phases of which it is not."""
    open_ones = [phase for phase in phases if phase.state != "finished"]
    return sum(phase.left or 0.0 for phase in open_ones), [phase.name for phase in open_ones if phase.left is None]


def phase_seconds(events: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Seconds that each finished phase took, gate included, since its last start."""
    started: dict[str, float] = {}
    seconds: dict[str, float] = {}
    for event in events:
        if event["event"] == "phase_started":
            started[event["phase"]] = seconds_of(event)
        elif event["event"] == "phase_finished" and event["phase"] in started:
            seconds[event["phase"]] = seconds_of(event) - started[event["phase"]]
    return seconds


def seconds_of(event: Mapping[str, Any]) -> float:
    """The time of an event or of a line of metrics, in seconds since 1970."""
    return datetime.fromisoformat(event["time"]).timestamp()


def _learns(snapshot: Snapshot, name: str) -> bool:
    """True if a phase learns, as far as its records tell: it has learned, or the gate or updates have begun."""
    learned = any(event["event"] == "phase_learned" and event["phase"] == name for event in snapshot.events)
    roles = snapshot.settings.get(f"pipeline.{name}.roles")
    return learned or bool(roles) or bool(updates(snapshot, name)) or f"{GATE}-{name}" in snapshot.rows


def _costs(snapshot: Snapshot, names: Sequence[str], first: str | None) -> dict[str, float]:
    """The expected cost of each phase with its gate, in any unit, if the run's plan tells it."""
    plans = [event["costs"] for event in snapshot.events if event["event"] == "planned" and event.get("costs")]
    costs = {part: cost for plan in plans for part, cost in plan.items()}
    return {
        name: costs[name]
        + costs.get(f"{GATE}-{name}", 0.0)
        + (costs.get(f"{GATE}-{BASE}", 0.0) if name == first else 0.0)
        for name in names
        if name in costs
    }


def _rate(phases: Sequence[ShownPhase], costs: Mapping[str, float]) -> float | None:
    """Seconds of one unit of cost, from finished phases, else from a running one; None if nothing tells."""
    priced = [(phase, phase.seconds, costs[phase.name]) for phase in phases if phase.seconds and costs.get(phase.name)]
    finished = [(seconds, cost) for phase, seconds, cost in priced if phase.state == "finished"]
    if finished:
        return sum(seconds for seconds, _ in finished) / sum(cost for _, cost in finished)
    for phase, seconds, cost in priced:
        work = phase.works[-1] if phase.works else None
        if phase.state == "runs" and work and work.total and work.done:
            return seconds * work.total / work.done / cost
    return None


def _phase(snapshot: Snapshot, name: str, running: bool, now: float, first: str | None) -> ShownPhase:
    events = [event for event in snapshot.events if event.get("phase") == name]
    kinds = [event["event"] for event in events]
    state = _state(kinds, running)
    starts = [seconds_of(event) for event in events if event["event"] == "phase_started"]
    finished = phase_seconds(events).get(name)
    until = now if state == "runs" else seconds_of(events[-1]) if events else now
    seconds = finished if finished is not None else until - starts[-1] if starts else None
    works = tuple(_works(snapshot, name, first=name == first))
    learned = [event["policy"]["version"] for event in events if "policy" in event]
    decided = [kind == WENT_LIVE for kind in kinds if kind in (WENT_LIVE, ROLLED_BACK)]
    error = str(events[-1].get("error")) if state == "failed" else None
    return ShownPhase(
        name=name,
        algorithm=str(snapshot.settings.get(f"pipeline.{name}.algorithm", name)),
        state=state,
        works=works,
        seconds=seconds,
        left=None,
        policy=learned[-1] if learned else None,
        kept=decided[-1] if decided else None,
        error=error,
    )


def _state(kinds: Sequence[str], running: bool) -> PhaseState:
    if "phase_finished" in kinds:
        return "finished"
    if "phase_started" not in kinds:
        return "waits"
    if kinds[-1] == "phase_failed":
        return "failed"
    return "runs" if running and kinds[-1] != "phase_interrupted" else "stopped"


def _works(snapshot: Snapshot, name: str, *, first: bool) -> list[PhaseWork]:
    """What a phase did, in order; the `first` one that learns had the base tried before it."""
    settings = {
        key.removeprefix(f"pipeline.{name}."): value
        for key, value in snapshot.settings.items()
        if key.startswith(f"pipeline.{name}.")
    }
    held_out, steps = _whole(snapshot.settings.get("gate.tasks")), len(updates(snapshot, name))
    works = [
        PhaseWork(BASE_WORK, len(snapshot.rows.get(f"{GATE}-{BASE}", ())) if first else 0, held_out),
        PhaseWork(ROLLOUTS, len(snapshot.rows.get(name, ())), _rollouts(settings)),
        PhaseWork(CALLS, snapshot.calls.get(name, 0), None),
        PhaseWork(UPDATES, steps, _whole(settings.get("steps"))),
        PhaseWork(GATE_WORK, len(snapshot.rows.get(f"{GATE}-{name}", ())), held_out),
    ]
    return [work for work in works if work.done]


def updates(snapshot: Snapshot, phase: str) -> list[Mapping[str, Any]]:
    """The lines of metrics.jsonl about the phase's updates; of several about one step the last."""
    by_step = {line["step"]: line for line in snapshot.lines if line.get("phase") == phase and line.get("step")}
    return [by_step[step] for step in sorted(by_step)]


def _rollouts(settings: Mapping[str, Any]) -> int | None:
    tasks = _whole(settings.get("tasks"))
    return tasks * (_whole(settings.get("repeats")) or 1) * (_whole(settings.get("rounds")) or 1) if tasks else None


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _left(phase: ShownPhase, expected: float | None) -> float | None:
    """About how many seconds a phase will still take: by what was expected, else by what is done of its last work."""
    if phase.state == "finished":
        return 0.0
    if phase.state != "runs" or phase.seconds is None:
        return expected
    if expected is not None and phase.seconds < expected:
        return expected - phase.seconds
    work = phase.works[-1] if phase.works else None
    if work and work.total:
        return phase.seconds * max(0.0, work.total / work.done - 1)
    return None if expected is None else LEAST_SHARE * expected


def earlier_seconds(snapshot: Snapshot, others: Iterable[Path]) -> dict[str, float]:
    """Seconds of each phase in the newest other run that finished it with the same settings.

    Args:
        others: The folders of other runs, newest first.
    """
    seconds_by_phase: dict[str, float] = {}
    for folder in list(others)[:LOOKED_AT]:
        ledger = folder / LEDGER
        if folder == snapshot.run or not ledger.is_file():
            continue
        seconds, settings = _phases_of(folder, ledger.stat().st_mtime_ns)
        for phase, spent in seconds.items():
            if phase not in seconds_by_phase and _same_settings(phase, settings, snapshot.settings):
                seconds_by_phase[phase] = spent
    return seconds_by_phase


def _same_settings(phase: str, settings: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """True if both runs give the phase the same settings."""
    keys = {key for key in (*settings, *other) if key.startswith(f"pipeline.{phase}.") or key in ALSO}
    return all(settings.get(key) == other.get(key) for key in keys)


@lru_cache(maxsize=64)
def _phases_of(folder: Path, _changed: int) -> tuple[dict[str, float], dict[str, Any]]:
    """Seconds of the finished phases of a run, and its settings; none if it cannot be read."""
    try:
        seconds = phase_seconds(list(read_events(folder / LEDGER)))
        return seconds, {key: entry.value for key, entry in read_yaml(folder / "config.yaml").items()}
    except (ChimeraError, OSError):
        return {}, {}
