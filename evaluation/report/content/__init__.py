"""A report as blocks, built once from the data of report.json and shown as page, Markdown and terminal."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from chimera.show import html, markdown
from chimera.show.blocks import Block, Note, Text
from evaluation.report.content import answers, head, results, rollouts
from evaluation.report.formats import data_words

Report = Mapping[str, Any]
SECTIONS: Mapping[str, tuple[str, Callable[[Report], Iterator[Block]]]] = {
    "stages": ("Stages", results.stages),
    "comparisons": ("Comparisons", results.comparisons),
    "ablation": ("What each phase gave", results.ablation),
    "baselines": ("Baselines", results.baselines),
    "levels": ("By difficulty", results.levels),
    "studies": ("By number of studies", results.by_studies),
    "answers": ("Answers", answers.outcomes),
    "lost": ("Who lost it", answers.lost),
    "faults": ("Failing tools", answers.faults),
    "plots": ("Curves", answers.plots),
    "guidance": ("What roles are told", answers.guidance),
    "side-by-side": ("Side by side", answers.side_by_side),
    "judges": ("Judges", answers.judges),
    "rollouts": ("Rollouts", rollouts.rollouts),
    "method": ("How it was made", rollouts.method),
}
"""The sections after the first screen: short title, and blocks of which the first is the heading; empty sections are
left out."""
PAGE_ONLY = ("rollouts",)
"""Sections with hundreds of rows."""


def section(report: Report, name: str) -> list[Block]:
    """The blocks of a section of `SECTIONS`, or of the first screen ("about"), without its heading."""
    make = head.about if name == "about" else SECTIONS[name][1]
    return [*make(report)][1:]


def page(report: Report, drawings: Mapping[str, str]) -> str:
    """The report as one self-contained page. `drawings`: SVG text of each plot by name."""
    drawn = {**report, "plots": [{**plot, "svg": drawings.get(plot["name"])} for plot in report["plots"]]}
    parts = {name: list(make(drawn)) for name, (_, make) in SECTIONS.items()}
    links = [piece for name, part in parts.items() if part for piece in (Text(SECTIONS[name][0], href=f"#{name}"), " ")]
    blocks: Sequence[Block] = [
        *head.about(drawn),
        Note(links, "contents"),
        *(block for part in parts.values() for block in part),
    ]
    return html.page(f"{report['run']['name']}: evaluation on {data_words(report)}", blocks, script=True)


def text(report: Report) -> str:
    """The report as one Markdown document: the page without its single rollouts."""
    parts = (make(report) for name, (_, make) in SECTIONS.items() if name not in PAGE_ONLY)
    return markdown.render([*head.about(report), *(block for part in parts for block in part)])
