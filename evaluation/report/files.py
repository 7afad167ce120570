"""Writes and reads the report of a study: numbers, drawings, and the files that show them, each replaced as a whole."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from chimera.core.errors import RunError
from chimera.core.files import parse_json, replace_file
from chimera.run.environment import describe_code
from evaluation.measures.official import predictions, unanswered, write_predictions
from evaluation.records.study import Study
from evaluation.report import content
from evaluation.report.build import build, compare_all
from evaluation.report.conversations import linked, write_conversations
from evaluation.report.plots.base import draw_all
from evaluation.report.spreadsheet import METRICS, ROLLOUTS, metrics_csv, rollouts_csv
from evaluation.rollout.progress import ProgressView

DATA, TEXT, PAGE = "report.json", "report.md", "index.html"
PREDICTIONS, MISSING = "predictions.json", "predictions_missing.json"
FILES = (DATA, TEXT, PAGE, METRICS, ROLLOUTS, PREDICTIONS, MISSING)
PLOTS = "plots"


def publish(study: Study, lines: Sequence[Mapping[str, Any]], folder: Path, progress: ProgressView) -> dict[str, Any]:
    """Write the report of `study` into `folder`.

    Args:
        lines: The training run's metrics, for learning curves.
        progress: Shows how many pages of conversations are written.

    Returns:
        The data of report.json.

    Raises:
        RunError: A file cannot be written.
    """
    with _writing(folder):
        (folder / PLOTS).mkdir(parents=True, exist_ok=True)
        # Remove predictions of an earlier evaluation, which would look like those of this one.
        for name in (PREDICTIONS, MISSING):
            (folder / name).unlink(missing_ok=True)
    drawn = draw_all(study, lines, compare_all(study), folder / PLOTS)
    plots = [replace(plot, files={kind: f"{PLOTS}/{name}" for kind, name in plot.files.items()}) for plot in drawn]
    report = {**build(study, plots, folder), "written": describe_code()}
    with _writing(folder), progress.work("conversations", len(linked(report))) as advance:
        write_conversations(study, report, folder, advance)
    write_report(report, folder)
    return report


def write_report(report: Mapping[str, Any], folder: Path) -> Path:
    """Write `report` (from `evaluation.report.build.build`) into `folder`, which has its plots; returns the page.

    Raises:
        RunError: A file cannot be written, or a plot's drawing cannot be read.
    """
    with _writing(folder):
        drawings = {
            plot["name"]: (folder / plot["files"]["svg"]).read_text(encoding="utf-8")
            for plot in report["plots"]
            if "svg" in plot["files"]
        }
        texts = {
            DATA: json.dumps(report, indent=1, ensure_ascii=False, allow_nan=False) + "\n",
            TEXT: content.text(report),
            PAGE: content.page(report, drawings),
            **sheets(report),
        }
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            replace_file(folder / name, text)
    return folder / PAGE


def sheets(report: Mapping[str, Any]) -> dict[str, str]:
    """The spreadsheets of `report` by file name."""
    return {METRICS: metrics_csv(report), ROLLOUTS: rollouts_csv(report)}


def publish_predictions(study: Study, folder: Path) -> Path:
    """Write the last stage's answers for PubMedQA's evaluation script; returns the file.

    Tasks without an answer are left out. A file beside it lists them with the reasons.

    Raises:
        RunError: A file cannot be written.
    """
    answers = study.answers[study.plan.final.name]
    path = folder / PREDICTIONS
    write_predictions(path, predictions(study.plan, answers))
    if missing := unanswered(study.plan, answers):
        write_predictions(folder / MISSING, missing)
    return path


def read_report(report_file: Path) -> dict[str, Any]:
    """The report in a file, or in the report.json of a folder.

    Raises:
        RunError: It cannot be read, or is no JSON object.
    """
    file = report_file_in(report_file)
    try:
        report = parse_json(file.read_bytes())
    except OSError as error:
        raise RunError(
            f"report {file} cannot be read ({error.strerror}): name its folder, such as runs/NAME/report"
        ) from error
    except ValueError as error:
        raise RunError(f"report {file} is not JSON: {error}") from error
    if not isinstance(report, dict):
        raise RunError(f"report {file} holds a {type(report).__name__}, not a JSON object: it is no report")
    return report


def report_file_in(place: Path) -> Path:
    """The report.json at `place`: a file, a report's folder, or a run with one in `report/`."""
    if not place.is_dir():
        return place
    of_run = place / "report" / DATA
    return of_run if of_run.is_file() and not (place / DATA).exists() else place / DATA


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        place = error.filename or folder
        raise RunError(f"the report cannot be written to {place} ({error.strerror}): make room, or allow it") from error
