"""A run as a live view at the foot of a terminal, for 80 columns and 24 lines and more."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Self

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from evaluation.conduct.progress import Advance
from evaluation.records.rollouts import RolloutRecord
from evaluation.scores.rewards import part_title
from training.summary import part_means
from training.watch.progress import Activity, Rollouts, RunProgress, part_of
from training.watch.view_text import (
    describe_versions,
    duration,
    failure,
    last_rollout,
    number,
    result_table,
    running,
    trend,
)

STYLES = {"done": "green", "running": "bold", "": "dim"}
"""Style of each state of a phase."""
BAR = 24
"""Width of a bar, in characters."""


class LiveView:
    """A live view: the phases, what is happening, time left, the rewards' trend, the last decisions.

    Notes and tables are printed above it. It is there while the view is open, or while something is counted.
    """

    def __init__(self, console: Console, concurrency: int) -> None:
        self._console = console
        self._progress = RunProgress(concurrency)
        self._plan: dict[str, str] = {}
        self._phases: list[tuple[Rollouts, Activity]] = []
        self._spinner = Spinner("dots")
        self._live: Live | None = None

    def __enter__(self) -> Self:
        self._open()
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def plan(self, names: Sequence[str], done: Sequence[str] = (), costs: Mapping[str, float] | None = None) -> None:
        self._plan = {name: "done" if name in done else "" for name in names}
        self._progress.forecast.plan(costs or {})
        self._show()

    @contextmanager
    def doing(self, text: str) -> Iterator[None]:
        with self._progress.doing(text):
            self._show()
            yield

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """A part of the run; a phase is marked as running, and as done when it has ended by itself."""
        with self._marked(name), part_of(self._progress, name):
            self._show()
            yield

    @contextmanager
    def phase(self, name: str, total: int, versions: Mapping[str, str], *, table: bool = True) -> Iterator[None]:
        rollouts = Rollouts(versions)
        started = time.monotonic()
        try:
            with self._counted(name, total, rollouts=True) as activity:
                self._phases.append((rollouts, activity))
                try:
                    self._show()
                    yield
                finally:
                    self._phases.pop()
        finally:
            if table:
                self.table(result_table(name, rollouts.records, time.monotonic() - started))
            else:
                self.note(f"{name}: {len(rollouts.records)} rollouts, {running(rollouts.records)}")

    def add(self, record: RolloutRecord) -> None:
        rollouts, activity = self._phases[-1]
        rollouts.add(record)
        self._progress.rollout(record)
        self._progress.advance(activity, len(rollouts.records))
        if record.status == "failed":
            self.warn(failure(record))
        self._show()

    @contextmanager
    def work(self, name: str, total: int) -> Iterator[Advance]:
        """Show a separate bar below that of the phase."""
        with self._counted(name, total) as activity:

            def advance(done: int, text: str) -> None:
                self._progress.advance(activity, done, text)
                self._show()

            self._show()
            yield advance

    def decision(self, text: str) -> None:
        """One line above the live view, which also stays in it."""
        self._progress.decided = text
        self._console.print(Text(text, style="bold"))

    def table(self, table: Table) -> None:
        self._console.print(table)

    def note(self, text: str) -> None:
        self._console.print(Text(text))

    def warn(self, text: str) -> None:
        """One yellow line above the live view."""
        self._console.print(Text(f"warning: {text}", style="yellow"))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The picture, drawn anew at each refresh, so that times go on by themselves."""
        yield self._picture(options.max_width)

    def _open(self) -> bool:
        """Start the live view, unless there is one: rich allows one. True if it was started."""
        if self._live is not None:
            return False
        self._live = Live(self, console=self._console, refresh_per_second=4, transient=True)
        self._live.start(refresh=True)
        return True

    def _close(self) -> None:
        live, self._live = self._live, None
        if live is not None:
            live.stop()

    @contextmanager
    def _counted(self, name: str, total: int, *, rollouts: bool = False) -> Iterator[Activity]:
        with self._marked(name), self._progress.doing(name, total, rollouts=rollouts) as activity:
            opened = self._open()
            try:
                yield activity
            finally:
                if opened:
                    self._close()

    @contextmanager
    def _marked(self, name: str) -> Iterator[None]:
        """Mark a phase as running, and as done when it has ended by itself; inside its own mark nothing changes."""
        before = self._plan.get(name)
        if before is None or before == "running":
            yield
            return
        self._plan[name] = "running"
        try:
            yield
        except BaseException:
            self._plan[name] = before
            raise
        self._plan[name] = "done"

    def _show(self) -> None:
        if self._live is not None:
            self._live.update(self)

    def _picture(self, width: int) -> RenderableType:
        lines: list[RenderableType] = []
        if self._plan:
            lines.append(
                Text(" | ").join(Text(f"{name} {state}".rstrip(), STYLES[state]) for name, state in self._plan.items())
            )
        activities = self._progress.activities
        lines += [self._bar(one, width) for one in activities if one.total]
        lines.append(self._now(activities, width))
        if self._phases:
            rollouts, _ = self._phases[-1]
            parts = ", ".join(
                f"{part_title(name)} {number(value)}" for name, value in part_means(rollouts.records).items()
            )
            lines += [
                Text(f"  {running(rollouts.records)}"),
                Text(f"  parts: {parts or '-'}", style="dim"),
                Text(f"  policies: {describe_versions(rollouts.versions)}", style="dim"),
            ]
        if words := trend(self._progress.rewards):
            lines.append(Text(f"  reward {words}"))
        if self._progress.latest is not None:
            lines.append(Text(f"  last: {last_rollout(self._progress.latest)}", style="dim"))
        if self._progress.decided:
            lines.append(Text(f"  {self._progress.decided}", style="bold"))
        for line in lines:
            if isinstance(line, Text):
                line.no_wrap, line.overflow = True, "ellipsis"
        return Group(*lines)

    def _now(self, activities: Sequence[Activity], width: int) -> RenderableType:
        """The spinner, what is happening where nothing is counted, and the time of the run."""
        inner = activities[-1] if activities else None
        counted = inner is None or inner.total
        what = "" if inner is None or counted else f"{inner.text}, {duration(time.monotonic() - inner.since)} | "
        text = Text(f"{what}run {self._progress.time_words()}")
        text.truncate(width - 2, overflow="ellipsis")
        self._spinner.update(text=text)
        return self._spinner

    def _bar(self, activity: Activity, width: int) -> RenderableType:
        """One line: name, bar, count, time, time left, and a text that is cut where the terminal ends."""
        now = time.monotonic()
        left = activity.left(now)
        grid = Table.grid(padding=(0, 1))
        grid.add_column(no_wrap=True, max_width=max(12, width // 3))
        grid.add_column(width=min(BAR, max(8, width // 5)))
        grid.add_column(no_wrap=True)
        grid.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
        times = f"{duration(now - activity.since)}{'' if left is None else f', {duration(left)} left'}"
        note = f", {activity.note}" if activity.note else ""
        grid.add_row(
            Text(activity.text, style="bold"),
            ProgressBar(total=activity.total, completed=activity.done),
            Text(f"{activity.done}/{activity.total}"),
            Text(f"{times}{note}"),
        )
        return grid
