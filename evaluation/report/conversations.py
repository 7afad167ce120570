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


def write_conversations(study: Study, report: Report, folder: Path, advance: Callable[[int, str], None]) -> None:
    """Write the pages of `report` below `folder`, without those of an earlier report.

    `advance` is told the number of finished pages.

    Raises:
        OSError: A file cannot be written.
        RunError: A trace cannot be read.
    """
    for old in (folder / FOLDER).glob("*.html"):
        old.unlink()
    pages = linked(report)
    rollouts = [(answers.stage.name, record) for answers in study.answers.values() for record in answers.records]
    having = [(stage, record) for stage, record in rollouts if record.rollout_id in pages]
    for number, (stage, record) in enumerate(having, start=1):
        back = f"../index.html#{slug(stage)}-{record.rollout_id}"
        text = page(read_tree(study.run, record), run=study.run.name, back=back)
        (folder / FOLDER).mkdir(exist_ok=True)
        (folder / file_of(record.rollout_id)).write_text(text, encoding="utf-8", errors="backslashreplace")
        advance(number, "")


def _changed(report: Report) -> Iterator[Rollout]:
    """Both rollouts of each task and seed that one stage of the sequence answered rightly and its neighbour wrongly."""
    names = [stage["name"] for stage in report["plan"]["stages"] if stage["kind"] == "sequence"]
    for before, after in pairwise(names):
        old, new = (report["outcomes"][name]["rollouts"] for name in (before, after))
        for pair in zip(old, new, strict=True):
            if (pair[0]["answer"] == pair[0]["label"]) != (pair[1]["answer"] == pair[1]["label"]):
                yield from pair
