"""A report's files: report.json, what is made from it (report.md, index.html, CSV), each replaced as a whole."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from chimera.core.errors import RunError
from chimera.core.files import replace_file
from evaluation.report.page import page
from evaluation.report.spreadsheet import METRICS, ROLLOUTS, metrics_csv, rollouts_csv
from evaluation.report.text import markdown

DATA, TEXT, PAGE = "report.json", "report.md", "index.html"
PREDICTIONS, MISSING = "predictions.json", "predictions_missing.json"
FILES = (DATA, TEXT, PAGE, METRICS, ROLLOUTS, PREDICTIONS, MISSING)
PLOTS = "plots"


def write_report(report: Mapping[str, Any], folder: Path) -> Path:
    """Write `report` (from `evaluation.report.build.build`) into `folder`, which has its plots; returns the page.

    Raises:
        RunError: A file cannot be written, or a plot's drawing cannot be read.
    """
    try:
        shown = shown_files(report, folder)
        folder.mkdir(parents=True, exist_ok=True)
        replace_file(folder / DATA, json.dumps(report, indent=1, ensure_ascii=False, allow_nan=False) + "\n")
        for name, text in shown.items():
            replace_file(folder / name, text)
    except OSError as error:
        raise RunError(f"the report cannot be written to {folder}: {error.filename} {error.strerror}") from error
    return folder / PAGE


def shown_files(report: Mapping[str, Any], folder: Path) -> dict[str, str]:
    """The texts of all files that show `report`, by name; `folder` has its plots.

    Raises:
        OSError: A drawing cannot be read.
    """
    return {
        TEXT: markdown(report),
        PAGE: page(report, drawings_of(report, folder)),
        METRICS: metrics_csv(report),
        ROLLOUTS: rollouts_csv(report),
    }


def drawings_of(report: Mapping[str, Any], folder: Path) -> dict[str, str]:
    """The report's SVG drawings in `folder`, by the name of the plot; raises OSError if a drawing cannot be read."""
    return {
        plot["name"]: (folder / plot["files"]["svg"]).read_text(encoding="utf-8")
        for plot in report["plots"]
        if "svg" in plot["files"]
    }
