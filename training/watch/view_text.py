"""Texts of the views: lines about rollouts, times, a trend line, and the table after a phase."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from textwrap import shorten
from typing import Any

from rich import box
from rich.markup import escape
from rich.table import Table

from evaluation.records.rollouts import RolloutRecord, failures
from evaluation.scores.rewards import part_title
from training.watch.summary import aligned, mean, summarize

BARS = "▁▂▃▄▅▆▇█"
SHOWN = 160
"""Most letters of an error in a line."""
TREND = 24
"""Width of a trend line, in characters."""


def number(value: float | None) -> str:
    """A figure with three decimals, or a dash."""
    return "-" if value is None else f"{value:z.3f}"


def duration(seconds: float) -> str:
    """A time in words that does not pretend to be exact: "40 s", "3 min", "2.5 h"."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def sparkline(values: Sequence[float], width: int = TREND) -> str:
    """A trend line: each bar is the mean of equally many consecutive values, from the smallest to the largest mean.

    Bars are drawn at most one for each value; a line that does not change is drawn low.
    """
    count = min(width, len(values))
    edges = [round(place * len(values) / count) for place in range(count + 1)] if count else []
    means = [sum(values[a:b]) / (b - a) for a, b in pairwise(edges)]
    low, span = min(means, default=0.0), max(means, default=0.0) - min(means, default=0.0)
    return "".join(BARS[round((value - low) / span * (len(BARS) - 1)) if span > 1e-12 else 0] for value in means)


def trend(rewards: Sequence[float]) -> str:
    """The rewards of a run as a trend line with the means of its first and last quarter; empty below 8 rollouts."""
    if len(rewards) < 8:
        return ""
    quarter = len(rewards) // 4
    first, last = (mean(part) for part in (rewards[:quarter], rewards[-quarter:]))
    return f"{sparkline(rewards)} {number(first)} to {number(last)}, {len(rewards)} rollouts"


def running(records: Sequence[RolloutRecord]) -> str:
    """Reward, share of right answers, and failures so far."""
    rewards = [record.reward for record in records if record.reward is not None]
    agreement = [float(fits) for record in records if (fits := aligned(record)) is not None]
    failed = sum(record.status == "failed" for record in records)
    return f"reward {number(mean(rewards))}, right {number(mean(agreement))}, failed {failed}"


def last_rollout(record: RolloutRecord) -> str:
    """What the society decided in one rollout."""
    if record.status == "failed":
        return f"{record.task_id} failed"
    answer = f"{record.answer} (key {record.label})"
    return f"{record.task_id} answered {answer}, {record.decision}, reward {number(record.reward)}"


def describe_versions(versions: Mapping[str, str]) -> str:
    """Versions in one line. Logical models with the same version are grouped."""
    names: dict[str, list[str]] = {}
    for model, version in versions.items():
        names.setdefault(version, []).append(model)
    return "; ".join(f"{', '.join(models)}: {version}" for version, models in names.items()) or "-"


def failure(record: RolloutRecord) -> str:
    """One line about a failed rollout; its record holds the whole error, which may be a page."""
    why = shorten(record.error or "no reason recorded", SHOWN, placeholder=" ...")
    return f"rollout {record.rollout_id} on task {record.task_id} failed: {why}"


def result_table(name: str, records: Sequence[RolloutRecord], seconds: float) -> Table:
    """The table at the end of a phase: a few lines, so that it fits a terminal of 80 columns and 24 lines."""
    figures: dict[str, Any] = summarize(records)
    pace = f", {60 * len(records) / seconds:.0f} a minute" if seconds > 0 and records else ""
    table = Table(
        title=f"{name}: {len(records)} rollouts in {seconds:.1f} s{pace}",
        title_justify="left",
        show_header=False,
        box=box.SIMPLE,
        padding=(0, 1, 0, 0),
    )
    table.add_column("figure", no_wrap=True, style="dim")
    table.add_column("value")
    reasons = "; ".join(f"{times} x {escape(reason)}" for reason, times in failures(records).most_common(5))
    table.add_row("ended", f"{figures['succeeded']} succeeded, {figures['failed']} failed{reasons and f': {reasons}'}")
    if figures["unscored"]:
        table.add_row("no reward", f"{figures['unscored']}, because a part is missing")
    table.add_row("reward", number(figures["reward"]))
    parts = ", ".join(f"{part_title(part)} {number(value)}" for part, value in figures["parts"].items())
    table.add_row("its parts", escape(parts) or "-")
    vetoed = f", {figures['vetoed']} protocols vetoed" if figures["vetoed"] else ""
    table.add_row("right", f"{100 * figures['alignment_rate']:.1f} %{vetoed}" if figures["succeeded"] else "-")
    counts = ", ".join(
        f"{total / len(records):.1f} {key.replace('_', ' ')}" for key, total in figures["counts"].items()
    )
    table.add_row("a rollout", escape(counts) or "-")
    return table
