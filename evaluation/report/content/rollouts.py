"""Sections of a report with every rollout and every pair of tasks, and how the report was made."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from chimera.show.blocks import (
    Block,
    Cell,
    Column,
    Fold,
    Heading,
    Inline,
    Items,
    Note,
    Piece,
    TableBlock,
    TableLine,
    Text,
)
from evaluation.measures.metrics import NONE
from evaluation.report.content.cells import Links
from evaluation.report.formats import change, shown, slug, titled
from evaluation.scores.rewards import part_title

Report = Mapping[str, Any]
WITH_PAGE = {
    "ends": "those of the first and the last stage, and those whose answer a phase made right or wrong",
    "all": "all that have a trace",
}
"""Which rollouts have a page, by the setting evaluation.conversations."""


def rollouts(report: Report) -> Iterator[Block]:
    """Every rollout by stage, and what each comparison is the mean of, task by task."""
    links = Links.of(report)
    yield Heading("Rollouts", anchor="rollouts")
    yield Note(list(_about(report, links)))
    for stage, outcome in report["outcomes"].items():
        rows = _sorted(stage, outcome)
        title = f"{links.titles[stage]}: {len(rows)} rollouts"
        yield Fold(title, [_table(report, stage, rows, links)], f"rollouts-{slug(stage)}", detail=True)
    if report["pairs"]:
        yield Heading("Task by task", 3)
        over = "" if report["plan"]["repeats"] == 1 else ", themselves means over repeats"
        yield Note(f"What the differences are means of{over}.")
        for pair, rows in report["pairs"].items():
            before, after = (links.titles[side] for side in pair.split(":"))
            table = _pairs(pair, rows, links)
            yield Fold(f"{before} → {after}", [table], f"pairs-{slug(pair)}", detail=True)


def _about(report: Report, links: Links) -> Iterator[Piece]:
    yield "Every rollout with its value of every metric, the file and the line where the run directory records it. "
    if links.pages:
        yield f"{len(links.pages)} of them lead to their conversation, in "
        yield Text("rollouts/", "code")
        yield f" beside this page ({WITH_PAGE[report['settings']['conversations']]}). "
    yield "Any rollout, call by call: "
    yield Text(f"python -m chimera.trace {report['run']['name']} ID", "code")


def _table(report: Report, stage: str, rows: Sequence[Mapping[str, Any]], links: Links) -> TableBlock:
    used = {name for outcome in report["outcomes"].values() for row in outcome["rollouts"] for name in row["values"]}
    metrics = {name: metric for name, metric in report["metrics"].items() if name in used}
    repeats, lost = report["plan"]["repeats"] > 1, stage in report["lost"]
    columns = [
        *(Column("ID"), Column("Task")),
        *([Column("Repeat", number=True)] if repeats else []),
        *(Column("Key"), Column("Answer", anchor=f"{slug(stage)}.macro_f1")),
        *([Column("Lost by")] if lost else []),
        Column("Decision"),
        *(Column(titled(metric), number=True, anchor=f"{slug(stage)}.{name}") for name, metric in metrics.items()),
        Column("Recorded in"),
    ]
    seen: set[str] = set()
    drawn = []
    for row in rows:
        anchors = [anchor for anchor in _anchors(stage, row) if anchor not in seen]
        seen.update(anchors)
        cells: list[Inline | Cell] = [
            *(Cell(links.conversation(row["id"]), anchors), row["task"]),
            *([str(row["repeat"])] if repeats else []),
            *(row["label"], [_answer(row), Text(row["error"] or "", "quiet", small=True)]),
            *([row["lost"] or ""] if lost else []),
            [row["decision"] or "none", Text(row["veto"] or "", "quiet", small=True)],
            *(shown(row["values"].get(name), metric["unit"]) for name, metric in metrics.items()),
            Text(f"{row['file']}:{row['line']}", "code"),
        ]
        drawn.append(TableLine(cells, f"{slug(stage)}-{row['id']}"))
    return TableBlock(f"Rollouts of {links.titles[stage]}", columns, drawn, "long")


def _sorted(stage: str, outcome: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """A stage's rollouts by label and answer, failed ones first: a cell of the confusion matrix is a block of rows."""
    labels, answers = list(outcome["confusion"]), list(next(iter(outcome["confusion"].values())))

    def key(row: Mapping[str, Any]) -> tuple[bool, int, int]:
        return row["status"] != "failed", labels.index(row["label"]), answers.index(_answer(row))

    return sorted(outcome["rollouts"], key=key)


