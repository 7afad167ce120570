"""A report for a terminal of 80 columns: main metrics of each stage compared with the first, and baselines."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.table import Table

from evaluation.report.figures import amount, answered, signed
from evaluation.report.gave import GAVE, WAYS, gave, gave_rows, replaced


def table(report: Mapping[str, Any]) -> Table:
    """The stages that were live and each phase alone. Differences are paired, from the first stage."""
    first = next(iter(report["stages"]))
    confidence = f"{100 * report['settings']['confidence']:g} %"
    title = f"n = {len(report['plan']['tasks'])}"
    if len(report["stages"]) > 1:
        title = f"differences from {first}, paired, with {confidence} intervals; {title}"
    shown = Table(title=title, title_justify="left")
    shown.add_column("stage", no_wrap=True)
    for name in ("reward", "right, %", "macro-F1, %"):
        shown.add_column(name, justify="right", no_wrap=True)
    for stage in _brief(report):
        means = report["stages"][stage]
        compared = report["comparisons"].get(f"{first}:{stage}", {})
        failed = report["outcomes"][stage]["failed"]
        shown.add_row(
            f"{stage}\n{failed} failed" if failed else stage,
            _cell(means, compared, "reward", 1, 3),
            _cell(means, compared, "alignment", 100, 1),
            _cell(means, compared, "macro_f1", 100, 1, interval=False),
            end_section=True,
        )
    return shown


def beside(report: Mapping[str, Any]) -> Table:
    """The same stages and all baselines: right answers, and mean calls and tokens of an answer."""
    shown = Table(title="the same tasks; calls and tokens are means of a task", title_justify="left")
    shown.add_column("who", no_wrap=True)
    for name in ("right, %", "macro-F1, %", "calls", "tokens"):
        shown.add_column(name, justify="right", no_wrap=True)
    hidden = set(report["stages"]).difference(_brief(report))
    for row in answered(report):
        if row["name"] in hidden:
            continue
        means = row["means"]
        right = _cell(means, {}, "alignment", 100, 1)
        if (found := means.get("alignment")) and found["low"] is not None:
            right += f" [{100 * found['low']:z.1f}, {100 * found['high']:z.1f}]"
        name = f"society {row['name']}" if row["name"] in report["stages"] else row["name"]
        shown.add_row(name, right, _cell(means, {}, "macro_f1", 100, 1), amount(row["calls"]), amount(row["tokens"]))
    return shown


def _brief(report: Mapping[str, Any]) -> list[str]:
    """The stages for the terminal: not those without one phase and not coalitions, of which there are many."""
    kinds = {stage["name"]: stage["kind"] for stage in report["plan"]["stages"]}
    last = report["standing"][0]
    return [name for name in report["stages"] if kinds[name] in ("sequence", "alone") or name == last]


def phases(report: Mapping[str, Any]) -> Table | None:
    """What each phase gave: right answers and reward; None if no phase was evaluated."""
    tables = gave(report)
    if not tables:
        return None
    confidence = f"{100 * report['settings']['confidence']:g} %"
    if merged := gave_rows(report):
        return _in_order(report, merged, confidence)
    ways = [way for way in WAYS if any(way in table["ways"] for table in tables)]
    shown = _by_phase(report, f"what each phase gave, with {confidence} intervals", apart=1)
    for way in ways:
        shown.add_column(WAYS[way], justify="right", min_width=14)
    for table in tables:
        shown.add_row(f"{table['title']}:")
        scale, digits = (100, 1) if table["unit"] == "share" else (1, 2)
        for row in table["rows"]:
            cells = dict(zip(table["ways"], row["cells"], strict=True))
            shown.add_row(row["phase"], *(_gained(cells.get(way), scale, digits) for way in ways))
        shown.add_section()
    return shown


def _in_order(report: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], confidence: str) -> Table:
    """What each phase gave in the run's order, one line a phase."""
    shown = _by_phase(report, f"what each phase gave beside the stage before, {confidence} intervals", apart=2)
    for one in GAVE.values():
        shown.add_column(one["title"], justify="right", no_wrap=True)
    for row in rows:
        right, reward = row["cells"]
        shown.add_row(row["phase"], _gained(right, 100, 1, " "), _gained(reward, 1, 3, " "))
    return shown


def _by_phase(report: Mapping[str, Any], title: str, *, apart: int) -> Table:
    """A table with a first column for phases; its columns are `apart` spaces from each other."""
    shown = Table(
        title=title,
        title_justify="left",
        caption=" ".join(replaced(report)) or None,
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        padding=(0, apart, 0, 0),
    )
    shown.add_column("phase", overflow="fold")
    return shown


def _gained(one: Mapping[str, Any] | None, scale: int, digits: int, between: str = "\n") -> str:
    """A difference and its interval, by default below it."""
    if one is None:
        return "-"
    value = signed(scale * one["difference"], digits)
    if one["low"] is None:
        return value
    return f"{value}{between}[{signed(scale * one['low'], digits)}, {signed(scale * one['high'], digits)}]"


def _cell(
    means: Mapping[str, Any],
    compared: Mapping[str, Any],
    metric: str,
    factor: int,
    decimals: int,
    *,
    interval: bool = True,
) -> str:
    """A mean, and below it the difference with its interval."""
    if metric not in means:
        return "-"
    value = f"{factor * means[metric]['mean']:z.{decimals}f}"
    if metric not in compared:
        return value
    found = compared[metric]
    difference = signed(factor * found["difference"], decimals)
    if interval and found["low"] is not None:
        low, high = (signed(factor * found[end], decimals) for end in ("low", "high"))
        difference += f" [{low}, {high}]"
    return f"{value}\n{difference}"
