"""What the user sees of a run: a live view in a terminal, plain lines elsewhere, and a table at the end of a phase."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from rich.console import Console, Group
from rich.live import Live
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    Task,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from training.rollouts import RolloutRecord
from training.summary import aligned, failures, mean, part_means, summarize

LINE_SECONDS = 10.0
"""Without a terminal, a progress line at most this often."""


class View(Protocol):
    """Shows a run's progress; `phase` surrounds one phase's rollouts."""

    @contextmanager
    def phase(self, name: str, total: int, versions: Mapping[str, str]) -> Iterator[None]:
        """Show the progress of `total` rollouts, and a table about them at the end, also of an interrupted phase."""
        ...

    def add(self, record: RolloutRecord) -> None:
        """One more rollout of the phase has ended."""
        ...

    def note(self, text: str) -> None:
        """Tell something."""
        ...

    def warn(self, text: str) -> None:
        """Tell that something went wrong that the run can live with."""
        ...


def make_view(console: Console, runners: int) -> View:
    """The view that fits the console.

    Until as many rollouts as there are `runners` have ended, it tells no time left: the first to end tells how long
    one rollout takes, not how many end in that time.
    """
    return LiveView(console, runners) if console.is_terminal else LineView(console, runners)


class LineView:
    """Plain log lines."""

    def __init__(self, console: Console, runners: int) -> None:
        self._console = console
        self._runners = runners
        self._records: list[RolloutRecord] = []
        self._total = 0
        self._started = self._last = 0.0
        self._name = ""

    @contextmanager
    def phase(self, name: str, total: int, versions: Mapping[str, str]) -> Iterator[None]:
        """Lines for one phase, then its table."""
        self._records, self._total, self._name = [], total, name
        self._started = self._last = time.monotonic()
        self.note(f"{name}: {total} rollouts; policies {describe_versions(versions)}")
        try:
            yield
        finally:
            self._console.print(result_table(name, self._records, time.monotonic() - self._started))

    def add(self, record: RolloutRecord) -> None:
        """A line for the first rollout, every failure, the last, and now and then."""
        self._records.append(record)
        done, now = len(self._records), time.monotonic()
        if record.status == "failed":
            self.warn(f"{self._name}: rollout {record.rollout_id} on task {record.task_id} failed: {record.error}")
        if done in (1, self._total) or now - self._last >= LINE_SECONDS:
            self._last = now
            left = (now - self._started) / done * (self._total - done)
            ending = f", {left:.0f} s left" if done >= self._runners else ""
            self.note(f"{self._name}: {done}/{self._total}, {running(self._records)}{ending}")

    def note(self, text: str) -> None:
        """One line."""
        self._console.print(Text(text), soft_wrap=True)

    def warn(self, text: str) -> None:
        """One line, marked."""
        self.note(f"warning: {text}")


class TimeLeftColumn(TimeRemainingColumn):
    """The time left, once `least` steps are done."""

    def __init__(self, least: int) -> None:
        super().__init__()
        self._least = least

    def render(self, task: Task) -> Text:
        """The column's text for `task`."""
        return super().render(task) if task.completed >= self._least else Text("-:--:--", "progress.remaining")


class LiveView:
    """A live view: progress with time left, running reward and its parts, failures, policy versions."""

    def __init__(self, console: Console, runners: int) -> None:
        self._console = console
        self._records: list[RolloutRecord] = []
        self._versions: Mapping[str, str] = {}
        self._progress = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeLeftColumn(runners),
            console=console,
        )
        self._live: Live | None = None

    @contextmanager
    def phase(self, name: str, total: int, versions: Mapping[str, str]) -> Iterator[None]:
        """The live view of one phase, then its table."""
        self._records, self._versions = [], versions
        started = time.monotonic()
        bar = self._progress.add_task(name, total=total)
        try:
            with Live(self._picture(), console=self._console, refresh_per_second=4, transient=True) as self._live:
                yield
        finally:
            self._live = None
            self._progress.remove_task(bar)
            self._console.print(result_table(name, self._records, time.monotonic() - started))

    def add(self, record: RolloutRecord) -> None:
        """Count it and show it."""
        self._records.append(record)
        for task_id in self._progress.task_ids:
            self._progress.advance(task_id)
        if record.status == "failed":
            self.warn(f"rollout {record.rollout_id} on task {record.task_id} failed: {record.error}")
        if self._live is not None:
            self._live.update(self._picture())

    def note(self, text: str) -> None:
        """One line above the live view."""
        self._console.print(Text(text))

    def warn(self, text: str) -> None:
        """One yellow line above the live view."""
        self._console.print(Text(f"warning: {text}", style="yellow"))

    def _picture(self) -> Group:
        parts = ", ".join(f"{name} {number(value)}" for name, value in part_means(self._records).items())
        return Group(
            self._progress,
            Text(f"  {running(self._records)}"),
            Text(f"  parts: {parts or '-'}", style="dim"),
            Text(f"  policies: {describe_versions(self._versions)}", style="dim"),
        )


def number(value: float | None) -> str:
    """A figure with three decimals, or a dash."""
    return "-" if value is None else f"{value:.3f}"


def running(records: Sequence[RolloutRecord]) -> str:
    """Reward, alignment and failures so far."""
    rewards = [record.reward for record in records if record.reward is not None]
    agreement = [float(fits) for record in records if (fits := aligned(record)) is not None]
    failed = sum(record.status == "failed" for record in records)
    return f"reward {number(mean(rewards))}, aligned {number(mean(agreement))}, failed {failed}"


def describe_versions(versions: Mapping[str, str]) -> str:
    """Logical models with the same version are named together."""
    names: dict[str, list[str]] = {}
    for model, version in versions.items():
        names.setdefault(version, []).append(model)
    return "; ".join(f"{', '.join(models)}: {version}" for version, models in names.items()) or "-"


def result_table(name: str, records: Sequence[RolloutRecord], seconds: float) -> Table:
    """The table at the end of a phase."""
    figures: dict[str, Any] = summarize(records)
    table = Table(title=f"{name}: {len(records)} rollouts in {seconds:.1f} s", title_justify="left")
    table.add_column("figure", overflow="ellipsis", no_wrap=True, max_width=64)
    table.add_column("value", justify="right", no_wrap=True, min_width=6)
    if seconds > 0:
        table.add_row("rollouts per minute", f"{60 * len(records) / seconds:.1f}")
    table.add_row("succeeded", str(figures["succeeded"]))
    table.add_row("failed", str(figures["failed"]))
    for reason, times in failures(records).most_common(5):
        table.add_row(f"  {reason}", str(times))
    if figures["unscored"]:
        table.add_row("without a reward (a part is missing)", str(figures["unscored"]))
    table.add_section()
    table.add_row("reward, mean", number(figures["reward"]))
    for part, value in figures["parts"].items():
        table.add_row(f"  {part}", number(value))
    table.add_row("decision aligned, share", number(figures["alignment_rate"]))
    table.add_section()
    for count, total in figures["counts"].items():
        table.add_row(f"{count.replace('_', ' ')} per rollout", f"{total / len(records):.1f}")
    if figures["untraced_calls"]:
        table.add_row("model calls missing in traces", str(figures["untraced_calls"]))
    return table
