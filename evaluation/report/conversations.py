"""The conversations behind a report's numbers: one page beside the report for each rollout that it links to.

Pages of all rollouts would be large (38 kB each), so by default a report has those that its numbers lead to: the first
and the last stage, and of the stages between the rollouts in which a phase made a right answer wrong, or a wrong one
right. `python -m chimera.view` shows all others.
"""

from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

from evaluation.records.study import Plan, Study
from evaluation.report.formats import slug
from evaluation.traces.conversation import page
from evaluation.traces.rollout_index import read_tree

FOLDER = "rollouts"
"""Folder of the pages, below the report's."""

Report = Mapping[str, Any]
Rollout = Mapping[str, Any]


def linked(report: Report) -> frozenset[str]:
    """Ids of the rollouts that have a page beside `report`."""
    selection = report["settings"]["conversations"]
    if selection == "none":
        return frozenset()
    outcomes = report["outcomes"]
    stages = list(outcomes)
    if selection != "all":
        plan = Plan.load(report["plan"])
        stages = dict.fromkeys((plan.stages[0].name, plan.final.name))
    rows_by_id = {row["id"]: row for stage in stages for row in outcomes[stage]["rollouts"]}
    if selection == "ends":
        rows_by_id |= {row["id"]: row for row in _changed(report)}
    return frozenset(name for name, row in rows_by_id.items() if row["trace"] is not None)


def file_of(rollout: str) -> str:
    """The page of a rollout, relative to the report's folder."""
    return f"{FOLDER}/{rollout}.html"


def conversations(study: Study, report: Report) -> Iterator[tuple[str, str]]:
    """Each page of `report`: its file, relative to the report's folder, and its text.

    Raises:
        RunError: A trace cannot be read.
    """
    rollout_ids = linked(report)
    for answers in study.answers.values():
        for record in answers.records:
            if record.rollout_id in rollout_ids:
                back = f"../index.html#{slug(answers.stage.name)}-{record.rollout_id}"
                text = page(read_tree(study.run, record), run=study.run.name, back=back)
                yield file_of(record.rollout_id), text


def write_conversations(study: Study, report: Report, folder: Path, advance: Callable[[int, str], None]) -> int:
    """Write the pages of `report` below `folder`, without those of an earlier report; returns their number.

    `advance` is told the number of finished pages.

    Raises:
        OSError: A file cannot be written.
    """
    for old in (folder / FOLDER).glob("*.html"):
        old.unlink()
    number = 0
    for number, (file, text) in enumerate(conversations(study, report), start=1):
        (folder / FOLDER).mkdir(exist_ok=True)
        (folder / file).write_text(text, encoding="utf-8", errors="backslashreplace")
        advance(number, "")
    return number


def _changed(report: Report) -> Iterator[Rollout]:
    """Both rollouts of each task and seed that one stage of the sequence answered rightly and its neighbour wrongly."""
    names = [stage["name"] for stage in report["plan"]["stages"] if stage["kind"] == "sequence"]
    for before, after in pairwise(names):
        old, new = (report["outcomes"][name]["rollouts"] for name in (before, after))
        for pair in zip(old, new, strict=True):
            if (pair[0]["answer"] == pair[0]["label"]) != (pair[1]["answer"] == pair[1]["label"]):
                yield from pair
