"""A report on the terminal: every stage with its main figures, beside the base."""

from collections.abc import Mapping
from typing import Any

from rich.table import Table

SHOWN = (("reward", 1, 3), ("alignment", 100, 1), ("macro_f1", 100, 1))
"""Metrics of the table, with the factor and the decimals that they are shown with."""


def table(report: Mapping[str, Any]) -> Table:
    """The report's stages and baselines; differences are paired and against the first stage."""
    first = next(iter(report["stages"]))
    confidence = f"{100 * report['settings']['confidence']:g} %"
    shown = Table(title=f"{report['data']}: {confidence} intervals, differences from {first}", title_justify="left")
    shown.add_column("stage", no_wrap=True)
    shown.add_column("succeeded", justify="right")
    for name in ("reward", "aligned, %", "macro-F1, %"):
        shown.add_column(name, justify="right", no_wrap=True)
    shown.add_column("reward, verdict")
    for stage, metrics in report["stages"].items():
        compared = report["comparisons"].get(f"{first}:{stage}", {})
        cells = [_cell(metrics.get(name), compared.get(name), factor, decimals) for name, factor, decimals in SHOWN]
        outcome = report["outcomes"][stage]
        succeeded = f"{outcome['count'] - outcome['failed']}/{outcome['count']}"
        verdict = compared.get("reward", {}).get("verdict", "")
        shown.add_row(stage, succeeded, *cells, verdict, end_section=True)
    for name, baseline in report["baselines"].items():
        cells = [_cell(baseline.get(metric), None, factor, decimals) for metric, factor, decimals in SHOWN]
        shown.add_row(name, str(baseline["answered"]), *cells, "")
    return shown


def _cell(mean: Mapping[str, Any] | None, difference: Mapping[str, Any] | None, factor: int, decimals: int) -> str:
    if mean is None:
        return "-"
    value = f"{factor * mean['mean']:.{decimals}f}{_interval(mean, factor, decimals, '')}"
    if difference is None:
        return value
    return f"{value}\n{factor * difference['difference']:+.{decimals}f}{_interval(difference, factor, decimals, '+')}"


def _interval(found: Mapping[str, Any], factor: int, decimals: int, sign: str) -> str:
    if found["low"] is None:
        return ""
    low, high = (f"{factor * found[end]:{sign}.{decimals}f}" for end in ("low", "high"))
    return f" [{low}, {high}]"
