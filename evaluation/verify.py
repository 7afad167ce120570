"""Is a report true? Its numbers must fit each other, and come out again when they are computed from the run.

Nothing is taken from the report but what was asked: which tasks and stages, and with which settings.
"""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from chimera.config_evaluation import EvaluationConfig
from chimera.errors import ChimeraError, RunError
from chimera.runs import Run
from evaluation.impossible import impossible
from evaluation.recorded import load_study
from evaluation.report import FORMAT, VERSION, build
from evaluation.report_files import DATA, PAGE, TEXT
from evaluation.report_page import page
from evaluation.report_text import markdown
from evaluation.study import Plan

TOLERANCE = 1e-9
"""Sums may be added up in another order on another machine."""
NOT_COMPARED = ("plots", "written", "run.path", "run.phases", "run.rolled_back")
"""Drawings are no numbers; the report was written when it was; the run may have been moved or gone on since."""
SHOWN = 200
"""Longer texts are cut in messages."""


def verify(report_file: Path, run: Run | None) -> list[str]:
    """What is wrong with a report, one sentence each; nothing when all of it is true.

    Args:
        report_file: report.json, the folder that it is in, or the run directory that has it in `report/`.
        run: The run that it is about (`find_run`); without one nothing can be recomputed, which is a problem too.

    Raises:
        RunError: The file cannot be read, or is no report.
    """
    report = read_report(report_file)
    problems = impossible(report)
    if run is None:
        return [
            *problems,
            f"the run of {report_file} was not found, so no number could be computed again: name it with --run",
        ]
    return problems + _recomputed(report, run, _file(report_file).parent)


def read_report(report_file: Path) -> dict[str, Any]:
    """The report in a file, or in the report.json of a folder.

    Raises:
        RunError: It cannot be read, or is no JSON object.
    """
    file = _file(report_file)
    try:
        report = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise RunError(f"report {file} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise RunError(f"report {file} is not JSON: {error}") from error
    if not isinstance(report, dict):
        raise RunError(f"report {file} holds a {type(report).__name__}, not a JSON object: it is no report")
    return report


def find_run(report_file: Path) -> Run | None:
    """The run directory that a report names relative to its folder; None when there is no run there."""
    about = read_report(report_file).get("run")
    path = about.get("path") if isinstance(about, Mapping) else None
    if not isinstance(path, str):
        return None
    folder = (_file(report_file).parent / path).resolve()
    return Run(folder) if (folder / "config.yaml").is_file() else None


def _file(report_file: Path) -> Path:
    if not report_file.is_dir():
        return report_file
    of_run = report_file / "report" / DATA
    return of_run if of_run.is_file() and not (report_file / DATA).exists() else report_file / DATA


def _recomputed(report: Mapping[str, Any], run: Run, folder: Path) -> list[str]:
    if (report.get("format"), report.get("version")) != (FORMAT, VERSION):
        return [
            f"the report's format is {report.get('format')!r}, version {report.get('version')!r}, not {FORMAT!r}, "
            f"version {VERSION}, so its numbers cannot be computed again"
        ]
    try:
        plan = Plan.load(report["plan"])
        asked = {name: report["settings"][name] for name in EvaluationConfig.model_fields}
        settings = EvaluationConfig.model_validate_json(json.dumps(asked))
    except (KeyError, TypeError, ValidationError) as error:
        return [f"the report does not say what was evaluated, its plan or its settings are broken: {error!r}"]
    try:
        again = build(load_study(run, plan, settings), (), folder)
    except ChimeraError as error:
        return [f"the run does not give this report: {error}"]
    problems = [
        f"{place} is {_brief(stated)} in the report, but {_brief(found)} from the run"
        for place, stated, found in differences(report, again)
    ]
    return problems or _unlike(report, folder)


def _unlike(report: Mapping[str, Any], folder: Path) -> list[str]:
    """Which of the report's other files do not say what the (true) `report` holds; drawings are not looked at."""
    undrawn = {plot["name"]: "<svg></svg>" for plot in report["plots"] if "svg" in plot["files"]}
    shown = {TEXT: markdown(report), PAGE: page(report, undrawn)}
    return [
        f"{folder / name} does not say what {DATA} holds: it was changed, or another version of Chimera made it"
        for name, text in shown.items()
        if (folder / name).is_file()
        and _words((folder / name).read_text(encoding="utf-8", errors="replace")) != _words(text)
    ]


def _words(text: str) -> list[str]:
    """What a reader reads of a page, or of Markdown: no drawings, styles, scripts and tags."""
    return re.sub(r"<(svg|style|script)\b.*?</\1>|<[^>]*>", " ", text, flags=re.DOTALL).split()


def differences(stated: Any, found: Any, place: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Where two reports differ: the dotted path and both values; numbers may differ by `TOLERANCE`."""
    if place in NOT_COMPARED:
        return
    if isinstance(stated, Mapping) and isinstance(found, Mapping):
        for key in dict.fromkeys([*stated, *found]):
            yield from differences(stated.get(key), found.get(key), f"{place}.{key}" if place else str(key))
    elif isinstance(stated, list) and isinstance(found, list) and len(stated) == len(found):
        for number, (left, right) in enumerate(zip(stated, found, strict=True)):
            yield from differences(left, right, f"{place}.{number}")
    elif not _equal(stated, found):
        yield place, stated, found


def _equal(stated: Any, found: Any) -> bool:
    if isinstance(stated, bool) or isinstance(found, bool):
        return stated is found
    if isinstance(stated, int | float) and isinstance(found, int | float):
        return abs(stated - found) <= TOLERANCE * max(1.0, abs(found))
    return stated == found


def _brief(value: Any) -> str:
    words = "missing" if value is None else json.dumps(value, ensure_ascii=False)
    return words if len(words) <= SHOWN else f"{words[:SHOWN]}..."
