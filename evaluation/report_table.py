"""A report on the terminal: every stage with its main figures, beside the first; 80 columns hold it."""

from collections.abc import Mapping
from typing import Any

from rich.table import Table


def table(report: Mapping[str, Any]) -> Table:
    """The report's stages and baselines; differences are paired and against the first stage."""
    first = next(iter(report["stages"]))
    confidence = f"{100 * report['settings']['confidence']:g} %"
    title = f"n = {len(report['plan']['tasks'])}"
    if len(report["stages"]) > 1:
        title = f"differences from {first}, paired, with {confidence} intervals; {title}"
    shown = Table(title=title, title_justify="left")
    shown.add_column("stage", no_wrap=True)
    for name in ("reward", "right, %", "macro-F1, %"):
        shown.add_column(name, justify="right", no_wrap=True)
    for stage, means in report["stages"].items():
        compared = report["comparisons"].get(f"{first}:{stage}", {})
        failed = report["outcomes"][stage]["failed"]
        shown.add_row(
            f"{stage}\n{failed} failed" if failed else stage,
            _cell(means, compared, "reward", 1, 3),
            _cell(means, compared, "alignment", 100, 1),
            _cell(means, compared, "macro_f1", 100, 1, interval=False),
            end_section=True,
        )
    for name, means in report["baselines"].items():
        shown.add_row(name, "-", _cell(means, {}, "alignment", 100, 1), _cell(means, {}, "macro_f1", 100, 1))
    return shown


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
    value = f"{factor * means[metric]['mean']:.{decimals}f}"
    if metric not in compared:
        return value
    found = compared[metric]
    difference = f"{factor * found['difference']:+.{decimals}f}"
    if interval and found["low"] is not None:
        low, high = (f"{factor * found[end]:+.{decimals}f}" for end in ("low", "high"))
        difference += f" [{low}, {high}]"
    return f"{value}\n{difference}"
