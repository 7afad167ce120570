"""A study for readers: study.md, tables for a terminal of 80 columns, and notes on the limits."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.markup import escape
from rich.table import Table

SHOWN = ("reward", "alignment")
"""The metrics of the terminal's first table; study.md has all."""
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
    found: list[str] = []
    if counts["training_seeds"] == 1:
        found.append(
            "There is one training seed: nothing here tells what another seed would give. No interval over seeds can "
            "be given, and those of single runs are about tasks only."
        )
    else:
        found.append(
            f"Intervals are {level} and about new training seeds and new tasks (two-level bootstrap, Cochran's t). "
            "Those of single runs are about tasks only. None is corrected for the number of rows."
        )
    if counts["data_seeds"] > 1:
        found.append(
            f"The {counts['data_seeds']} data seeds are strata: intervals are about these data sets. What other data "
            "sets would give is shown apart, from one value for each data seed."
        )
    if any(row["rolled_back"] for row in study["comparisons"]):
        found.append("What the gate rolled back counts as what stayed live instead: no difference from before.")
    if counts["tasks"] < CLOSE * counts["data_seeds"]:
        found.append(f"{counts['tasks']} tasks are few: intervals are rough.")
    if not study["same_tasks"]:
        found.append("Runs of one data seed were not all asked the same tasks: each counts with its own.")
    if len({run["written"].get("commit") for run in runs}) > 1 or any(
        run["written"].get("modified_files") for run in runs
    ):
        found.append("The reports were not all made by the same committed code: see the commits of the runs.")
    return found + _gaps(study)


def _gaps(study: Mapping[str, Any]) -> list[str]:
    """Which comparisons lack runs."""
    return [
        f"'{row['title']}' lacks {', '.join(row['without'])}, whose reports do not have it."
        for row in study["comparisons"]
        if row["without"]
    ]


def tables(study: Mapping[str, Any]) -> list[Table]:
    """The comparisons, and each run of the first of them; 80 columns hold both."""
    shown = [name for name in SHOWN if name in study["metrics"]]
    level = f"{100 * study['settings']['confidence']:g} %"
    whole = Table(title=f"differences with {level} intervals over seeds and tasks", title_justify="left")
    whole.add_column("what")
    for name in shown:
        whole.add_column(_heading(study, name), justify="right", no_wrap=True)
    for row in study["comparisons"]:
        cells = [_cell(row["metrics"].get(name), _scale(study, name)) for name in shown]
        whole.add_row(escape(_title(row)), *cells, end_section=True)
    runs = [_runs_table(study, shown)] if study["comparisons"] else []
    return [whole, *runs, *([_shapley_table(study)] if study["shapley"] else [])]


def _shapley_table(study: Mapping[str, Any]) -> Table:
    table = Table(title="what each phase gave: Shapley values over seeds and tasks", title_justify="left")
    table.add_column("phase")
    for name in study["shapley"]:
        table.add_column(_heading(study, name), justify="right", no_wrap=True)
    for phase in next(iter(study["shapley"].values())):
        cells = [_difference(rows[phase], _scale(study, name)) for name, rows in study["shapley"].items()]
        table.add_row(escape(phase), *cells)
    return table


def _runs_table(study: Mapping[str, Any], shown: Sequence[str]) -> Table:
    first = study["comparisons"][0]
    shown = [name for name in shown if name in first["metrics"]]
    table = Table(title=f"{first['title']}, run by run: intervals over tasks only", title_justify="left")
    table.add_column("run", no_wrap=True)
    for name in shown:
        table.add_column(_heading(study, name), justify="right", no_wrap=True)
    by_run = {name: {one["run"]: one for one in first["metrics"][name]["per_run"]} for name in shown}
    for run in first["runs"]:
        table.add_row(escape(run), *(_difference(by_run[name][run], _scale(study, name)) for name in shown))
    return table


def markdown(study: Mapping[str, Any]) -> str:
    lines = ["# Study over training seeds", "", about(study), ""]
    lines += [f"- {note}" for note in notes(study)]
    for name, metric in study["metrics"].items():
        unit = ", points of 100" if metric["unit"] == "share" else ""
        lines += ["", f"## {metric['title']}{unit}", "", *_metric_lines(study, name)]
    lines += [*_shapley_lines(study), *_blame_lines(study)]
    lines += ["", "## Runs", "", *_run_lines(study)]
    lines += ["", "Interquartile mean (IQM): of the runs' differences, without the lowest and the highest quarter."]
    lines += ["P(better): the probability that a run after does better on a task than a run before; a tie counts half."]
    lines += ["Both are from Agarwal et al. 2021 (arXiv 2108.13264)."]
    return "\n".join(lines) + "\n"


