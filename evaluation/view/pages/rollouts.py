"""Lists of rollouts, one rollout, and two side by side."""

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from itertools import chain
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import HTMLResponse

from chimera.core.errors import ChimeraError, ConfigError, RunError
from chimera.run.directory import check_name
from chimera.show.blocks import (
    Block,
    Column,
    FactList,
    Fold,
    Heading,
    Note,
    TableBlock,
    TableLine,
    Text,
    joined,
)
from evaluation.causes.lost import TITLES
from evaluation.records.rollouts import RolloutRecord
from evaluation.scores.rewards import part_title
from evaluation.traces.conversation import LearnedTokens, goal, outcome, summary, toned, visits
from evaluation.traces.rollout_index import read_tree
from evaluation.traces.text import facts
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
from evaluation.view.pages.desk import (
    ViewDesk,
    answer,
    pair_address,
    points,
    rollout_address,
    rollouts_address,
    run_address,
)
from evaluation.view.pages.figures import Figures
from evaluation.view.pages.pairs import CHANGES, Side, pair_blocks, task_blocks
from evaluation.view.reading.rows import RolloutRow, read_record
from evaluation.view.reading.watched import Snapshot, inside


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
        stage = f"phase={row.phase}"

        def by_part(part: str) -> str:
            return rollouts_address(name, f"{stage}&sort={part if part == 'reward' else f'part:{part}'}")

        blocks = [
            *_head(snapshot, row, record, tree, note),
            *visits(tree, LearnedTokens(pieces), messages=True),
            *outcome(record, by_part),
        ]
        at = [Text(name, href=run_address(name)), Text(row.phase, href=rollouts_address(name, stage)), rollout_id]
        return desk.blocks(rollout_id, ["/ ", *joined(at, " / ")], blocks)

    @router.get("/pair")
    def pair(request: Request) -> HTMLResponse:
        query = request.query_params
        chosen = [f"{query['run']}/{rollout_id}" for rollout_id in query.getlist("rollout")] if "run" in query else []
        chosen += [query[side] for side in ("left", "right") if query.get(side)]
        if len(chosen) != 2:
            raise ConfigError(f"{len(chosen)} rollouts are chosen: choose two")
        left, right = (_side(desk, address) for address in chosen)
        return desk.blocks("Two rollouts", "/ two rollouts", list(pair_blocks(left, right)))

    @router.get("/tasks")
    def tasks(left: str, right: str, change: str = "") -> HTMLResponse:
        if change not in ("", *CHANGES):
            raise ConfigError(f"change={change[:40]!r} is none of {', '.join(CHANGES)}")
        stages = [_stage(desk, left), _stage(desk, right)]
        runs = list(dict.fromkeys(run for run, _ in stages))
        at = joined([Text(run, href=run_address(run)) for run in runs], " and ")
        blocks = list(task_blocks(left, right, stages[0][1], stages[1][1], change))
        return desk.blocks("The same tasks in two stages", ["/ ", *at], blocks)

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
    failures = Counter(row.failure for row in rows if row.failure is not None)
    flags = {
        ANY: ("failed", sum(row.failed for row in rows)),
        VETOED: ("vetoed", sum(row.veto is not None for row in rows)),
        UNSCORED: ("no reward", sum(row.reward is None and not row.failed for row in rows)),
    }
    lost = Counter(row.lost for row in rows)
    decisions = sorted({row.decision or NO_DECISION for row in rows})
    return {
        "phase": [(name, f"{name} ({len(phase_rows)})") for name, phase_rows in snapshot.rows.items()],
        "role": [(name, name) for name in snapshot.roles],
        "decision": [(name, name) for name in decisions],
        "right": [("yes", "right"), ("no", "not right")],
        "lost": [(step, f"{step} ({lost[step]})") for step in TITLES if lost[step]],
        "failure": [
            *((name, f"{word} ({count})") for name, (word, count) in flags.items()),
            *((kind, f"{kind} ({count})") for kind, count in failures.most_common()),
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


def _side(desk: ViewDesk, address: str) -> Side:
    """One side of a pair, from "run/rollout": its run, its row and its record."""
    run, _, rollout_id = address.partition("/")
    return run, *_record(desk, run, rollout_id)[1:]


def _stage(desk: ViewDesk, address: str) -> tuple[str, list[RolloutRow]]:
    """A stage's rollouts from "run/phase"; raises RunError if there is no such run, or it has no such phase."""
    run, _, phase = address.partition("/")
    rows = desk.folder.open(run).look().rows
    if phase not in rows:
        raise RunError(f"run {run!r} has no rollouts of {phase[:80]!r}: there are {', '.join(rows) or 'none'}")
    return run, list(rows[phase])


def _head(snapshot: Snapshot, row: RolloutRow, record: RolloutRecord, tree: Tree, note: str | None) -> Iterator[Block]:
    """A rollout's question, its outcome, and the other rollouts of its task."""
    run, stage = snapshot.name, f"phase={row.phase}"
    phase = snapshot.rows[row.phase]
    place = next(number for number, other in enumerate(phase) if other.rollout_id == row.rollout_id)
    neighbours = [("previous", phase[place - 1])] if place else []
    neighbours += [("next", phase[place + 1])] if place + 1 < len(phase) else []
    links = [[" · ", Text(word, href=rollout_address(run, neighbour.rollout_id))] for word, neighbour in neighbours]
    yield Note([f"Rollout {record.rollout_id}, task {record.task_id}", *chain.from_iterable(links)], "eyebrow")
    yield Heading(goal(record), 1)
    yield summary(record, "#parts")
    if record.error:
        yield Note(Text(record.error, "bad"), "note")
    if row.lost:
        yield Note(["Lost by ", Text(TITLES[row.lost], href=rollouts_address(run, f"{stage}&lost={row.lost}"))], "note")
    if record.veto:
        yield Note(f"Vetoed by {record.veto}", "note")
    yield from (Note(text, "note") for text in (*tree.notes, note) if text)
    siblings = [other for other in snapshot.by_task[row.task_id] if other.rollout_id != row.rollout_id]
    about = FactList([fact for fact in facts(tree) if fact[0] not in ("error", "vetoed by")])
    others = [_siblings(run, record.rollout_id, siblings)] if siblings else []
    yield Fold(f"About it, and other rollouts of this task ({len(siblings)})", [about, *others])


def _siblings(run: str, rollout_id: str, rows: Sequence[RolloutRow]) -> TableBlock:
    columns = [Column(name) for name in ("stage", "rollout", "answer", "decision")]
    columns += [Column("reward", number=True), Column("")]
    lines = [
        TableLine(
            [
                [row.phase, Text(f"repeat {row.repeat}" if row.repeat else "", small=True)],
                Text(row.rollout_id, href=rollout_address(run, row.rollout_id)),
                *(answer(row), toned(row.decision or "none"), points(row.reward)),
                Text("side by side", href=pair_address(run, rollout_id, run, row.rollout_id)),
            ]
        )
        for row in rows
    ]
    return TableBlock("Other rollouts of this task", columns, lines)
