"""Sections of a report about single answers: outcomes, lost answers, curves, rollouts side by side, and the judges."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from chimera.show.blocks import (
    Block,
    Cell,
    Column,
    FactList,
    Figure,
    Fold,
    Heading,
    Inline,
    Items,
    Note,
    Piece,
    SideBySide,
    TableBlock,
    TableLine,
    Text,
    joined,
)
from evaluation.causes.lost import TITLES
from evaluation.records.recorded import side_file
from evaluation.records.study import Plan
from evaluation.report.content.cells import Links
from evaluation.report.formats import between, change, sentence, shown, signed, slug, stage_titles, two
from evaluation.report.guidance import told_table
from evaluation.report.losses import BLAME_HEAD, BLAME_WORDS, LOST_WORDS, blame_rows, lost_rollouts
from evaluation.report.side_by_side import lines

Report = Mapping[str, Any]
FIRST = ("tokens", "studies")
"""The plots of the first screen."""


def outcomes(report: Report) -> Iterator[Block]:
    """Answers beside the answer key, decisions, vetoes and failures of each stage."""
    yield Heading("Answers, decisions and failures", anchor="answers")
    yield Note(
        "Rows are the answer key, columns what was answered; outlined cells are right. On the page each number leads "
        "to its rollouts. The decision says whether the protocol may run: a CRITICAL review that stays unresolved is a "
        "veto, which forbids GO and leaves the answer as it is."
    )
    titles = stage_titles(report)
    yield SideBySide([list(_outcome(stage, titles[stage], outcome)) for stage, outcome in report["outcomes"].items()])


def guidance(report: Report) -> Iterator[Block]:
    """What roles learned to be told, beside what they were told before."""
    if report["guidance"]:
        yield Heading("What roles learned to be told", anchor="guidance")
    for phase in report["guidance"]:
        yield told_table(phase)


def _outcome(stage: str, title: str, outcome: Mapping[str, Any]) -> Iterator[Block]:
    yield Heading(title, 3)
    columns = [Column("Answer key"), *(Column(name) for name in next(iter(outcome["confusion"].values())))]
    rows = [
        TableLine([label, *(_count(stage, label, name, row) for name in row)])
        for label, row in outcome["confusion"].items()
    ]
    yield TableBlock(f"Answers and answer key, {title}", columns, rows, "matrix")
    decisions = ", ".join(f"{name} {count}" for name, count in outcome["decisions"].items())
    yield Note(f"Decisions: {decisions}. {outcome['vetoed']} vetoed{':' if outcome['vetoes'] else '.'}", "fine")
    if outcome["vetoes"]:
        yield Items([f"{count} × {why}" for why, count in outcome["vetoes"].items()])
    if outcome["failed"]:
        number = Text(f"{outcome['failed']} of {outcome['count']}", href=f"#{slug(f'{stage}.failed')}")
        yield Note([number, " rollouts failed:"])
        yield Items([f"{count} × {why}" for why, count in outcome["failures"].items()])
    else:
        yield Note(f"None of {outcome['count']} rollouts failed.", "fine")


def _count(stage: str, label: str, answer: str, row: Mapping[str, int]) -> Cell:
    count, total = row[answer], sum(row.values())
    href = f"#{slug(f'{stage}.{label}.{answer}')}" if count else ""
    return Cell(
        Text(str(count), "" if count else "quiet", href), shade=count / total if total else 0.0, marked=label == answer
    )


def lost(report: Report) -> Iterator[Block]:
    """Which step lost the wrong answers, and what repairing it would mend."""
    if not report["lost"]:
        return
    links, stages = Links.of(report), report["lost"].values()
    yield Heading("Who lost the wrong answers", anchor="lost")
    yield Note(f"{LOST_WORDS} On the page the tables of rollouts name the step of each.")
    columns = [Column("First wrong step"), *(Column(links.system(name), number=True) for name in report["lost"])]
    rows = [
        TableLine([sentence(title), *(str(loss["steps"][step]) for loss in stages)]) for step, title in TITLES.items()
    ]
    rows.append(TableLine(["Wrong answers", *(f"{loss['wrong']} of {loss['rollouts']}" for loss in stages)]))
    rows.append(TableLine(["Right answers that were vetoed", *(str(loss["vetoed"]) for loss in stages)]))
    yield TableBlock("Wrong answers by their first wrong step", columns, rows)
    if rollouts := lost_rollouts(report):
        yield FactList(
            [
                (sentence(TITLES[step]), joined([links.conversation(rollout_id) for rollout_id in ids]))
                for step, ids in rollouts.items()
            ]
        )
    if mended := blame_rows(report):
        first, *others = BLAME_HEAD
        columns = [Column(sentence(first)), *(Column(sentence(title), number=True) for title in others)]
        yield Note(BLAME_WORDS)
        rows = [TableLine([sentence(title), *cells]) for title, *cells in mended]
        yield TableBlock("Wrong answers replayed with their first wrong step made right", columns, rows)


def faults(report: Report) -> Iterator[Block]:
    """What was recovered of the calls that failed on purpose."""
    if not (faulty := report.get("faults")):
        return
    yield Heading("When tools fail", anchor="faults")
    yield Note(
        f"{sentence(stage_titles(report)[faulty['stage']])}: on the same tasks and seeds a share of the tool calls did "
        "not reach its tool (evaluation.faults). Recovered: a later call of the same visit gave passages after all. "
        "Whether answers are lost stands among the comparisons."
    )
    columns = [Column("Tool, fault"), Column("Put", number=True), Column("Recovered", number=True)]
    rows = [
        TableLine([row["fault"].replace("/", ", "), str(row["put"]), str(row["recovered"])]) for row in faulty["rows"]
    ]
    yield TableBlock("Faults and recoveries", columns, rows)
    if (share := faulty["share"]) is not None:
        recovered = f"{shown(share['mean'], 'share')} % ({between(share['low'], share['high'], 'share')})"
        yield Note(
            f"{recovered} of the faults were recovered from. Of {faulty['hit']} rollouts that met one, "
            f"{faulty['right']} gave the right answer ({faulty['right_before']} with tools that work), "
            f"{faulty['failed']} failed{'' if faulty['failed'] else ', so none was lost'}."
        )
    if faulty["reasons"]:
        yield Items([f"{count} × {reason}" for reason, count in faulty["reasons"].items()])


def plots(report: Report) -> Iterator[Block]:
    """The plots; a plot's "svg", where there is one, is its drawing."""
    if not report["plots"]:
        return
    yield Heading("Curves", anchor="plots")
    figures = [figure(plot) for plot in report["plots"] if plot["name"] not in FIRST or not plot["files"]]
    drawn = [drawing for drawing in figures if drawing.svg or drawing.file]
    yield SideBySide([[drawing] for drawing in drawn], wide=True)
    yield from (drawing for drawing in figures if drawing not in drawn)


