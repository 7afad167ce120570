"""Two runs, two rollouts, or the same tasks in two stages, beside each other."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TypeAlias

from chimera.show.blocks import (
    Block,
    Column,
    FactList,
    Heading,
    Inline,
    Note,
    SideBySide,
    TableBlock,
    TableLine,
    Text,
    Tone,
    joined,
)
from evaluation.records.rollouts import RolloutRecord
from evaluation.report import side_by_side
from evaluation.report.formats import NOTHING, change
from evaluation.traces.conversation import goal, toned
from evaluation.view.pages.curves import outcome_drawings
from evaluation.view.pages.desk import (
    answer,
    pair_address,
    points,
    rollout_address,
    rollouts_address,
    run_address,
    share,
    tasks_address,
)
from evaluation.view.pages.figures import Figures, TaskPair, mean, pair_up
from evaluation.view.reading.rows import RolloutRow
from evaluation.view.reading.watched import Snapshot

CHANGES = ("mended", "lost", "both right", "both wrong")
Side: TypeAlias = tuple[str, RolloutRow, RolloutRecord]
"""One side of a pair: its run, its row and its record."""


def run_blocks(left: Snapshot, right: Snapshot) -> Iterator[Block]:
    """The stages, the curves and the settings of two runs."""
    yield Note("Two runs", "eyebrow")
    yield Heading(f"{left.name} and {right.name}", 1)
    yield Heading("Stages of both")
    words = (
        f"Left {left.name}, right {right.name}. The difference is the mean over the tasks that both answered, right "
        "minus left, without a test; "
    )
    yield Note([words, Text("python -m chimera.study", "code"), " tests differences between seeds."], "fine")
    columns = [Column("stage"), *(Column(title, number=True) for title in ("rollouts", "reward", "answers right"))]
    columns.append(Column("failed", number=True))
    columns.append(Column(["same tasks", Text("reward difference", small=True)], number=True))
    columns.append(Column(["answers", Text("mended, lost", small=True)], number=True))
    phases = dict.fromkeys((*left.rows, *right.rows))
    yield TableBlock("Stages of both", columns, [_stages(left, right, phase) for phase in phases])
    yield Heading("Over their rollouts")
    for run in (left, right):
        yield Heading(Text(run.name, href=run_address(run.name)), 3)
        charts = outcome_drawings(run, partial(rollouts_address, run.name))
        yield SideBySide([[chart] for chart in charts]) if charts else Note(Text("No rollout yet.", "quiet"))
    yield Heading("Settings that differ")
    values = {key: [run.settings.get(key, "not set") for run in (left, right)] for key in _keys(left, right)}
    differing = {key: pair for key, pair in values.items() if pair[0] != pair[1]}
    rows = [TableLine([Text(key, "code"), *map(str, pair)]) for key, pair in differing.items()]
    columns = [Column(name) for name in ("setting", left.name, right.name)]
    settings = TableBlock("Settings that differ", columns, rows, "pair")
    yield settings if rows else Note("None: both runs have the same settings.")


def _keys(left: Snapshot, right: Snapshot) -> list[str]:
    return sorted({*left.settings, *right.settings} - {"runs_dir"})


def _stages(left: Snapshot, right: Snapshot, phase: str) -> TableLine:
    """A stage of both runs, with what became of the same tasks."""
    before, after = (run.rows.get(phase, ()) for run in (left, right))
    cells: list[list[Inline]] = [[], [], [], []]
    for run, rows in ((left.name, before), (right.name, after)):
        figures = Figures.of(rows)
        shown = (str(figures.rollouts), points(figures.reward), share(figures.right), str(figures.failed))
        for place, (cell, value) in enumerate(zip(cells, shown, strict=True)):
            query = f"phase={phase}{'&failure=any' if place == 3 and figures.failed else ''}"
            cell.append(Text(value, href=rollouts_address(run, query)) if rows else NOTHING)
    sides, pairs = (f"{left.name}/{phase}", f"{right.name}/{phase}"), pair_up(before, after)
    difference = mean(pair.difference for pair in pairs if pair.difference is not None)
    same = [Text(str(len(pairs)), href=tasks_address(*sides)), Text(change(difference, "points"), small=True)]
    became = [
        Text(str(sum(pair.change == name for pair in pairs)), href=tasks_address(*sides, name))
        for name in ("mended", "lost")
    ]
    ends: list[Inline] = [same, joined(became)] if pairs else ["none", NOTHING]
    return TableLine([phase, *map(joined, cells), *ends])


def pair_blocks(left: Side, right: Side) -> Iterator[Block]:
    """Two rollouts field by field."""
    before, after = left[2], right[2]
    yield Note("Two rollouts side by side", "eyebrow")
    yield Heading(goal(before), 1)
    if before.task_id != after.task_id:
        question = after.outputs.get("research_goal") or "not recorded"
        yield Note(f"These are two tasks: {before.task_id} and {after.task_id}. The right one asks: {question}", "note")
    columns = [Column(""), *(Column(_side_title(*side)) for side in (left, right))]
    yield TableBlock("Two rollouts", columns, side_by_side.lines(side_by_side.view(before, after)), "pair")


def _side_title(run: str, row: RolloutRow, record: RolloutRecord) -> Inline:
    link = Text(record.rollout_id, "strong", rollout_address(run, record.rollout_id))
    decision = toned(record.decision or "none")
    return [link, f" {run}, {record.phase}: ", *answer(row), " ", decision, f" reward {points(record.reward)}"]


def task_blocks(
    left: str, right: str, before: Sequence[RolloutRow], after: Sequence[RolloutRow], change_of: str
) -> Iterator[Block]:
    """The tasks of two stages, with what became of their answers."""
    pairs, runs = pair_up(before, after), [side.partition("/")[0] for side in (left, right)]
    old, new = Figures.of([pair.left for pair in pairs]), Figures.of([pair.right for pair in pairs])
    yield Note("The same tasks in two stages", "eyebrow")
    yield Heading(f"{left} and {right}", 1)
    rewards, rights = f"{points(old.reward)} → {points(new.reward)}", f"{share(old.right)} → {share(new.right)}"
    yield FactList([("tasks in both", str(len(pairs))), ("reward", rewards), ("right", rights)], large=True)
    counts = [("", "all", len(pairs)), *((name, name, sum(pair.change == name for pair in pairs)) for name in CHANGES)]
    choices: list[Inline] = [
        Text(f"{title} {count}", "strong" if name == change_of else "", tasks_address(left, right, name))
        for name, title, count in counts
    ]
    yield Note(joined(choices, "   "))
    columns = [Column(name) for name in ("task", "answers", left, right)]
    columns += [Column("reward", number=True), Column("difference", number=True)]
    chosen = [pair for pair in pairs if change_of in ("", pair.change)]
    if not chosen:
        yield Note(Text("No task is in both stages." if not pairs else "No task changed so.", "quiet"))
    yield TableBlock("Tasks in both stages", columns, [_task(pair, runs) for pair in chosen])


def _task(pair: TaskPair, runs: Sequence[str]) -> TableLine:
    repeat = f" ({pair.left.repeat})" if pair.left.repeat else ""
    address = pair_address(runs[0], pair.left.rollout_id, runs[1], pair.right.rollout_id)
    tone: Mapping[str, Tone] = {"mended": "good", "lost": "bad"}
    cells: list[Inline] = [Text(f"{pair.left.task_id}{repeat}", href=address)]
    cells.append(Text(pair.change, tone.get(pair.change, "quiet")))
    for run, row in zip(runs, (pair.left, pair.right), strict=True):
        text = Text(row.answer or "none", "good" if row.right else "bad", rollout_address(run, row.rollout_id))
        cells.append([text, *answer(row)[1:], Text(f" {row.decision or 'none'}", "quiet")])
    rewards = f"{points(pair.left.reward)} → {points(pair.right.reward)}"
    return TableLine([*cells, rewards, change(pair.difference, "points")])