def _metric_lines(study: Mapping[str, Any], name: str) -> list[str]:
    scale = _scale(study, name)
    beyond = study["counts"]["data_seeds"] > 1
    heads = ["what", "runs", "before", "after", "difference", "IQM", "P(better), %", *(["other data sets"] * beyond)]
    lines = [_line(heads), _line(["---"] * len(heads))]
    details: list[str] = []
    for row in study["comparisons"]:
        found = row["metrics"].get(name)
        if found is None:
            continue
        better = found.get("improvement")
        cells = [
            _title(row),
            str(len(row["runs"])),
            _level(found["before"], scale),
            _level(found["after"], scale),
            _difference(found["difference"], scale),
            _difference(found["iqm"], scale),
            "-" if better is None else _share(better),
            *([_ends(found["over_data_seeds"], scale)] * beyond),
        ]
        lines.append(_line(cells))
        if row["kind"] == "whole":
            details += _detail_lines(row, found, scale)
    return [*lines, *details]


def _detail_lines(row: Mapping[str, Any], found: Mapping[str, Any], scale: tuple[float, int]) -> list[str]:
    """Each data seed and each run of a comparison."""
    lines = ["", f"{_title(row)}, run by run (intervals over tasks only):", ""]
    for one in found["per_data_seed"]:
        lines.append(f"- all runs of data seed {one['data_seed']}: {_difference(one, scale)} (over seeds and tasks)")
    for one in found["per_run"]:
        before, after = _level(one["before"], scale), _level(one["after"], scale)
        lines.append(f"- {one['run']}: {_difference(one, scale)}, from {before} to {after}, n = {one['n']}")
    return lines


def _shapley_lines(study: Mapping[str, Any]) -> list[str]:
    """Shapley values over seeds and tasks; nothing without them."""
    found: Mapping[str, Any] = study["shapley"]
    if not found:
        return []
    scales = {name: _scale(study, name) for name in found}
    lines = ["", "## What each phase gave: Shapley values", ""]
    lines += [_line(["phase", *(_heading(study, name) for name in found)]), _line(["---"] * (1 + len(found)))]
    for phase in next(iter(found.values())):
        lines.append(_line([phase, *(_difference(rows[phase], scales[name]) for name, rows in found.items())]))
    runs = ", ".join(one["run"] for one in next(iter(next(iter(found.values())).values()))["per_run"])
    order = f"The mean gain over all orders of the phases, of {runs}; a phase that was rolled back gave 0 there."
    return [*lines, "", order]


def _blame_lines(study: Mapping[str, Any]) -> list[str]:
    """Which repairs mend wrong answers, over seeds and tasks; nothing if none were examined."""
    found: Mapping[str, Any] = study["blame"]
    if not found:
        return []
    lines = ["", "## Wrong answers that become right when their first wrong step is made right", ""]
    lines += [_line(["step made right", "share of the examined, %", "runs"]), _line(["---"] * 3)]
    return lines + [_line([step, _share(row), str(row["runs"])]) for step, row in found.items()]


def _run_lines(study: Mapping[str, Any]) -> list[str]:
    lines = [
        _line(["run", "training seed", "data seed", "tasks", "rolled back", "report's commit"]),
        _line(["---"] * 6),
    ]
    for run in study["runs"]:
        commit = str(run["written"].get("commit") or "-")[:10]
        back = ", ".join(run["rolled_back"]) or "-"
        lines.append(_line([run["name"], str(run["seed"]), str(run["data_seed"]), str(run["tasks"]), back, commit]))
    return lines


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


def _cell(found: Mapping[str, Any] | None, scale: tuple[float, int]) -> str:
    if found is None:
        return "-"
    lines = [
        f"{_level(found['before'], scale)} > {_level(found['after'], scale)}",
        _difference(found["difference"], scale),
        f"IQM {_difference(found['iqm'], scale)}",
    ]
    if "improvement" in found:
        lines.append(f"P(better) {_share(found['improvement'])}")
    return "\n".join(lines)


def _difference(found: Mapping[str, Any], scale: tuple[float, int]) -> str:
    value = found["value"] if "value" in found else found["mean"]
    ends = None if found["low"] is None else (found["low"], found["high"])
    return f"{value * scale[0]:+z.{scale[1]}f} {_ends(ends, scale)}"


def _ends(ends: Sequence[float] | None, scale: tuple[float, int]) -> str:
    if ends is None:
        return "(no interval)"
    low, high = (f"{end * scale[0]:+z.{scale[1]}f}" for end in ends)
    return f"[{low}, {high}]"


def _share(found: Mapping[str, Any]) -> str:
    if found["low"] is None:
        return f"{100 * found['value']:.0f} (no interval)"
    return f"{100 * found['value']:.0f} [{100 * found['low']:.0f}, {100 * found['high']:.0f}]"


def _level(value: float, scale: tuple[float, int]) -> str:
    return f"{value * scale[0]:z.{scale[1]}f}"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"
