"""Makes the report of a study: numbers, drawings, files."""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from chimera.core.errors import RunError
from chimera.run.environment import describe_code
from evaluation.conduct.progress import ProgressView
from evaluation.measures.official import predictions, unanswered, write_predictions
from evaluation.records.study import Study
from evaluation.report.build import build, compare_all
from evaluation.report.conversations import linked, write_conversations
from evaluation.report.files import MISSING, PLOTS, PREDICTIONS, write_report
from evaluation.report.plots.base import draw_all


def publish(
    study: Study,
    lines: Sequence[Mapping[str, Any]],
    folder: Path,
    progress: ProgressView | None = None,
) -> dict[str, Any]:
    """Write the report of `study` into `folder`.

    Args:
        lines: The training run's metrics, for learning curves.
        progress: Shows how many pages of conversations are written.

    Returns:
        The data of report.json.

    Raises:
        RunError: A file cannot be written.
    """
    try:
        (folder / PLOTS).mkdir(parents=True, exist_ok=True)
        # Remove predictions of an earlier evaluation, which would look like those of this one.
        for name in (PREDICTIONS, MISSING):
            (folder / name).unlink(missing_ok=True)
    except OSError as error:
        raise RunError(f"the report cannot be written to {folder}: {error.strerror}") from error
    drawn = draw_all(study, lines, compare_all(study), folder / PLOTS)
    plots = [replace(plot, files={kind: f"{PLOTS}/{name}" for kind, name in plot.files.items()}) for plot in drawn]
    report = {**build(study, plots, folder), "written": describe_code()}
    try:
        with (
            nullcontext(lambda _done, _text: None)
            if progress is None
            else progress.work("conversations", len(linked(report))) as advance
        ):
            write_conversations(study, report, folder, advance)
    except OSError as error:
        raise RunError(f"the report cannot be written to {folder}: {error.filename} {error.strerror}") from error
    write_report(report, folder)
    return report


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
