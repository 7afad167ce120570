"""What a run's phases are doing, how far they are, and how long the whole run will take."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from chimera.run.policies import ROLLED_BACK, WENT_LIVE
from evaluation.records.study import BASE, GATE
from evaluation.view.watched import Snapshot

PhaseState = Literal["waits", "runs", "stopped", "failed", "finished"]
RunState = Literal["runs", "stopped", "failed", "finished", "empty"]


@dataclass(frozen=True, slots=True)
class Work:
    """What a phase does now: `done` of `total` units, such as updates; `total` is None where nothing tells it."""

    what: str
    done: int
    total: int | None


@dataclass(frozen=True, slots=True)
class ShownPhase:
    """One phase of a run.

    Attributes:
        algorithm: The algorithm that it runs.
        works: What it does or did, in order.
        seconds: How long it took, or has taken since it was last started; None if it has not begun.
        left: About how many seconds it will still take; None if nothing tells.
        policy: The policy that it learned, by version.
        kept: True if that policy went live, False if it was rolled back, None if that is not decided.
        error: Why it failed.
    """

    name: str
    algorithm: str
    state: PhaseState
    works: tuple[Work, ...]
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
        snapshot: The run.
        running: True if a process writes it.
        now: Seconds since 1970.
        earlier: Seconds that the phases took in other runs with the same settings.
    """
    planned = [str(name) for event in snapshot.events if event["event"] == "planned" for name in event["phases"]]
    begun = [str(event["phase"]) for event in snapshot.events if event["event"] == "phase_started"]
    names = list(dict.fromkeys([*planned, *begun]))
    return [_phase(snapshot, name, running, now, (earlier or {}).get(name)) for name in names]


def state_of(phases: Sequence[ShownPhase], *, running: bool) -> RunState:
    """The state of the whole run."""
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
    found: dict[str, float] = {}
    for event in events:
        if event["event"] == "phase_started":
            started[event["phase"]] = seconds_of(event)
        elif event["event"] == "phase_finished" and event["phase"] in started:
            found[event["phase"]] = seconds_of(event) - started[event["phase"]]
    return found


def seconds_of(event: Mapping[str, Any]) -> float:
    """The time of an event or of a line of metrics, in seconds since 1970."""
    return datetime.fromisoformat(event["time"]).timestamp()


def _phase(snapshot: Snapshot, name: str, running: bool, now: float, earlier: float | None) -> ShownPhase:
    own = [event for event in snapshot.events if event.get("phase") == name]
    kinds = [event["event"] for event in own]
    state = _state(kinds, running)
    starts = [seconds_of(event) for event in own if event["event"] == "phase_started"]
    finished = phase_seconds(own).get(name)
    until = now if state == "runs" else seconds_of(own[-1]) if own else now
    seconds = finished if finished is not None else until - starts[-1] if starts else None
    works = tuple(_works(snapshot, name, learned="phase_learned" in kinds))
    learned = [event["policy"]["version"] for event in own if "policy" in event]
    decided = [kind == WENT_LIVE for kind in kinds if kind in (WENT_LIVE, ROLLED_BACK)]
    error = str(own[-1].get("error")) if state == "failed" else None
    return ShownPhase(
        name=name,
        algorithm=str(snapshot.settings.get(f"pipeline.{name}.algorithm", name)),
        state=state,
        works=works,
        seconds=seconds,
        left=_left(state, works, seconds, earlier),
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


def _works(snapshot: Snapshot, name: str, *, learned: bool) -> list[Work]:
    """The gate on the society before it if it has to be tried first, rollouts, updates, and the gate after it."""
    settings = {
        key.removeprefix(f"pipeline.{name}."): value
        for key, value in snapshot.settings.items()
        if key.startswith(f"pipeline.{name}.")
    }
    rollouts, steps = len(snapshot.rows.get(name, ())), updates(snapshot, name)
    held_out = snapshot.settings.get("gate.tasks")
    works: list[Work] = []
    if rollouts:
        works.append(Work("rollouts", rollouts, _rollouts(settings)))
    if steps:
        works.append(Work("updates", len(steps), _whole(settings.get("steps"))))
    if gate := len(snapshot.rows.get(f"{GATE}-{name}", ())):
        works.append(Work("held out at the gate", gate, _whole(held_out)))
    elif not works and not learned:
        base = len(snapshot.rows.get(f"{GATE}-{BASE}", ()))
        if base and held_out is not None and base < int(held_out):
            works.append(Work("held out with the base", base, int(held_out)))
    return works


def updates(snapshot: Snapshot, phase: str) -> list[Mapping[str, Any]]:
    """The lines of metrics.jsonl about the phase's updates; of several about one step the last."""
    found = {line["step"]: line for line in snapshot.lines if line.get("phase") == phase and line.get("step")}
    return [found[step] for step in sorted(found)]


def _rollouts(settings: Mapping[str, Any]) -> int | None:
    tasks = _whole(settings.get("tasks"))
    return tasks * (_whole(settings.get("repeats")) or 1) * (_whole(settings.get("rounds")) or 1) if tasks else None


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _left(state: PhaseState, works: Sequence[Work], seconds: float | None, earlier: float | None) -> float | None:
    """About how many seconds a phase will still take: by an earlier run, else by what is done of its last work."""
    if state == "finished":
        return 0.0
    if earlier is not None and state == "waits":
        return earlier
    if earlier is not None and seconds is not None and seconds < earlier:
        return earlier - seconds
    if works and works[-1].total and works[-1].done and seconds is not None:
        return seconds * max(0.0, works[-1].total / works[-1].done - 1)
    return None
