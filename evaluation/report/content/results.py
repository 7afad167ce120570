"""Sections of a report with means and their comparisons."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from chimera.show.blocks import Block, Column, Fold, Heading, Inline, Note, TableBlock, TableLine, Text
from evaluation.baselines.simple import READER, TFIDF
from evaluation.measures.metrics import PART
from evaluation.report.content.cells import (
    difference_cell,
    interval,
    mean_cell,
    percent,
    span_of,
    value_cell,
    verdict,
)
from evaluation.report.formats import (
    NOTHING,
    ablation_rows,
    amount,
    answered,
    beside_strongest,
    families_words,
    growth_words,
    margin_words,
    probability,
    sentence,
    shown,
    slug,
    stage_titles,
    titled,
)
from evaluation.scores.judge import CRITERIA

Report = Mapping[str, Any]
OUTCOME, PARTS, SCORES, WORK = "Outcome", "Parts of the reward", "The judge's scores", "Work"
OUTCOMES = ("success", "reward", "alignment", "macro_f1", "decision_alignment", "decision_two_way", "vetoed")
BASELINES_WORDS = (
    "Calls and tokens (read and written) are means of one task; every call counts with its whole prompt. Single calls "
    "are given the abstract; the society has to find it. Self-consistency has the largest number of calls whose tokens "
    "are no more than the society's. The juniors' majority and the society without board are counted from its "
    "own rollouts: the supervisor's choice decides ties, and 'without board' is the answer of the hypothesis as it was "
    "first refined, before protocol, reviews and revisions."
)


def stages(report: Report) -> Iterator[Block]:
    """Every metric of every stage."""
    yield Heading("Stages", anchor="stages")
    yield Note(
        f"Means over {len(report['plan']['tasks'])} tasks with their {percent(report)} % bootstrap intervals; n is "
        "given where a metric has no value for some tasks. On the page each number leads to the rollouts behind it."
    )
    titles = stage_titles(report)
    columns = [Column("Metric"), *(Column(titles[name], number=True) for name in report["stages"])]
    yield TableBlock("All metrics by stage", columns, list(_metrics(report)))


def _metrics(report: Report) -> Iterator[TableLine]:
    groups: dict[str, list[TableLine]] = {OUTCOME: [], PARTS: [], SCORES: [], WORK: []}
    for name, metric in report["metrics"].items():
        if not any(name in means for means in report["stages"].values()):
            continue
        # A title does not repeat the group: "reward part: novelty" is "novelty" among the parts.
        cells: list[Inline] = [titled({**metric, "title": metric["title"].rpartition(": ")[2]})]
        for stage, means in report["stages"].items():
            tasks = len(report["plan"]["tasks"])
            cells.append(mean_cell(means.get(name), metric["unit"], tasks, f"#{slug(stage)}.{name}"))
        groups[_group(name)].append(TableLine(cells))
    for title, rows in groups.items():
        if rows:
            yield TableLine([title], group=True)
            yield from rows


def _group(name: str) -> str:
    if name in OUTCOMES:
        return OUTCOME
    return PARTS if name.startswith(PART) else SCORES if name in CRITERIA else WORK


def comparisons(report: Report) -> Iterator[Block]:
    """One table for each primary metric, whose rows share a scale; the other metrics by pair of stages."""
    if not report["comparisons"]:
        return
    yield Heading("Comparisons", anchor="comparisons")
    yield Note(
        "Paired on the same tasks and seeds. p is corrected for the number of tests in each family (Holm), and decides "
        "whether a difference is shown; where none is, non-inferior means that the interval excludes a loss as large "
        f"as the margin ({margin_words(report)}). {sentence(families_words(report))}. “Detectable” is the "
        "smallest true difference that so many tasks would show with a power of "
        f"{report['settings']['power']}, before correction."
    )
    for name, metric in report["metrics"].items():
        rows = {pair: compared[name] for pair, compared in report["comparisons"].items() if name in compared}
        if metric["primary"] and rows:
            yield Heading(sentence(metric["title"]), 3)
            yield _primary(report, name, rows)
    titles = stage_titles(report)
    for pair, compared in report["comparisons"].items():
        if others := {name: row for name, row in compared.items() if not row["primary"]}:
            before, after = (titles[side] for side in pair.split(":"))
            table = _others(report, pair, others)
            yield Fold(f"All other metrics: {before} → {after}", [table], detail=True)


def _primary(report: Report, name: str, rows: Mapping[str, Mapping[str, Any]]) -> TableBlock:
    unit, span, titles = report["metrics"][name]["unit"], span_of(list(rows.values())), stage_titles(report)
    drawn = []
    for pair, row in rows.items():
        before, after = pair.split(":")
        compared, bar = _compared(report, pair, name, row), interval(row, unit, span)
        drawn.append(TableLine([f"{titles[before]} → {titles[after]}", *compared[:3], bar, *compared[3:]]))
    points = ", points" if unit == "share" else ""
    columns = [Column("Compared"), *_columns(points)]
    columns.insert(4, Column(Text("interval", "quiet"), extra=True))
    return TableBlock(f"{report['metrics'][name]['title']}, comparisons", columns, drawn)


def _others(report: Report, pair: str, rows: Mapping[str, Mapping[str, Any]]) -> TableBlock:
    drawn = [
        TableLine([titled(report["metrics"][name]), *_compared(report, pair, name, row)]) for name, row in rows.items()
    ]
    return TableBlock("Other metrics", [Column("Metric"), *_columns()], drawn)


def _columns(points: str = "") -> list[Column]:
    numbers = ("Before", "After", f"Difference{points}", "p", "p, Holm", "n", "Detectable")
    return [*(Column(title, number=True) for title in numbers), Column("Verdict")]


def _compared(report: Report, pair: str, name: str, row: Mapping[str, Any]) -> list[Inline]:
    unit = report["metrics"][name]["unit"]
    before, after = pair.split(":")
    return [
        value_cell(report, before, pair, name, row["before"]),
        value_cell(report, after, pair, name, row["after"]),
        difference_cell(row, unit, pair),
        probability(row["p"]),
        probability(row["p_adjusted"]),
        str(row["n"]),
        shown(row["mde"], unit),
        verdict(row["verdict"]),
    ]


def ablation(report: Report) -> Iterator[Block]:
    """The effect of each phase on what was live before it, alone, and left out of the end."""
    rows = ablation_rows(report)
    if not rows:
        return
    yield Heading("What each phase gave", anchor="ablation")
    yield Note(
        "Each phase’s policy on what was live before it, and, where that was evaluated, alone on the base and left out "
        "of the end: several answers to what its training is worth."
    )
    names = ("reward", "alignment")
    columns = [Column("Phase"), Column("Who learned"), Column("Put on")]
    for title in ("Reward", "Answers right, points"):
        columns += [Column(title, number=True), Column(Text("interval", "quiet"))]
    compared = [report["comparisons"][row["comparison"]] for row in rows]
    spans = {name: span_of([gains[name] for gains in compared if name in gains]) for name in names}
    drawn = []
    for row, gains in zip(rows, compared, strict=True):
        cells: list[Inline] = [row["phase"], row["learner"], row["on"]]
        for name in names:
            unit, gain = report["metrics"][name]["unit"], gains.get(name)
            cells.append(difference_cell(gain, unit, row["comparison"]))
            cells.append(
                [] if gain is None else [interval(gain, unit, spans[name]), verdict(gain["verdict"], small=True)]
            )
        drawn.append(TableLine(cells))
    yield TableBlock("What each phase gave", columns, drawn)


def baselines(report: Report) -> Iterator[Block]:
    """What answers the same tasks in other ways, and what is published on the official test split."""
    if not report["baselines"]:
        return
    yield Heading("Baselines", anchor="baselines")
    yield Note(
        f"What answers the same {len(report['plan']['tasks'])} tasks in other ways. Baselines that learn have seen the "
        f"training split only. {BASELINES_WORDS}"
    )
    yield baselines_table(report)
    if report["references"]:
        yield Heading("Published on the official test split", 3)
        columns = [Column("System"), Column("Accuracy, %", number=True), Column("Macro-F1, %", number=True)]
        rows = []
        for reference in report["references"]:
            figures = (reference[key] for key in ("accuracy", "macro_f1"))
            values = (NOTHING if figure is None else f"{figure:.1f}" for figure in figures)
            rows.append(TableLine([reference["name"], *values, reference["source"]]))
        yield TableBlock("Published results", [*columns, Column("Source")], rows)


def baselines_table(report: Report, *, hidden: Collection[str] = (), short: bool = False) -> TableBlock:
    """Baselines and stages on the same tasks.

    Args:
        hidden: Names of stages to leave out.
        short: Names instead of titles.
    """
    numbers = ("Answers right, %", "Macro-F1, %", "Model calls", "Tokens")
    columns = [Column("Who"), *(Column(title, number=True) for title in numbers)]
    columns.append(Column("Answered", number=True, extra=True))
    rows = [_system(report, row, short) for row in answered(report) if row["name"] not in hidden]
    return TableBlock("The same tasks; calls and tokens are means of a task", columns, rows)


def _system(report: Report, row: Mapping[str, Any], short: bool) -> TableLine:
    name, final, tasks = row["name"], report["standing"][0], len(report["plan"]["tasks"])
    is_stage = name in report["stages"]
    means, who = row["means"], (f"society {name}" if is_stage else name) if short else row["title"]
    cells: list[Inline] = [who if is_stage or means["answered"] else [who, _without_figures(name, means["errors"])]]
    for metric in ("alignment", "macro_f1"):
        href = f"#{slug(name)}.{metric}" if is_stage else f"#pairs-{slug(f'{name}:{final}')}"
        cells.append(mean_cell(means.get(metric), "share", tasks, href))
    cells += [amount(row["calls"]), amount(row["tokens"])]
    if is_stage:
        outcome = report["outcomes"][name]
        return TableLine([*cells, str(outcome["count"] - outcome["failed"])])
    errors = [Text(f"{count} × {why}", "quiet", small=True) for why, count in means["errors"].items()]
    return TableLine([*cells, [str(means["answered"]), *errors]])


def _without_figures(name: str, errors: Iterable[str]) -> Text:
    """Why a baseline has no figures, beside its name."""
    what = "not fitted" if name in (TFIDF, READER) else "no answers"
    return Text(f"{what}: {'; '.join(errors)}", "quiet", small=True)


def levels(report: Report) -> Iterator[Block]:
    """Right answers by the tasks' level of difficulty."""
    if not report["levels"]:
        return
    yield Heading("Answers right by difficulty", anchor="levels")
    yield Note(
        f"Shares of right answers in per cent with their {percent(report)} % intervals, over the tasks of each level."
    )
    columns = [Column("Who")]
    for level, level_row in report["levels"].items():
        columns.append(Column([f"Level {level}", Text(f"n {level_row['tasks']}", small=True)], number=True))
    drawn = []
    for row in answered(report):
        rights = ((level["right"].get(row["name"]), level["tasks"]) for level in report["levels"].values())
        drawn.append(TableLine([row["title"], *(mean_cell(right, "share", tasks) for right, tasks in rights)]))
    yield TableBlock("Answers right by level of difficulty", columns, drawn)


