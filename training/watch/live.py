"""A run as a live view at the foot of a terminal, for 80 columns and 24 lines and more."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Self

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from evaluation.scores.rewards import part_title
from training.watch.progress import Activity, Rollouts
from training.watch.summary import part_means
from training.watch.view import View
from training.watch.view_text import describe_versions, duration, last_rollout, number, result_table, running, trend

STYLES = {"done": "green", "running": "bold", "": "dim"}
"""Style of each state of a phase."""
BAR = 24
"""Width of a bar, in characters."""


class LiveView(View):
    """A live view: the phases, what is happening, time left, the rewards' trend, the last decisions.

    Notes and tables are printed above it. It is there while the view is open, or while something is counted.
    """

    def __init__(self, console: Console, concurrency: int) -> None:
        super().__init__(console, concurrency)
        self._plan: dict[str, str] = {}
        self._decision = ""
        self._spinner = Spinner("dots")
        self._live: Live | None = None

    def __enter__(self) -> Self:
        self._open()
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def decision(self, text: str) -> None:
        """One line above the live view, which also stays in it."""
        self._decision = text
        self._console.print(Text(text, style="bold"))

    def note(self, text: str) -> None:
        self._console.print(Text(text))

    def warn(self, text: str) -> None:
        """One yellow line above the live view."""
        self._console.print(Text(f"warning: {text}", style="yellow"))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The picture, drawn anew at each refresh, so that times go on by themselves."""
        yield self._picture(options.max_width)

    def _show_plan(self, names: Sequence[str], done: Sequence[str]) -> None:
        self._plan = {name: "done" if name in done else "" for name in names}
        self._update()

    def _show_result(self, name: str, rollouts: Rollouts, seconds: float, *, table: bool) -> None:
        if table:
            self.table(result_table(name, rollouts.records, seconds))
        else:
            self.note(f"{name}: {len(rollouts.records)} rollouts, {running(rollouts.records)}")

    def _show(self, activity: Activity) -> None:
        self._update()

    def _update(self) -> None:
        if self._live is not None:
            self._live.update(self)

    @contextmanager
    def _active(self, text: str, total: int = 0, rollouts: Rollouts | None = None) -> Iterator[Activity]:
        with self._marked(text), super()._active(text, total, rollouts) as activity:
            opened = bool(total) and self._open()
            try:
                self._update()
                yield activity
            finally:
                if opened:
                    self._close()

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

    def _picture(self, width: int) -> RenderableType:
        lines: list[RenderableType] = []
        if self._plan:
            lines.append(
                Text(" | ").join(Text(f"{name} {state}".rstrip(), STYLES[state]) for name, state in self._plan.items())
            )
        activities = self._current()
        lines += [self._bar(activity, width) for activity in activities if activity.total]
        lines.append(self._now(activities, width))
        if phases := self._phases():
            rollouts = phases[-1][1]
            parts = ", ".join(
                f"{part_title(name)} {number(value)}" for name, value in part_means(rollouts.records).items()
            )
            lines += [
                Text(f"  {running(rollouts.records)}"),
                Text(f"  parts: {parts or '-'}", style="dim"),
                Text(f"  policies: {describe_versions(rollouts.versions)}", style="dim"),
            ]
        if words := trend(self._rewards):
            lines.append(Text(f"  reward {words}"))
        if self._latest is not None:
            lines.append(Text(f"  last: {last_rollout(self._latest)}", style="dim"))
        if self._decision:
            lines.append(Text(f"  {self._decision}", style="bold"))
        for line in lines:
            if isinstance(line, Text):
                line.no_wrap, line.overflow = True, "ellipsis"
        return Group(*lines)

    def _now(self, activities: Sequence[Activity], width: int) -> RenderableType:
        """The spinner, what is happening where nothing is counted, and the time of the run."""
        inner = activities[-1] if activities else None
        counted = inner is None or inner.total
        what = "" if inner is None or counted else f"{inner.text}, {duration(time.monotonic() - inner.since)} | "
        text = Text(f"{what}run {self._time_words()}")
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
