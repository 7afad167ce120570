"""The parts of a finished report as objects for notebooks: tables, plots, pairs of rollouts, traces.

Nothing is computed here: all numbers are from report.json, as in report.md.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chimera.core.errors import RunError
from chimera.run.directory import Run, list_runs
from chimera.show import html, markdown, terminal
from chimera.show.blocks import Block, Column, Note, TableBlock, Text
from evaluation.report.content import section
from evaluation.report.files import DATA, read_report
from evaluation.report.formats import change, shown, stage_titles
from evaluation.report.plots.base import TITLES
from evaluation.report.side_by_side import lines
from evaluation.traces.conversation import conversation
from evaluation.traces.rollout_index import find, read_tree, recorded_rollouts

REPORT = "report"
"""Folder of a run's report from chimera.eval, below the run."""


class Words(str):
    """Text in Markdown."""

    __slots__ = ()

    def _repr_markdown_(self) -> str:
        return str(self)


@dataclass(frozen=True, slots=True, repr=False)
class BlockView:
    """Blocks, which a notebook shows as lists that fold."""

    blocks: Sequence[Block]

    def __repr__(self) -> str:
        return terminal.lines(self.blocks)

    def _repr_html_(self) -> str:
        return html.render(self.blocks)


@dataclass(frozen=True, slots=True, repr=False)
class PlotView:
    """One plot of the report. `drawing` is its SVG text; None if there is no plot."""

    title: str
    words: str
    drawing: str | None

    def __repr__(self) -> str:
        return f"{self.title}: {self.words}"

    def _ipython_display_(self) -> None:
        # A plot and its caption are two outputs: no single format for both is shown by all viewers.
        from IPython.display import SVG, display

        if self.drawing is not None:
            display(SVG(self.drawing))
        display(Words(f"*{self.title}.* {self.words}"))


@dataclass(frozen=True, slots=True, repr=False)
class PairView:
    """Two rollouts of one task with one seed in two stages, field by field.

    Attributes:
        before: Id of the earlier stage's rollout.
        after: Id of the later stage's.
    """

    headline: str
    stages: tuple[str, str]
    before: str
    after: str
    rows: Sequence[Mapping[str, Any]]

    def __repr__(self) -> str:
        return self.headline

    def _repr_html_(self) -> str:
        """The fields that differ, as a table: <del> marks text of the earlier only, <ins> text of the later only."""
        changed = [row for row in self.rows if row["changed"]]
        columns = [Column(name) for name in ("", *self.stages)]
        left_out = f"{len(self.rows) - len(changed)} of {len(self.rows)} fields are the same in both and left out."
        blocks: list[Block] = [
            Note(Text(self.headline, "strong")),
            TableBlock(self.headline, columns, lines(changed), "pair"),
            Note(left_out, "fine"),
        ]
        return f'<div style="white-space: pre-line">{html.render(blocks)}</div>'