def figure(plot: Mapping[str, Any]) -> Figure:
    """A plot of the report; its "svg", where there is one, is its drawing."""
    file, name = plot["files"].get("png", ""), plot["name"]
    caption = plot["missing"] or plot["caption"]
    return Figure(plot["title"], caption, inlined(plot.get("svg")), file, f"plot-{slug(name)}")


def inlined(drawing: str | None) -> str:
    """An SVG file (`plots.paper.save`) for a page: only its root element, as wide as the page allows."""
    if drawing is None:
        return ""
    head, rest = drawing[drawing.index("<svg") :].rstrip().split(">", 1)
    return re.sub(r'\s(?:width|height)="[^"]*"', "", head) + f">{rest}"


def side_by_side(report: Report) -> Iterator[Block]:
    """The rollouts of a few tasks in the first and the last stage, field by field."""
    if not report["side_by_side"]:
        return
    links = Links.of(report)
    before, after = (links.titles[side] for side in report["verdict"]["comparison"].split(":"))
    yield Heading("Side by side", anchor="side-by-side")
    removed, added = Text("Removed", "removed"), Text("added", "added")
    yield Note(
        [
            f"The same task and seed through {before} and {after}. ",
            *(removed, " is what only the first has, ", added, " what only the second has."),
        ]
    )
    for place, pair in enumerate(report["side_by_side"]):
        about = f" reward {change(pair['difference'], 'points')}, answer key {pair['label']}"
        title = [Text(f"{sentence(pair['why'])}: {pair['goal']}", "strong"), Text(about, "quiet")]
        columns = [Column(pair["task"]), *(Column(_side(pair[side], links)) for side in ("before", "after"))]
        table = TableBlock(f"{before} and {after}, {pair['task']}", columns, lines(pair["rows"]), "pair")
        yield Fold(title, [table], open=place == 0)


