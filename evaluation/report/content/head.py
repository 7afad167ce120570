"""The first screen of a report, and what the terminal shows of it."""

from collections.abc import Iterator, Mapping
from typing import Any

from chimera.show.blocks import (
    Block,
    Column,
    FactList,
    Heading,
    Inline,
    Items,
    Note,
    Piece,
    ResultCard,
    ResultCards,
    TableBlock,
    TableLine,
    Text,
    joined,
)
from evaluation.report.content import answers
from evaluation.report.content.cells import (
    TONES,
    Links,
    difference_cell,
    interval,
    mean_cell,
    percent,
    span_of,
    value_cell,
    verdict,
)
from evaluation.report.content.results import baselines_table, by_studies
from evaluation.report.formats import (
    amount,
    beside_society,
    beside_strongest,
    change,
    change_between,
    data_words,
    equals,
    growth_words,
    pays_words,
    played,
    probability,
    sampled_words,
    sentence,
    shown,
    slug,
    stage_titles,
    standing,
    standing_words,
    veto_words,
)
from evaluation.report.gains import GAINS, WAYS, gain_rows, gain_tables, gains_words
from evaluation.report.losses import blame_words, lost_words

Report = Mapping[str, Any]
GAINED = "What each phase gave"
UNCORRECTED = (
    "In brackets the {} % bootstrap interval of the paired difference, not corrected for the number of tests. Whether "
    "a difference is shown rests on the corrected p-value alone ("
)


def about(report: Report) -> Iterator[Block]:
    """The comparison, its verdict, what each phase gave, where the society stands, the data and the models."""
    yield Note(_eyebrow(report), "eyebrow")
    yield Heading(_title(report), 1)
    if report["cautions"]:
        yield Items([f"{sentence(caution)}." for caution in report["cautions"]], "Before you read on:", warning=True)
    if report["verdict"]["comparison"]:
        yield Note(Text(report["verdict"]["text"], "strong"))
    if cards := _cards(report):
        yield ResultCards(cards)
        yield Note([UNCORRECTED.format(percent(report)), Text("families of tests", href="#comparisons"), ")."], "fine")
    yield from gains(report)
    if rows := standing(report):
        yield _standing(report, rows)
    yield from (answers.figure(plot) for plot in report["plots"] if plot["name"] in answers.FIRST and plot["files"])
    yield FactList(list(_facts(report)))
    if warnings := report["judges"].get("warnings"):
        yield Items([f"{sentence(warning)}." for warning in warnings], "Before you trust the reward:", warning=True)


def brief(report: Report) -> Iterator[Block]:
    """The report for a terminal of 80 columns, without its warnings."""
    yield _live_stages(report)
    if report["baselines"]:
        hidden = set(report["stages"]).difference(_brief(report))
        yield baselines_table(report, hidden=hidden, short=True)
    yield from list(by_studies(report, short=True))[1:]
    yield from gains(report)
    pays = [f"{title} {words}" for title, _, words in _pays(report) if words]
    for words in (report["verdict"]["text"], standing_words(report), *pays, lost_words(report), blame_words(report)):
        if words:
            yield Note(words)


def gains(report: Report) -> Iterator[Block]:
    """What each phase gave, and how to read it; nothing if no phase was evaluated."""
    tables = gain_tables(report)
    if not tables:
        return
    if rows := gain_rows(report):
        columns = [Column(GAINED), Column("Who learned", extra=True)]
        for metric in GAINS.values():
            columns += [Column(sentence(metric["title"]), number=True), Column("", extra=True)]
        yield TableBlock(GAINED, columns, [_in_order(row, place == len(rows)) for place, row in enumerate(rows, 1)])
    else:
        for table in tables:
            columns = [Column(f"{GAINED}: {table['title']}")]
            columns += [Column(sentence(WAYS[way]), number=True) for way in table["ways"]]
            yield TableBlock(GAINED, columns, [_by_way(row, table) for row in table["rows"]])
    words = f"{percent(report)} % intervals, not corrected for the number of comparisons. {gains_words(report)}"
    yield Note(words, "fine")


