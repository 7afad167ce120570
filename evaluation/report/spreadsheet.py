"""A report as two tidy CSV files: one line for each mean or difference with its interval, one for each rollout."""

import csv
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from evaluation.report.conversations import file_of, linked

METRICS, ROLLOUTS = "metrics.csv", "rollouts.csv"
HEAD = ("kind", "name", "beside", "metric", "unit", "n", "value", "low", "high", "p", "p_corrected", "verdict")
"""Columns of metrics.csv. kind: "stage", "baseline" (a mean) or "difference" (`name` minus `beside`, paired)."""
FACTS = ("id", "task", "repeat", "label", "answer", "decision", "veto", "status", "error", "lost", "file", "line")
FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""First characters that make a spreadsheet read a text as a formula."""

Report = Mapping[str, Any]
Cell = str | float | None


def metrics_csv(report: Report) -> str:
    """Every mean of a stage or baseline, and every paired difference, one a line. Shares are from 0 to 1."""
    means = [*_means(report, "stage", report["stages"]), *_means(report, "baseline", report["baselines"])]
    return _csv(HEAD, [*means, *_differences(report)])


def rollouts_csv(report: Report) -> str:
    """Every rollout of every stage with its facts and its value of every metric; an empty cell is no value."""
    metrics = [name for name in report["metrics"] if any(name in row["values"] for _, row in _rows(report))]
    pages = linked(report)
    lines: list[list[Cell]] = []
    for stage, row in _rows(report):
        page = file_of(row["id"]) if row["id"] in pages else None
        lines.append([stage, *(row[name] for name in FACTS), page, *(row["values"].get(name) for name in metrics)])
    return _csv(["stage", *FACTS, "conversation", *metrics], lines)


def _rows(report: Report) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for stage, outcome in report["outcomes"].items():
        for row in outcome["rollouts"]:
            yield stage, row


def _means(report: Report, kind: str, systems: Mapping[str, Mapping[str, Any]]) -> Iterator[list[Cell]]:
    for name, means in systems.items():
        for metric, about in report["metrics"].items():
            if (mean := means.get(metric)) is not None:
                numbers = (mean["n"], mean["mean"], mean["low"], mean["high"])
                yield [kind, name, None, metric, about["unit"], *numbers, None, None, None]


def _differences(report: Report) -> Iterator[list[Cell]]:
    for pair, rows in report["comparisons"].items():
        before, after = pair.split(":")
        for metric, comparison in rows.items():
            cells = [comparison[key] for key in ("n", "difference", "low", "high", "p", "p_adjusted", "verdict")]
            yield ["difference", after, before, metric, report["metrics"][metric]["unit"], *cells]


def _csv(head: Sequence[str], lines: Iterable[Sequence[Cell]]) -> str:
    written = io.StringIO()
    writer = csv.writer(written, lineterminator="\n")
    writer.writerow(head)
    writer.writerows([_cell(cell) for cell in line] for line in lines)
    return written.getvalue()


def _cell(value: Cell) -> Cell:
    """A value as it stands in a file. Text that a spreadsheet would run as a formula begins with an apostrophe."""
    if isinstance(value, str):
        return f"'{value}" if value.startswith(FORMULA) else value
    return value + 0.0 if isinstance(value, float) else value  # 0.0 is added because -0.0 is 0.
