"""The list of runs, one run, and two runs beside each other."""

import time
from dataclasses import dataclass
from functools import partial
from typing import Any

from fastapi import APIRouter, Request
from markupsafe import Markup
from starlette.responses import HTMLResponse

from chimera.core.errors import ChimeraError, ConfigError, RunError
from chimera.run.directory import Run
from chimera.run.owner import owner
from chimera.show import html
from chimera.show.blocks import Note, Text, joined
from evaluation.records.plan import learned_in
from evaluation.records.study import BASE, GATE
from evaluation.report.guidance import learned_guidance, told_table
from evaluation.view.pages.choice import RolloutChoice
from evaluation.view.pages.curves import outcome_drawings, part_drawings, reward_drawings, update_drawings
from evaluation.view.pages.desk import ViewDesk, rollouts_address, run_address
from evaluation.view.pages.figures import Figures
from evaluation.view.pages.pairs import run_blocks
from evaluation.view.pages.phases import (
    RunState,
    ShownPhase,
    decisions,
    earlier_seconds,
    shown_phases,
    state_of,
    time_left,
)
from evaluation.view.reading.watched import Snapshot, WatchedRun

PAGE = 30
"""Runs of one page of the list, the newest first."""


@dataclass(frozen=True, slots=True)
class ListedRun:
    """A run in the list.

    Attributes:
        first: Figures of the first stage that the gate tried; None if it tried none.
        last: Figures of the last one that was kept.
        stages: The names of both stages' rollouts.
    """

    snapshot: Snapshot
    created: str | None
    state: RunState
    phases: list[ShownPhase]
    figures: Figures
    stages: tuple[str, str] | None
    first: Figures | None
    last: Figures | None


def routes(desk: ViewDesk) -> APIRouter:
    router = APIRouter()

    @router.get("/")
    def runs(q: str = "", page: int = 1) -> HTMLResponse:
        stamp = desk.stamp("")
        watched_runs, odd = desk.folder.runs()
        search = q.strip().lower()
        fitting = [watched for watched in watched_runs if search in watched.run.name.lower() or _used(watched, search)]
        first = PAGE * (max(1, page) - 1)
        listed = [listed_run(watched) for watched in fitting[first : first + PAGE]]
        waiting = sum(question.state == "waits" for question in desk.seat.questions())
        return desk.page(
            "runs.html.j2", stamp=stamp, runs=listed, odd=odd, folders=desk.folder.folders(), folder=desk.folder.path,
            q=q, all=len(watched_runs), fitting=len(fitting), page=max(1, page), pages=max(1, -(-len(fitting) // PAGE)),
            waiting=waiting,
        )  # fmt: skip

    @router.get("/runs/{name}")
    def run(name: str) -> HTMLResponse:
        return desk.page("run.html.j2", **_run_values(desk, name))

    @router.get("/compare")
    def compare(request: Request) -> HTMLResponse:
        names = request.query_params.getlist("run")
        if len(names) != 2:
            raise ConfigError(f"{len(names)} runs are chosen: choose two in the list of runs")
        left, right = (desk.folder.open(name).look() for name in names)
        at = joined([Text(name, href=run_address(name)) for name in names], " and ")
        return desk.blocks(" and ".join(names), ["/ ", *at], list(run_blocks(left, right)))

    return router


def listed_run(watched: WatchedRun) -> ListedRun:
    """A run with what the list tells of it."""
    snapshot, writer = watched.look(), owner(watched.run.path)
    evaluates = writer is not None and writer.evaluates
    running = writer is not None and not evaluates
    phases = shown_phases(snapshot, running=running, now=time.time())
    live_phases = [decision.phase for decision in decisions(snapshot) if decision.live]
    stages = [f"{GATE}-{name}" for name in (BASE, *live_phases) if snapshot.rows.get(f"{GATE}-{name}")]
    ends = (stages[0], stages[-1]) if stages else None
    first, last = (Figures.of(snapshot.rows[name]) for name in ends) if ends else (None, None)
    return ListedRun(
        snapshot=snapshot,
        created=_created(watched),
        state=state_of(phases, running=running, evaluates=evaluates),
        phases=phases,
        figures=Figures.of(snapshot.all_rows),
        stages=ends,
        first=first,
        last=last,
    )


def _run_values(desk: ViewDesk, name: str) -> dict[str, Any]:
    stamp = desk.stamp(name)
    watched = desk.folder.open(name)
    snapshot, writer = watched.look(), owner(watched.run.path)
    evaluates = writer is not None and writer.evaluates
    running = writer is not None and not evaluates
    others = [other_run.run for other_run in desk.folder.runs()[0] if other_run.run.name != name]
    earlier = earlier_seconds(snapshot, [other.path for other in others]) if running else {}
    phases = shown_phases(snapshot, running=running, now=time.time(), earlier=earlier)
    left, unknown = time_left(phases)

    address = partial(rollouts_address, name)
    return {
        "stamp": stamp,
        "snapshot": snapshot,
        "run": name,
        "created": _created(watched),
        "process": None if writer is None else writer.process,
        "state": state_of(phases, running=running, evaluates=evaluates),
        "phases": phases,
        "left": left,
        "unknown": unknown,
        "by_earlier": bool(earlier),
        "figures": Figures.of(snapshot.all_rows),
        "stages": {phase: Figures.of(rows) for phase, rows in snapshot.rows.items()},
        "parts": snapshot.parts,
        "decisions": decisions(snapshot),
        "reward": reward_drawings(snapshot, address),
        "small_charts": [*outcome_drawings(snapshot, address)[1:], *part_drawings(snapshot, address)],
        "update_charts": update_drawings(snapshot, address),
        "report": (watched.run.path / "report" / "index.html").is_file(),
        "others": [other.name for other in others],
        "choice": RolloutChoice(),
        "told": _told(watched.run),
    }


def _told(run: Run) -> Markup:
    """What roles learned to be told, as tables; why that cannot be shown where it cannot."""
    try:
        changes = learned_guidance(run.path, run.config.society, learned_in(run))
    except ChimeraError as error:
        return Markup(html.render([Note(str(error))]))
    return Markup(html.render([told_table(change) for change in changes]))


def _created(watched: WatchedRun) -> str | None:
    try:
        return str(watched.run.environment["created"])
    except RunError:
        return None


def _used(watched: WatchedRun, search: str) -> bool:
    """True if one of the run's settings is `key=value` as wanted, or holds the wanted text."""
    settings = watched.settings()
    return any(search in f"{key}={value}".lower() for key, value in settings.items()) if search else True
