"""Lists of rollouts, one rollout, and two side by side."""

from collections import Counter
from collections.abc import Collection
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import HTMLResponse

from chimera.core.errors import ChimeraError, ConfigError, RunError
from chimera.run.directory import check_name
from evaluation.causes.lost import TITLES
from evaluation.records.rollout_index import read_tree
from evaluation.records.rollouts import RolloutRecord
from evaluation.report.side_by_side import view
from evaluation.scores.rewards import part_title
from evaluation.traces.page import drawn_tokens
from evaluation.traces.token_records import read_tokens, tokens_file
from evaluation.traces.token_texts import learned_texts
from evaluation.traces.tree import Tree
from evaluation.view.pages.choice import (
    ANY,
    NO_DECISION,
    OF_ROLE,
    SORTS,
    UNSCORED,
    VETOED,
    RolloutChoice,
    of_page,
    pages,
)
from evaluation.view.pages.desk import ViewDesk
from evaluation.view.pages.figures import Figures, pair_up
from evaluation.view.reading.rows import RolloutRow, read_record
from evaluation.view.reading.watched import Snapshot, inside

CHANGES = ("mended", "lost", "both right", "both wrong")


def routes(desk: ViewDesk) -> APIRouter:
    router = APIRouter()

    @router.get("/runs/{name}/rollouts")
    def rollouts(name: str, request: Request) -> HTMLResponse:
        stamp = desk.stamp(name)
        snapshot, choice = desk.folder.open(name).look(), RolloutChoice.read(request.query_params)
        rows = choice.pick(snapshot.all_rows, learned_from(snapshot, choice.update))
        return desk.page(
            "rollouts.html.j2", stamp=stamp, run=name, snapshot=snapshot, choice=choice,
            rows=of_page(rows, choice.page), figures=Figures.of(rows), pages=pages(rows),
            options=_options(snapshot), sorts=_sorts(snapshot, choice),
        )  # fmt: skip

    @router.get("/runs/{name}/rollouts/{rollout_id}")
    def rollout(name: str, rollout_id: str) -> HTMLResponse:
        snapshot, row, record = _record(desk, name, rollout_id)
        tree = _tree(desk, name, record)
        pieces, note = _texts(desk, name, tree)
        siblings = [one for one in snapshot.by_task[row.task_id] if one.rollout_id != rollout_id]
        phase = snapshot.rows[row.phase]
        place = next(number for number, one in enumerate(phase) if one.rollout_id == rollout_id)
        return desk.page(
            "rollout.html.j2", run=name, row=row, record=record, tree=tree, note=note, gradients={},
            tokens=drawn_tokens(tree, pieces), siblings=siblings,
            before=phase[place - 1] if place else None, after=phase[place + 1] if place + 1 < len(phase) else None,
        )  # fmt: skip

    @router.get("/pair")
    def pair(request: Request) -> HTMLResponse:
        given = request.query_params
        chosen = [f"{given['run']}/{one}" for one in given.getlist("rollout")] if "run" in given else []
        chosen += [given[side] for side in ("left", "right") if given.get(side)]
        if len(chosen) != 2:
            raise ConfigError(f"{len(chosen)} rollouts are chosen: choose two")
        sides = [_side(desk, one) for one in chosen]
        return desk.page("pair.html.j2", sides=sides, rows=view(sides[0]["record"], sides[1]["record"]))

    @router.get("/tasks")
    def tasks(left: str, right: str, change: str = "") -> HTMLResponse:
        if change not in ("", *CHANGES):
            raise ConfigError(f"change={change[:40]!r} is none of {', '.join(CHANGES)}")
        stages = [_stage(desk, left), _stage(desk, right)]
        pairs = pair_up(stages[0][1], stages[1][1])
        counts = {name: sum(pair.change == name for pair in pairs) for name in CHANGES}
        return desk.page(
            "tasks.html.j2", left=left, right=right, runs=[stage[0] for stage in stages], change_of=change,
            pairs=[one for one in pairs if change in ("", one.change)], counts=counts, all=len(pairs),
            figures=[Figures.of([one.left for one in pairs]), Figures.of([one.right for one in pairs])],
        )  # fmt: skip

    return router