def _side(side: Mapping[str, Any], links: Links) -> Inline:
    title, reward = links.titles[side["stage"]], shown(side["reward"], "points")
    return [f"{title}, ", links.conversation(side["id"]), f", reward {reward}"]


def judges(report: Report) -> Iterator[Block]:
    """Whether the judge can be trusted: agreement with a second one, length, and work that deserves nothing."""
    judges = report["judges"]
    if not judges:
        return
    yield Heading("Can the judges be trusted?", anchor="judges")
    yield Note(_judges_words(judges, Plan.load(report["plan"])))
    if judges["warnings"]:
        yield Items([f"{sentence(warning)}." for warning in judges["warnings"]], warning=True)
    else:
        yield Note(Text("Nothing here gives cause for a warning.", "quiet"))
    if judges["n"]:
        yield Heading("Agreement", 3)
        columns = [Column("Criterion")]
        columns += [Column(coefficient, number=True) for coefficient in ("Krippendorff’s alpha", "Spearman’s rho")]
        rows = [TableLine([name, two(alpha), two(judges["spearman"][name])]) for name, alpha in judges["alpha"].items()]
        yield TableBlock("Agreement of the judges", columns, rows)
    yield Heading("Score against length", 3)
    names = (("judge", "the judge"), ("auditor", "the second judge"))
    yield Items(
        [_length_words(title, judges["length"][who]) for who, title in names],
        "Rank correlation (Spearman’s rho) of the weighted score with the number of words in the protocol:",
    )
    if judges["canaries"]:
        yield Heading("Canaries", 3)
        yield Note(
            "Work that deserves next to nothing. Beside each score stands what real work gets on the same criteria."
        )
        yield _canaries(judges["canaries"])
    for note in judges["notes"]:
        yield Note(Text(f"{sentence(note)}.", "quiet"))


def _judges_words(judges: Mapping[str, Any], plan: Plan) -> list[Piece]:
    second = (
        f"A second judge ({judges['auditor']}), which training never uses, has scored {judges['n']} of the same "
        "rollouts."
        if judges["auditor"]
        else "There was no second judge."
    )
    files = [Text(side_file(plan.split, name), "code") for name in ("audit", "canaries")]
    return [
        f"The judge ({judges['judge'] or 'none recorded'}) gives the reward’s six criteria. {second} Single scores: ",
        *joined(files, " and "),
        " in the run directory.",
    ]


def _length_words(title: str, length: Mapping[str, Any]) -> str:
    if length["rho"] is None:
        return f"{title}: none to tell from {length['n']} scored rollouts"
    return f"{title}: {signed(length['rho'], 2).replace('-', '−')} over {length['n']} rollouts"


def _canaries(rows: Sequence[Mapping[str, Any]]) -> TableBlock:
    titles = ("Judge", "on real work", "Second judge", "on real work", "n")
    columns = [Column("Canary"), *(Column(title, number=True) for title in titles)]
    keys = ("judge", "of_normal", "auditor", "of_normal_auditor")
    drawn = [TableLine([row["title"], *(two(row[key]) for key in keys), str(row["n"])]) for row in rows]
    return TableBlock("Scores of canary protocols", columns, drawn)