def _in_order(row: Mapping[str, Any], last: bool) -> TableLine:
    cells: list[Inline] = [sentence(row["phase"]) if last else row["phase"], row["learner"]]
    for gain, metric in zip(row["cells"], GAINS.values(), strict=True):
        pair = gain and gain["comparison"]
        cells += [difference_cell(gain, metric["unit"], pair), verdict(gain and gain["verdict"])]
    return TableLine(cells, strong=last)


def _by_way(row: Mapping[str, Any], table: Mapping[str, Any]) -> TableLine:
    last = row is table["rows"][-1]
    cells: list[Inline] = [sentence(row["phase"]) if last else row["phase"]]
    for gain in row["cells"]:
        pair = gain and gain["comparison"]
        cells.append([*difference_cell(gain, table["unit"], pair), verdict(gain and gain["verdict"], small=True)])
    return TableLine(cells, strong=last)


def _eyebrow(report: Report) -> str:
    created = report["run"]["created"]
    return f"Chimera evaluation · run {report['run']['name']}{f' · {created[:10]}' if created else ''}"


def _title(report: Report) -> str:
    if not report["verdict"]["comparison"]:
        return report["verdict"]["text"]
    before, after = (stage_titles(report)[side] for side in report["verdict"]["comparison"].split(":"))
    return f"{sentence(after)} against {before}, on {data_words(report)}"


def _cards(report: Report) -> list[ResultCard]:
    """The comparisons of the first screen: reward and right answers of the verdict, and the strongest baseline."""
    pair, strongest = report["verdict"]["comparison"], beside_strongest(report)
    cards = [] if pair is None else [("Answers right", pair, "alignment"), ("Reward", pair, "reward")]
    if strongest is not None:
        cards.append(("Answers right, beside the strongest baseline of at most its tokens", strongest, "alignment"))
    return [
        _card(report, title, pair, name, row)
        for title, pair, name in cards
        if (row := report["comparisons"][pair].get(name)) is not None
    ]


def _card(report: Report, title: str, pair: str, name: str, row: Mapping[str, Any]) -> ResultCard:
    unit = report["metrics"][name]["unit"]
    points = " points" if name == "alignment" else ""
    figures: list[Piece] = [Text(change(row["difference"], unit), "strong", f"#pairs-{slug(pair)}"), points]
    figures.append(Text(f" ({change_between(row['low'], row['high'], unit)})", "quiet"))
    rival = pair == beside_strongest(report)
    note = [*(_rivals if rival else _sides)(report, pair, name, row), *_test(report, row, unit, points)]
    bar = interval(row, unit, span_of([row]))
    return ResultCard(title, sentence(row["verdict"]), TONES.get(row["verdict"], ""), figures, bar, note)


def _sides(report: Report, pair: str, name: str, row: Mapping[str, Any]) -> list[Piece]:
    stages = zip(pair.split(":"), ("before", "after"), strict=True)
    before, after = (value_cell(report, stage, pair, name, row[side]) for stage, side in stages)
    return ["From ", before, " to ", after, " %" if name == "alignment" else ""]


def _rivals(report: Report, pair: str, name: str, row: Mapping[str, Any]) -> list[Piece]:
    unit = report["metrics"][name]["unit"]
    rival, society = pair.split(":")
    theirs, ours = (amount(report["work"][side]["tokens"]) for side in (rival, society))
    return [
        f"{sentence(stage_titles(report)[rival])}: {shown(row['before'], unit)} % with {theirs} tokens a task; "
        "the society: ",
        value_cell(report, society, pair, name, row["after"]),
        f" % with {ours}",
    ]


def _test(report: Report, row: Mapping[str, Any], unit: str, points: str) -> Iterator[str]:
    corrected = f", and {probability(row['p_adjusted'])} after correction for its family of tests"
    yield f"; n = {row['n']}; p {equals(row['p'])}{', the gate’s own test' if row['by_gate'] else corrected}."
    if row["verdict"] == "non-inferior":
        margin = f"{shown(row['margin'], unit)}{points}"
        yield f" Non-inferior: the interval excludes a loss of {margin}, the margin."
    if row["mde"] is not None:
        yield (
            f" Differences of {shown(row['mde'], unit)}{points} or more would be found with a power of "
            f"{report['settings']['power']}, before correction."
        )


