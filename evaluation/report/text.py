"""The report as Markdown: the same tables as the page, for a terminal, a pull request or a paper's appendix."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from evaluation.causes.lost import TITLES
from evaluation.report.figures import (
    NOTHING,
    ablation_rows,
    amount,
    answered,
    between,
    change,
    change_between,
    data_words,
    families_words,
    margin_words,
    played,
    probability,
    sampled_words,
    sentence,
    shown,
    stage_titles,
    standing_words,
    titled,
    two,
    veto_words,
)
from evaluation.report.gave import GAVE, WAYS, gave, gave_rows, gave_words, lost_words
from evaluation.report.repairs import HEAD, blame_rows, blame_words
from evaluation.report.repairs import WORDS as REPAIRS_WORDS

Report = Mapping[str, Any]

LOST_WORDS = (
    "The first wrong step of each rollout whose answer is wrong, from its record. The refined answer is that of the "
    "refiner's last visit. A later step could have mended the answer; it is not to blame for an earlier one."
)
BASELINES_WORDS = (
    "Calls and tokens (read and written) are means of one task; every call counts with its whole prompt. Single calls "
    "are given the abstract; the society has to find it. Self-consistency has the largest number of calls whose tokens "
    "are no more than the society's. The juniors' majority and the society without board are counted from its "
    "own rollouts: the supervisor's choice decides ties, and 'without board' is the answer of the hypothesis as it was "
    "first refined, before protocol, reviews and revisions."
)


def markdown(report: Report) -> str:
    """`report` (from `evaluation.report.build.build`) as one Markdown document."""
    parts = ["\n\n".join(make(report)) for make in SECTIONS.values()]
    # An empty section leaves a line, as in all earlier reports, which --verify compares byte for byte.
    return "\n".join(f"{part}\n" if part else "" for part in parts).rstrip() + "\n"


def section(report: Report, name: str) -> str:
    """One section of `SECTIONS` without its heading; empty if the report has nothing for it."""
    return "\n\n".join([*SECTIONS[name](report)][1:])


def _head(report: Report) -> Iterator[str]:
    yield f"# Evaluation of run {_cell(report['run']['name'])}"
    yield f"**{_cell(report['verdict']['text'])}**"
    gone = ", ".join(map(_cell, report["run"]["rolled_back"]))
    yield _list(
        *(f"**warning:** {_cell(caution)}" for caution in report["cautions"]),
        *map(_cell, filter(None, (standing_words(report), lost_words(report), blame_words(report)))),
        f"compared: {', '.join(stage['title'] for stage in report['plan']['stages'])}",
        *([f"rolled back by the gate, so no stage here: {gone}"] if gone else []),
        f"data: {data_words(report)} ({_cell(report['data'])}), {sampled_words(report)}",
        f"protocols vetoed: {_cell(veto_words(report))}",
        *(f"{_cell(model)}: {', '.join(roles)}" for model, roles in played(report)),
        *(f"**warning:** {_cell(warning)}" for warning in report["judges"].get("warnings", ())),
    )
    yield from _gave(report)


def _gave(report: Report) -> Iterator[str]:
    """What each phase gave, for the first screen."""
    if merged := gave_rows(report):
        head = ["what each phase gave", "who learned", *(f"{one['title']}" for one in GAVE.values())]
        rows = [
            [
                row["phase"],
                row["learner"],
                *(_gained(one, way["unit"]) for one, way in zip(row["cells"], GAVE.values(), strict=True)),
            ]
            for row in merged
        ]
        yield _table(head, rows)
        return
    tables = gave(report)
    for table in tables:
        rows = [[row["phase"], *(_gained(one, table["unit"]) for one in row["cells"])] for row in table["rows"]]
        yield _table([f"what each phase gave: {table['title']}", *(WAYS[way] for way in table["ways"])], rows)
    if tables:
        yield _cell(gave_words(report))


def _gained(one: Mapping[str, Any] | None, unit: str) -> str:
    if one is None:
        return NOTHING
    return _difference(one, unit) + (f", {one['verdict']}" if one["verdict"] else "")


def _difference(one: Mapping[str, Any], unit: str) -> str:
    return f"{change(one['difference'], unit)} ({change_between(one['low'], one['high'], unit)})"


def _stages(report: Report) -> Iterator[str]:
    yield "## Stages"
    percent = f"{100 * report['settings']['confidence']:g}"
    yield (
        f"Means over tasks with {percent} % bootstrap intervals, or Clopper and Pearson's exact bound for a share that "
        "is 0 or 100 % throughout; n is the number of tasks with a value."
    )
    titles, stages = stage_titles(report), report["stages"]
    rows = []
    for name, metric in report["metrics"].items():
        if any(name in metrics for metrics in stages.values()):
            means = [metrics.get(name) for metrics in stages.values()]
            rows.append([titled(metric), *(_mean(mean, metric["unit"]) for mean in means)])
    yield _table(["metric", *(titles[name] for name in stages)], rows)


def _mean(mean: Mapping[str, Any] | None, unit: str) -> str:
    if mean is None:
        return NOTHING
    return f"{shown(mean['mean'], unit)} ({between(mean['low'], mean['high'], unit)}), n {mean['n']}"


def _comparisons(report: Report) -> Iterator[str]:
    if not report["comparisons"]:
        return
    yield "## Comparisons"
    yield (
        "Paired on the same tasks and seeds. p after Holm's correction within a family of tests decides whether a "
        "difference is shown; where none is, non-inferior means that the interval excludes a loss as large as the "
        f"margin ({margin_words(report)}). "
        f"Detectable is the smallest difference that would be found with a power of {report['settings']['power']:g}."
    )
    yield f"{_cell(sentence(families_words(report)))}."
    titles = stage_titles(report)
    for name, metric in report["metrics"].items():
        if not metric["primary"]:
            continue
        rows = []
        for pair, found in report["comparisons"].items():
            if name in found:
                before, after = (titles[side] for side in pair.split(":"))
                rows.append([f"{before} → {after}", *_compared(found[name], metric["unit"])])
        yield f"### {titled(metric)}"
        yield _table(["compared", "before", "after", "difference", "p", "p, Holm", "n", "detectable", "verdict"], rows)


def _compared(row: Mapping[str, Any], unit: str) -> list[str]:
    return [
        shown(row["before"], unit),
        shown(row["after"], unit),
        _difference(row, unit),
        probability(row["p"]),
        probability(row["p_adjusted"]),
        str(row["n"]),
        shown(row["mde"], unit),
        row["verdict"],
    ]


def _ablation(report: Report) -> Iterator[str]:
    if not report["ablation"]:
        return
    yield "## What each phase gave"
    rows = []
    for row in ablation_rows(report):
        found = report["comparisons"][row["comparison"]]
        cells = [_gained(found.get(name), report["metrics"][name]["unit"]) for name in ("reward", "alignment")]
        rows.append([row["phase"], row["learner"], row["on"], *cells])
    yield _table(["phase", "who learned", "put on", "reward", "answers right, points"], rows)


def _baselines(report: Report) -> Iterator[str]:
    if not report["baselines"]:
        return
    yield "## Baselines on the same tasks"
    rows = []
    for one in answered(report):
        means = [_mean(one["means"].get(name), "share") for name in ("alignment", "macro_f1")]
        rows.append([_cell(one["title"]), *means, amount(one["calls"]), amount(one["tokens"])])
    yield _table(["who", "answers right, %", "macro-F1, %", "model calls", "tokens"], rows)
    yield BASELINES_WORDS
    if report["references"]:
        yield "Published on the official test split:"
        rows = [
            [
                one["name"],
                *(NOTHING if one[key] is None else f"{one[key]:.1f}" for key in ("accuracy", "macro_f1")),
                one["source"],
            ]
            for one in report["references"]
        ]
        yield _table(["system", "accuracy, %", "macro-F1, %", "source"], rows)


def _levels(report: Report) -> Iterator[str]:
    if not report["levels"]:
        return
    yield "## Answers right by difficulty"
    head = [f"level {level}, %" for level in report["levels"]]
    rows = [
        [_cell(row["title"]), *(_mean(found["right"].get(row["name"]), "share") for found in report["levels"].values())]
        for row in answered(report)
    ]
    yield _table(["who", *head], rows)


def _outcomes(report: Report) -> Iterator[str]:
    yield "## Answers, decisions and failures"
    titles = stage_titles(report)
    for stage, found in report["outcomes"].items():
        yield f"### {titles[stage]}: {found['count']} rollouts, {found['failed']} failed"
        answers = list(next(iter(found["confusion"].values())))
        rows = [[label, *map(str, row.values())] for label, row in found["confusion"].items()]
        yield _table(["answer key", *answers], rows)
        yield f"Decisions: {', '.join(f'{name} {count}' for name, count in found['decisions'].items())}."
        if found["vetoes"]:
            reasons = [[_cell(why), str(count)] for why, count in found["vetoes"].items()]
            yield _table(["veto", "rollouts"], reasons)
        if found["failures"]:
            reasons = [[_cell(why), str(count)] for why, count in found["failures"].items()]
            yield _table(["reason", "rollouts"], reasons)


def _lost(report: Report) -> Iterator[str]:
    if not report["lost"]:
        return
    yield "## Who lost the wrong answers"
    yield LOST_WORDS
    found, names = report["lost"].values(), stage_titles(report)
    rows = [[title, *(str(one["steps"][step]) for one in found)] for step, title in TITLES.items()]
    rows.append(["wrong answers", *(f"{one['wrong']} of {one['rollouts']}" for one in found)])
    rows.append(["right answers that were vetoed", *(str(one["vetoed"]) for one in found)])
    yield _table(["first wrong step", *(names[name] for name in report["lost"])], rows)
    if mended := blame_rows(report):
        yield REPAIRS_WORDS
        yield _table([*HEAD], [list(row) for row in mended])


def _plots(report: Report) -> Iterator[str]:
    if not report["plots"]:
        return
    yield "## Plots"
    for plot in report["plots"]:
        file = plot["files"].get("png")
        if file is None:
            yield f"{_cell(plot['title'])}: {_cell(plot['missing'])}"
        else:
            yield f"![{_cell(plot['title'])}]({file})"
            yield f"*{_cell(plot['title'])}.* {_cell(plot['caption'])}"


def _judges(report: Report) -> Iterator[str]:
    judges = report["judges"]
    if not judges:
        return
    yield "## The judges"
    second = judges["auditor"] and f"second judge, which training never uses: {_cell(judges['auditor'])}"
    yield f"Judge: {_cell(judges['judge'] or 'none recorded')}; {second or 'there was no second judge'}."
    if judges["n"]:
        alphas = [[name, two(alpha)] for name, alpha in judges["alpha"].items()]
        yield _table([f"agreement over {judges['n']} rollouts", "Krippendorff's alpha"], alphas)
    if judges["canaries"]:
        rows = [
            [row["title"], *(two(row[key]) for key in ("judge", "of_normal", "auditor", "of_normal_auditor"))]
            for row in judges["canaries"]
        ]
        yield _table(["canary", "judge", "judge on real work", "second judge", "second on real work"], rows)
    for words in (*judges["warnings"], *judges["notes"]):
        yield _cell(words)


def _made(report: Report) -> Iterator[str]:
    yield "## How it was made"
    settings, run, evaluated = report["settings"], report["run"], []
    if written := report.get("written"):
        changed = f", {written['modified_files']} files changed since" if written["modified_files"] else ""
        evaluated = [f"evaluated {written['time']}, commit {written['commit'] or 'unknown'}{changed}"]
    yield _list(
        f"{settings['resamples']} bootstrap samples, {settings['permutations']} exchanges a test, seed "
        f"{settings['seed']}, level {1 - settings['confidence']:.3g}",
        f"run {_cell(run['name'])} of {run['created']}, commit {run['commit'] or 'unknown'}",
        *evaluated,
        "`python -m chimera.eval --verify FOLDER` computes every number again from the run's rollouts",
        *map(_cell, report["notes"]),
    )


SECTIONS: Mapping[str, Callable[[Report], Iterator[str]]] = {
    "about": _head,
    "stages": _stages,
    "comparisons": _comparisons,
    "ablation": _ablation,
    "baselines": _baselines,
    "levels": _levels,
    "outcomes": _outcomes,
    "lost": _lost,
    "plots": _plots,
    "judges": _judges,
    "made": _made,
}
"""The sections of a report, in order: blocks with an empty line between them, of which the first is the heading."""


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _list(*items: str) -> str:
    return "\n".join(f"- {item}" for item in items)


def _cell(text: Any) -> str:
    """Escape text from elsewhere, so that it is not read as Markdown."""
    words = " ".join(str(text).split())
    for mark in ("\\", "|", "`", "<", "*", "_", "[", "]", "#"):
        words = words.replace(mark, f"\\{mark}")
    return words