def _answer(row: Mapping[str, Any]) -> str:
    return NONE if row["status"] == "failed" else row["answer"] or NONE


def _anchors(stage: str, row: Mapping[str, Any]) -> Iterator[str]:
    """The anchors of a row, if it is the first of its label and answer, or of the failed."""
    yield slug(f"{stage}.{row['label']}.{_answer(row)}")
    if row["status"] == "failed":
        yield slug(f"{stage}.failed")


def _pairs(pair: str, rows: Sequence[Sequence[Any]], links: Links) -> TableBlock:
    rewards = ("Reward before", "after", "difference")
    shares = ("Aligned before, %", "after, %", "difference, points")
    columns = [Column("Task"), *(Column(title, number=True) for title in (*rewards, *shares))]
    drawn = [
        TableLine(
            [task, *_sides(pair, task, old, new, "points", links), *_sides(pair, task, fit, refit, "share", links)]
        )
        for task, old, new, fit, refit in rows
    ]
    return TableBlock(f"Tasks of {pair}", columns, drawn, "long")


def _sides(pair: str, task: str, old: float | None, new: float | None, unit: str, links: Links) -> list[Inline]:
    before, after = pair.split(":")
    difference = new - old if old is not None and new is not None else None
    return [
        links.behind(before, task, shown(old, unit)),
        links.behind(after, task, shown(new, unit)),
        change(difference, unit),
    ]


def method(report: Report) -> Iterator[Block]:
    """How the numbers were made, and how to check them."""
    yield Heading("How it was made", anchor="method")
    yield Items([*report["notes"], *_method(report)])


def _method(report: Report) -> Iterator[Inline]:
    settings, run = report["settings"], report["run"]
    yield (
        f"Intervals: {settings['resamples']} bootstrap samples of tasks; for a share that is 0 or 100 % throughout, "
        "and for one that no task changes, Clopper and Pearson’s exact bound. Tests: McNemar’s exact test where every "
        f"value is 0 or 1, else {settings['permutations']} random exchanges. Level {1 - settings['confidence']:.3g} "
        f"after Holm’s correction. Seed {settings['seed']}."
    )
    weights = [f"{part_title(name)} × {weight}" for name, weight in settings["reward"].items() if weight]
    yield f"Reward: {', '.join(weights)}."
    commit: list[Piece] = [", commit ", Text(run["commit"][:12], "code")] if run["commit"] else []
    created = f" of {run['created']}" if run["created"] else ""
    yield [
        *("Run ", Text(run["name"], "code"), f"{created}, phases {', '.join(run['phases']) or 'none'}", *commit),
        *("; from this file’s folder it is ", Text(run["path"], "code"), "."),
    ]
    if written := report.get("written"):
        pieces: list[Piece] = [f"Evaluated {written['time'][:16].replace('T', ' ')} UTC"]
        if written["commit"]:
            pieces += [" by commit ", Text(written["commit"][:12], "code")]
            pieces += [f" with {written['modified_files']} files changed since"] if written["modified_files"] else []
        yield [*pieces, "."]
    files = [Text("metrics.csv", "code"), " (means and differences with intervals) and ", Text("rollouts.csv", "code")]
    yield ["The same numbers as tables for other programs: ", *files, "."]
    yield [
        Text("python -m chimera.eval --verify FOLDER", "code"),
        ", with the folder of this file, computes every number again from the run’s rollouts and refuses what they do "
        "not give.",
    ]
