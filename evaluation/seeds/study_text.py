"""A study for readers, as blocks: study.md, the tables for a terminal, and notes on the limits."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from chimera.show.blocks import Block, Column, Heading, Inline, Items, Note, TableBlock, TableLine, Text

SHOWN = ("reward", "alignment")
"""The metrics that the terminal shows; study.md has all."""
CLOSE = 30
"""With fewer tasks a bootstrap interval is rough."""


def about(study: Mapping[str, Any]) -> str:
    """Number of runs and tasks of the study, in one sentence."""
    counts = study["counts"]
    parts = [
        _count(counts["runs"], "run"),
        _count(counts["training_seeds"], "training seed"),
        _count(counts["data_seeds"], "data seed"),
        _count(counts["tasks"], f"{study['runs'][0]['split']} task"),
    ]
    return f"{parts[0]}: {parts[1]} on each of {parts[2]}, {parts[3]} in all."


def notes(study: Mapping[str, Any]) -> list[str]:
    """The limits that a reader should know, one sentence each."""
    counts, runs = study["counts"], study["runs"]
    level = f"{100 * study['settings']['confidence']:g} %"
    sentences: list[str] = []
    if counts["training_seeds"] == 1:
        sentences.append(
            "There is one training seed: nothing here tells what another seed would give. No interval over seeds can "
            "be given, and those of single runs are about tasks only."
        )
    else:
        sentences.append(
            f"Intervals are {level} and about new training seeds and new tasks (two-level bootstrap, Cochran's t). "
            "Those of single runs are about tasks only. None is corrected for the number of rows."
        )
    if counts["data_seeds"] > 1:
        sentences.append(
            f"The {counts['data_seeds']} data seeds are strata: intervals are about these data sets. What other data "
            "sets would give is shown apart, from one value for each data seed."
        )
    if any(row["rolled_back"] for row in study["comparisons"]):
        sentences.append("What the gate rolled back counts as what stayed live instead: no difference from before.")
    if counts["tasks"] < CLOSE * counts["data_seeds"]:
        sentences.append(f"{counts['tasks']} tasks are few: intervals are rough.")
    if not study["same_tasks"]:
        sentences.append("Runs of one data seed were not all asked the same tasks: each counts with its own.")
    if len({run["written"].get("commit") for run in runs}) > 1 or any(
        run["written"].get("modified_files") for run in runs
    ):
        sentences.append("The reports were not all made by the same committed code: see the commits of the runs.")
    return sentences + [
        f"'{row['title']}' lacks {', '.join(row['without'])}, whose reports do not have it."
        for row in study["comparisons"]
        if row["without"]
    ]


def brief(study: Mapping[str, Any]) -> list[Block]:
    """The comparisons, each run of the first of them, and what each phase gave; 80 columns hold them."""
    shown = [name for name in SHOWN if name in study["metrics"]]
    level = f"{100 * study['settings']['confidence']:g} %"
    lines = [
        TableLine([_title(row), *(_summary(row["metrics"].get(name), _scale(study, name)) for name in shown)])
        for row in study["comparisons"]
    ]
    columns = [Column("what"), *(Column(_heading(study, name), number=True) for name in shown)]
    blocks: list[Block] = [TableBlock(f"differences with {level} intervals over seeds and tasks", columns, lines)]
    blocks += [_runs_of_first(study, shown)] if study["comparisons"] else []
    blocks += [_shapley(study)] if study["shapley"] else []
    return blocks


def document(study: Mapping[str, Any]) -> list[Block]:
    """The whole study."""
    blocks: list[Block] = [Heading("Study over training seeds", 1), Note(about(study)), Items(notes(study))]
    for name, metric in study["metrics"].items():
        unit = ", points of 100" if metric["unit"] == "share" else ""
        blocks += [Heading(f"{metric['title']}{unit}"), *_of_metric(study, name)]
    if study["shapley"]:
        gains = next(iter(next(iter(study["shapley"].values())).values()))
        runs = ", ".join(run_row["run"] for run_row in gains["per_run"])
        order = f"The mean gain over all orders of the phases, of {runs}; a phase that was rolled back gave 0 there."
        blocks += [Heading("What each phase gave: Shapley values"), _shapley(study), Note(order)]
    if study["blame"]:
        columns = [
            Column("step made right"),
            Column("share of the examined, %", number=True),
            Column("runs", number=True),
        ]
        lines = [TableLine([step, _share(row), str(row["runs"])]) for step, row in study["blame"].items()]
        title = "Wrong answers that become right when their first wrong step is made right"
        blocks += [Heading(title), TableBlock("", columns, lines)]
    return [*blocks, Heading("Runs"), _runs(study), *(Note(words) for words in EXPLAINED)]


EXPLAINED = (
    "Interquartile mean (IQM): of the runs' differences, without the lowest and the highest quarter.",
    "P(better): the probability that a run after does better on a task than a run before; a tie counts half.",
    "Both are from Agarwal et al. 2021 (arXiv 2108.13264).",
)


def _shapley(study: Mapping[str, Any]) -> TableBlock:
    shares: Mapping[str, Any] = study["shapley"]
    columns = [Column("phase"), *(Column(_heading(study, name), number=True) for name in shares)]
    lines = [
        TableLine([phase, *(_difference(rows[phase], _scale(study, name)) for name, rows in shares.items())])
        for phase in next(iter(shares.values()))
    ]
    return TableBlock("what each phase gave: Shapley values over seeds and tasks", columns, lines)


def _runs_of_first(study: Mapping[str, Any], shown: Sequence[str]) -> TableBlock:
    first = study["comparisons"][0]
    shown = [name for name in shown if name in first["metrics"]]
    columns = [Column("run"), *(Column(_heading(study, name), number=True) for name in shown)]
    by_run = {name: {row["run"]: row for row in first["metrics"][name]["per_run"]} for name in shown}
    lines = [
        TableLine([run, *(_difference(by_run[name][run], _scale(study, name)) for name in shown)])
        for run in first["runs"]
    ]
    return TableBlock(f"{first['title']}, run by run: intervals over tasks only", columns, lines)


def _of_metric(study: Mapping[str, Any], name: str) -> Iterator[Block]:
    """One metric of all comparisons, and of the whole gain each data seed and each run."""
    scale, beyond = _scale(study, name), study["counts"]["data_seeds"] > 1
    rows = [(row, row["metrics"][name]) for row in study["comparisons"] if name in row["metrics"]]
    numbers = ("runs", "before", "after", "difference", "IQM", "P(better), %", *(["other data sets"] * beyond))
    lines = []
    for row, figures in rows:
        better = figures.get("improvement")
        cells: list[Inline] = [
            *(_title(row), str(len(row["runs"])), _level(figures["before"], scale), _level(figures["after"], scale)),
            *(_difference(figures["difference"], scale), _difference(figures["iqm"], scale)),
            *("-" if better is None else _share(better), *([_ends(figures["over_data_seeds"], scale)] * beyond)),
        ]
        lines.append(TableLine(cells))
    yield TableBlock("", [Column("what"), *(Column(title, number=True) for title in numbers)], lines)
    for row, figures in rows:
        if row["kind"] == "whole":
            yield Items(list(_details(figures, scale)), f"{_title(row)}, run by run (intervals over tasks only):")


def _details(row: Mapping[str, Any], scale: tuple[float, int]) -> Iterator[str]:
    """Each data seed and each run of a comparison."""
    for figures in row["per_data_seed"]:
        yield f"all runs of data seed {figures['data_seed']}: {_difference(figures, scale)} (over seeds and tasks)"
    for figures in row["per_run"]:
        before, after = _level(figures["before"], scale), _level(figures["after"], scale)
        yield f"{figures['run']}: {_difference(figures, scale)}, from {before} to {after}, n = {figures['n']}"


def _runs(study: Mapping[str, Any]) -> TableBlock:
    titles = ("run", "training seed", "data seed", "tasks", "rolled back", "report's commit")
    lines = []
    for run in study["runs"]:
        commit, back = str(run["written"].get("commit") or "-")[:10], ", ".join(run["rolled_back"]) or "-"
        counts = (str(run[key]) for key in ("seed", "data_seed", "tasks"))
        lines.append(TableLine([run["name"], *counts, back, commit]))
    return TableBlock("", [Column(title) for title in titles], lines)


def _summary(row: Mapping[str, Any] | None, scale: tuple[float, int]) -> Inline:
    if row is None:
        return "-"
    lines = [_difference(row["difference"], scale), f"IQM {_difference(row['iqm'], scale)}"]
    lines += [f"P(better) {_share(row['improvement'])}"] if "improvement" in row else []
    levels = f"{_level(row['before'], scale)} > {_level(row['after'], scale)}"
    return [levels, *(Text(line, small=True) for line in lines)]


def _title(row: Mapping[str, Any]) -> str:
    back = len(row["rolled_back"])
    return f"{row['title']} (rolled back in {back} of {len(row['runs'])} runs)" if back else str(row["title"])


def _heading(study: Mapping[str, Any], name: str) -> str:
    metric = study["metrics"][name]
    title = str(metric["title"]).partition(" (")[0]
    return f"{title}, points" if metric["unit"] == "share" else title


def _scale(study: Mapping[str, Any], name: str) -> tuple[float, int]:
    """Factor and decimals in which a metric is shown."""
    return (100.0, 1) if study["metrics"][name]["unit"] == "share" else (1.0, 3)


def _difference(estimate: Mapping[str, Any], scale: tuple[float, int]) -> str:
    value = estimate["value"] if "value" in estimate else estimate["mean"]
    ends = None if estimate["low"] is None else (estimate["low"], estimate["high"])
    return f"{value * scale[0]:+z.{scale[1]}f} {_ends(ends, scale)}"


def _ends(ends: Sequence[float] | None, scale: tuple[float, int]) -> str:
    if ends is None:
        return "(no interval)"
    low, high = (f"{end * scale[0]:+z.{scale[1]}f}" for end in ends)
    return f"[{low}, {high}]"


def _share(estimate: Mapping[str, Any]) -> str:
    if estimate["low"] is None:
        return f"{100 * estimate['value']:.0f} (no interval)"
    return f"{100 * estimate['value']:.0f} [{100 * estimate['low']:.0f}, {100 * estimate['high']:.0f}]"


def _level(value: float, scale: tuple[float, int]) -> str:
    return f"{value * scale[0]:z.{scale[1]}f}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"
