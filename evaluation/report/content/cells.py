"""Cells that the tables of a report share: means, differences, verdicts, and links to what is behind a number."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from chimera.show.blocks import Bar, Piece, Text, Tone
from evaluation.report.conversations import file_of, linked
from evaluation.report.formats import NOTHING, between, change, change_between, shown, slug, stage_titles

Report = Mapping[str, Any]
TONES: Mapping[str, Tone] = {"better": "good", "worse": "bad"}
"""The tone of a verdict; other verdicts are quiet."""
Span = tuple[float, float]
"""The ends of a scale."""


@dataclass(frozen=True, slots=True)
class Links:
    """What the numbers of a report lead to.

    Attributes:
        titles: Titles of stages and baselines by name.
        pages: Ids of the rollouts that have a page.
        first: The first rollout of each task, by stage.
    """

    titles: Mapping[str, str]
    pages: frozenset[str]
    first: Mapping[str, Mapping[str, str]]

    @classmethod
    def of(cls, report: Report) -> "Links":
        first = {
            stage: {row["task"]: row["id"] for row in reversed(outcome["rollouts"])}
            for stage, outcome in report["outcomes"].items()
        }
        return cls(stage_titles(report), linked(report), first)

    def system(self, name: str) -> Text:
        """The title of a stage, which leads to its rollouts, or of a baseline."""
        return Text(self.titles[name], href=f"#rollouts-{slug(name)}" if name in self.first else "")

    def conversation(self, rollout: str) -> Text:
        """A rollout's id, which leads to its page if it has one."""
        return Text(rollout, "code", file_of(rollout) if rollout in self.pages else "")

    def behind(self, system: str, task: str, words: str) -> Text:
        """A value of a task, which leads to the task's rollout if `system` is a stage."""
        if system not in self.first:
            return Text(words)
        rollout = self.first[system][task]
        return Text(words, href=file_of(rollout) if rollout in self.pages else f"#{slug(system)}-{rollout}")


def percent(report: Report) -> str:
    """Coverage of the report's intervals in per cent."""
    return f"{100 * report['settings']['confidence']:g}"


def mean_cell(mean: Mapping[str, Any] | None, unit: str, tasks: int, href: str = "") -> list[Piece]:
    """A mean with its interval, and its n if that is not the number of tasks."""
    if mean is None:
        return [NOTHING]
    cell: list[Piece] = [Text(shown(mean["mean"], unit), href=href)]
    cell.append(Text(between(mean["low"], mean["high"], unit), "quiet", small=True))
    return cell if mean["n"] == tasks else [*cell, Text(f"n {mean['n']}", "quiet", small=True)]


def difference_cell(row: Mapping[str, Any] | None, unit: str, pair: str | None) -> list[Piece]:
    """A difference with its interval, which leads to the pairs of tasks of `pair`."""
    if row is None:
        return [NOTHING]
    href = "" if pair is None else f"#pairs-{slug(pair)}"
    return [
        Text(change(row["difference"], unit), href=href),
        Text(change_between(row["low"], row["high"], unit), "quiet", small=True),
    ]


def verdict(words: str | None, *, small: bool = False) -> Text:
    return Text(words or "", TONES.get(words or "", "quiet"), small=small)


def value_cell(report: Report, side: str, pair: str, metric: str, value: float | None) -> Text:
    """A side of a comparison: it leads to the stage's column of the metric, or to the tasks of a baseline."""
    href = f"#{slug(side)}.{metric}" if side in report["stages"] else f"#pairs-{slug(pair)}"
    return Text(shown(value, report["metrics"][metric]["unit"]), href=href)


def interval(row: Mapping[str, Any], unit: str, span: Span) -> Bar:
    words = f"{change(row['difference'], unit)}, {change_between(row['low'], row['high'], unit)}"
    return Bar(row["low"], row["difference"], row["high"], *span, words)


def span_of(rows: Sequence[Mapping[str, Any]]) -> Span:
    """A scale that holds all intervals of `rows` and zero, with a margin."""
    ends = [value for row in rows for value in (row["low"], row["difference"], row["high"]) if value is not None]
    low, high = min([0.0, *ends]), max([0.0, *ends])
    room = 0.06 * (high - low) or 1.0
    return low - room, high + room