class ReportView:
    """A finished report. Made by `open_report`."""

    def __init__(self, run: Run, folder: Path, report: Mapping[str, Any]) -> None:
        self._run = run
        self._folder = folder
        self._report = report

    @property
    def about(self) -> Words:
        """The comparison, its data, the model of each role, and the verdict."""
        return self._section("about")

    @property
    def ablation(self) -> Words:
        """The effect of each phase: in the sequence, and where it was evaluated alone and left out of the end."""
        return self._section("ablation")

    @property
    def lost(self) -> Words:
        """Who lost the wrong answers: the first wrong step, by stage."""
        return self._section("lost")

    @property
    def baselines(self) -> Words:
        return self._section("baselines")

    @property
    def judges(self) -> Words:
        """Whether the judge can be trusted."""
        return self._section("judges")

    def stages(self, *metrics: str) -> Words:
        """Each stage's means with intervals.

        Args:
            metrics: Names of metrics; none: all metrics.

        Raises:
            RunError: The report has no metric of that name.
        """
        reported = self._report["metrics"]
        if unknown := [name for name in metrics if name not in reported]:
            raise RunError(f"the report has no metric {unknown[0]!r}: it has {', '.join(reported)}")
        chosen = {name: reported[name] for name in metrics or reported}
        return _words(section({**self._report, "metrics": chosen}, "stages"))

    def plot(self, name: str) -> PlotView:
        """The plot called `name`, such as "reward"; if it is missing, the sentence that says why.

        Raises:
            RunError: The report knows no such plot, or its file cannot be read.
        """
        plots = {plot["name"]: plot for plot in self._report["plots"]}
        if name not in plots:
            raise RunError(f"the report has no plot {name!r}: it has {', '.join(plots) or 'none'}")
        plot = plots[name]
        if "svg" not in plot["files"]:
            return PlotView(plot["title"], plot["missing"], None)
        file = self._folder / plot["files"]["svg"]
        try:
            drawing = file.read_text(encoding="utf-8")
        except OSError as error:
            raise RunError(f"plot {file} cannot be read: {error.strerror}") from error
        return PlotView(plot["title"], plot["caption"], drawing)

    @property
    def learning(self) -> tuple[PlotView, ...]:
        """The plot of each phase that learns, in its own measures."""
        names = [plot["name"] for plot in self._report["plots"]]
        return tuple(self.plot(name) for name in names if name not in (*TITLES, "studies"))

    @property
    def pairs(self) -> tuple[PairView, ...]:
        """The tasks with the largest gain, the median change and the largest loss, before and after training."""
        titles = stage_titles(self._report)
        return tuple(_pair(pair, titles) for pair in self._report["side_by_side"])

    def trace(self, rollout: str | None = None) -> BlockView:
        """One rollout as an outline: roles, model calls, tool calls, reviews, decision, reward.

        Args:
            rollout: Its id or an id prefix. None: the last stage's rollout of the first pair, or the last stage's first
                rollout if there are no pairs.

        Raises:
            RunError: There is no such rollout.
        """
        if rollout is None:
            last = list(self._report["outcomes"].values())[-1]
            rollout = self.pairs[0].after if self.pairs else str(last["rollouts"][0]["id"])
        tree = read_tree(self._run, find(recorded_rollouts(self._run), rollout)[0])
        return BlockView(conversation(tree, run=self._run.name))

    def _section(self, name: str) -> Words:
        return _words(section(self._report, name))


def open_report(run: Run) -> ReportView:
    """The report of `run`; raises RunError if the run has no report, or the report cannot be read."""
    folder = run.path / REPORT
    if not (folder / DATA).is_file():
        raise RunError(f"run {run.name!r} has no report yet: run python -m chimera.eval --run {run.name}")
    return ReportView(run, folder, read_report(folder))


def latest_report(runs_dir: Path | str = "runs") -> ReportView:
    """The report of the run that was created last, of those that have one.

    Raises:
        RunError: No run has a report, or the report cannot be read.
    """
    having = [run for run in list_runs(Path(runs_dir)) if (run.path / REPORT / DATA).is_file()]
    if not having:
        raise RunError(f"no run in {runs_dir} has a report yet: run python -m chimera.eval")
    return open_report(having[-1])


def _pair(pair: Mapping[str, Any], titles: Mapping[str, str]) -> PairView:
    before, after = pair["before"], pair["after"]
    rewards = f"reward {shown(before['reward'], 'points')} → {shown(after['reward'], 'points')}"
    headline = (
        f"{pair['why']}, {change(pair['difference'], 'points')} ({rewards}): {pair['goal']} Answer key: {pair['label']}"
    )
    return PairView(
        headline, (titles[before["stage"]], titles[after["stage"]]), before["id"], after["id"], pair["rows"]
    )


def _words(blocks: Sequence[Block]) -> Words:
    return Words(markdown.render(blocks) if blocks else "")