def by_studies(report: Report, *, short: bool = False) -> Iterator[Block]:
    """Right answers by the number of studies that answer a task. `short`: names instead of titles, no explanation."""
    if "studies" not in report:
        return
    systems, counts = report["studies"]["systems"], report["studies"]["counts"]
    titles = {row["name"]: row["title"] for row in answered(report)}
    names = {name: f"society {name}" if name in report["stages"] else name for name in systems}
    yield Heading("Answers right by number of studies", anchor="studies")
    if not short:
        yield Note(
            f"Shares of right answers in per cent with {percent(report)} % intervals, over the tasks with so many "
            "studies. The gap is the society minus the strongest baseline of at most its tokens, in points, paired. No "
            "interval here is corrected for the number of tests. Does the gap grow with more studies? "
            f"{growth_words(report)}"
        )
    columns = [Column(names[name] if short else sentence(titles[name]), number=True) for name in systems]
    pair = beside_strongest(report)
    rows = [
        TableLine(
            [
                [f"{count} studies", Text(f"n {row['tasks']}", small=True)],
                *(mean_cell(row["right"].get(name), "share", row["tasks"]) for name in systems),
                difference_cell(row["gap"], "share", pair),
            ]
        )
        for count, row in counts.items()
    ]
    yield TableBlock("Right by number of studies, %", [Column("Studies"), *columns, Column("Gap", number=True)], rows)