def learned_from(snapshot: Snapshot, update: str) -> Collection[str] | None:
    """The rollouts that an update such as "ppo/3" learned from; None if none is named.

    Raises:
        ConfigError: It names no recorded update.
        RunError: The records of its tokens cannot be read.
    """
    if not update:
        return None
    phase, _, step = update.rpartition("/")
    file = tokens_file(snapshot.run, check_name(phase), int(step)) if step.isdecimal() else None
    if file is None or not file.is_file() or not inside(file, snapshot.run):
        raise ConfigError(f"update={update[:40]!r} is no recorded update of run {snapshot.name!r}: it is phase/number")
    return {record.rollout_id for record in read_tokens(file)}


def _options(snapshot: Snapshot) -> dict[str, list[tuple[str, str]]]:
    """What can be chosen of each kind, with words."""
    rows = snapshot.all_rows
    failures: dict[str, int] = {}
    for row in rows:
        if row.failure is not None:
            failures[row.failure] = failures.get(row.failure, 0) + 1
    known = {
        ANY: ("failed", sum(row.failed for row in rows)),
        VETOED: ("vetoed", sum(row.veto is not None for row in rows)),
        UNSCORED: ("no reward", sum(row.reward is None and not row.failed for row in rows)),
    }
    lost = Counter(row.lost for row in rows)
    decisions = sorted({row.decision or NO_DECISION for row in rows})
    return {
        "phase": [(name, f"{name} ({len(found)})") for name, found in snapshot.rows.items()],
        "role": [(name, name) for name in snapshot.roles],
        "decision": [(name, name) for name in decisions],
        "right": [("yes", "right"), ("no", "not right")],
        "lost": [(step, f"{step} ({lost[step]})") for step in TITLES if lost[step]],
        "failure": [
            *((name, f"{word} ({count})") for name, (word, count) in known.items()),
            *((kind, f"{kind} ({count})") for kind, count in sorted(failures.items(), key=lambda one: -one[1])),
        ],
    }


def _sorts(snapshot: Snapshot, choice: RolloutChoice) -> list[tuple[str, str]]:
    names = [(name, name) for name in SORTS]
    if choice.role:
        names += [(f"role:{name}", f"{choice.role}: {name}") for name in (*OF_ROLE, "tools")]
    names += [(f"part:{part}", part_title(part)) for part in snapshot.parts]
    both = [("", "in the order of their ends")]
    for name, title in names:
        both += [(name, f"{title}, up"), (f"-{name}", f"{title}, down")]
    return both


def _record(desk: ViewDesk, run: str, rollout_id: str) -> tuple[Snapshot, RolloutRow, RolloutRecord]:
    """A rollout by its id; raises RunError if there is none, or its record cannot be read."""
    snapshot = desk.folder.open(run).look()
    row = snapshot.by_id.get(rollout_id)
    if row is None:
        raise RunError(f"run {run!r} has no rollout {rollout_id[:80]!r}: choose one from its list")
    return snapshot, row, read_record(snapshot.run, row)


def _tree(desk: ViewDesk, run: str, record: RolloutRecord) -> Tree:
    folder = desk.folder.open(run).run
    if record.trace is not None and not inside(folder.path / record.trace, folder.path):
        raise RunError(f"the trace of rollout {record.rollout_id} is said to be {record.trace!r}, outside its run")
    return read_tree(folder, record)


def _texts(desk: ViewDesk, run: str, tree: Tree) -> tuple[Any, str | None]:
    """The texts of tokens, or why there are none."""
    try:
        return learned_texts(desk.folder.open(run).run, tree)
    except ChimeraError as error:
        return {}, f"Tokens are shown by their ids, because the run's settings cannot be read: {error}"


def _side(desk: ViewDesk, given: str) -> dict[str, Any]:
    """One side of a pair, from "run/rollout"."""
    run, _, rollout_id = given.partition("/")
    _, row, record = _record(desk, run, rollout_id)
    return {"run": run, "row": row, "record": record, "given": given}


def _stage(desk: ViewDesk, given: str) -> tuple[str, list[RolloutRow]]:
    """A stage's rollouts from "run/phase"; raises RunError if there is no such run, or it has no such phase."""
    run, _, phase = given.partition("/")
    rows = desk.folder.open(run).look().rows
    if phase not in rows:
        raise RunError(f"run {run!r} has no rollouts of {phase[:80]!r}: there are {', '.join(rows) or 'none'}")
    return run, list(rows[phase])