def _standing(report: Report, rows: list[dict[str, Any]]) -> TableBlock:
    final, tasks = report["standing"][0], len(report["plan"]["tasks"])
    name = "On the same tasks, means of a task"
    columns = [Column(name), *(Column(title, number=True) for title in ("Right, %", "Calls", "Tokens"))]
    drawn = []
    for row in rows:
        is_final = row["name"] == final
        href = f"#{slug(final)}.alignment" if is_final else f"#pairs-{slug(row['name'] + ':' + final)}"
        mean = mean_cell(row["means"].get("alignment"), "share", tasks, href)
        drawn.append(
            TableLine([sentence(row["title"]), mean, amount(row["calls"]), amount(row["tokens"])], strong=is_final)
        )
    return TableBlock("The society beside its baselines", columns, drawn)


def _facts(report: Report) -> Iterator[tuple[str, Inline]]:
    links = Links.of(report)
    compared = joined([links.system(name) for name in report["stages"]])
    if report["baselines"]:
        compared += ["; beside them ", Text(f"{len(report['baselines'])} baselines", href="#baselines")]
    if gone := report["run"]["rolled_back"]:
        compared.append(f"; rolled back by the gate, so no stage here: {', '.join(gone)}")
    yield "Compared", compared
    for title, pair, words in _pays(report):
        if words:
            yield title, Text(words, "strong", f"#pairs-{slug(pair)}")
    if words := standing_words(report):
        yield "Stands", words
    yield "Data", f"{data_words(report)} ({report['data']})"
    yield "Answers", sampled_words(report)
    yield "Vetoed", Text(veto_words(report), href="#answers")
    if words := lost_words(report):
        yield "Lost", [Text(words, href="#lost"), f" {blame_words(report)}"]
    models = [[Text(model, "strong"), f": {', '.join(roles)}"] for model, roles in played(report)]
    yield "Models", joined(models, ";\n")


def _pays(report: Report) -> list[tuple[str, str, str]]:
    """The questions whether a team pays, the comparison of each, and its answer, which is empty where none can be told.

    Whether dividing pays is asked apart only where the strongest rival divides the evidence, too.
    """
    strongest, undivided = (beside_society(report, report.get(rival)) for rival in ("strongest", "undivided"))
    dividing = pays_words(report, undivided=True) if undivided != strongest else ""
    return [
        ("Does a team pay?", strongest, pays_words(report)),
        ("Does dividing the evidence pay?", undivided, dividing),
        ("Does the gap grow with more studies?", strongest, growth_words(report)),
    ]


def _live_stages(report: Report) -> TableBlock:
    """The stages that were live and each phase alone; below each mean its paired difference from the first stage."""
    first = next(iter(report["stages"]))
    name = f"n = {len(report['plan']['tasks'])}"
    if len(report["stages"]) > 1:
        name = f"differences from {first}, paired, with {percent(report)} % intervals; {name}"
    columns = [Column("stage"), *(Column(title, number=True) for title in ("reward", "right, %", "macro-F1, %"))]
    rows = []
    for stage in _brief(report):
        failed = report["outcomes"][stage]["failed"]
        cells: list[Inline] = [[stage, Text(f"{failed} failed" if failed else "", "bad", small=True)]]
        compared = report["comparisons"].get(f"{first}:{stage}", {})
        cells += [
            _beside_first(report["stages"][stage].get(metric), compared.get(metric), report["metrics"][metric]["unit"])
            for metric in ("reward", "alignment", "macro_f1")
        ]
        rows.append(TableLine(cells))
    return TableBlock(name, columns, rows)


def _beside_first(mean: Mapping[str, Any] | None, row: Mapping[str, Any] | None, unit: str) -> list[Piece]:
    if mean is None:
        return [shown(None, unit)]
    value: list[Piece] = [shown(mean["mean"], unit)]
    if row is None:
        return value
    ends = f" [{change(row['low'], unit)}, {change(row['high'], unit)}]" if row["low"] is not None else ""
    return [*value, Text(f"{change(row['difference'], unit)}{ends}", small=True)]


def _brief(report: Report) -> list[str]:
    """The stages for the terminal: not those without one phase and not coalitions, of which there are many."""
    kinds = {stage["name"]: stage["kind"] for stage in report["plan"]["stages"]}
    last = report["standing"][0]
    return [name for name in report["stages"] if kinds[name] in ("sequence", "alone") or name == last]
