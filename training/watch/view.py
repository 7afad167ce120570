"""Shows a run to the user: a live view in a terminal, plain lines elsewhere, and a table after each phase."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from rich.console import Console, Group
from rich.live import Live
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    Task,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from evaluation.records.rollouts import RolloutRecord
from training.summary import part_means
from training.watch.view_text import describe_versions, failure, number, result_table, running

LINE_SECONDS = 10.0
"""Minimum interval of progress lines without a terminal."""

STYLES = {"done": "green", "running": "bold", "": "dim"}
"""Style of each state of a phase."""

Advance = Callable[[int, str], None]
"""Called with the number of finished steps of a work and a text about it."""


class View(Protocol):
    """Shows a run's progress. Phases and works may be nested. It is thread-safe."""

    def plan(self, names: Sequence[str], done: Sequence[str] = ()) -> None:
        """Show the phases of the run. Those in `done` were finished before."""
        ...

    @contextmanager
    def phase(self, name: str, total: int, versions: Mapping[str, str], *, table: bool = True) -> Iterator[None]:
        """Show the progress of `total` rollouts, and a table about them at the end, even if the phase is interrupted.

        `versions` are the policy versions at its start. Rollouts bring newer ones.
        """
        ...

    def add(self, record: RolloutRecord) -> None:
        """Count one finished rollout of the innermost phase."""
        ...

    @contextmanager
    def work(self, name: str, total: int) -> Iterator[Advance]:
        """Show the progress of `total` steps of other work than rollouts."""
        ...

    def table(self, table: Table) -> None:
        """Show a table."""
        ...

    def note(self, text: str) -> None:
        """Show a message."""
        ...

    def warn(self, text: str) -> None:
        """Show a warning about a problem that does not stop the run."""
        ...


def make_view(console: Console, runners: int) -> View:
    """The view that fits the console.

    It shows no remaining time until `runners` rollouts have ended. The first ends show the duration of a rollout, but
    not yet the rate.
    """
    return LiveView(console, runners) if console.is_terminal else LineView(console, runners)


@dataclass
class Rollouts:
    """The rollouts of a phase so far, and the newest policy versions among them."""

    versions: Mapping[str, str]
    records: list[RolloutRecord] = field(default_factory=list)

    def add(self, record: RolloutRecord) -> None:
        """Add one finished rollout."""
        self.records.append(record)
        self.versions = record.policy_versions or self.versions


class LineView:
    """Plain log lines."""

    def __init__(self, console: Console, runners: int) -> None:
        self._console = console
        self._runners = runners
        self._phases: list[tuple[Rollouts, Lines]] = []

    def plan(self, names: Sequence[str], done: Sequence[str] = ()) -> None:
        """Print one line."""
        self.note("phases: " + ", ".join(f"{name} (finished before)" if name in done else name for name in names))

    @contextmanager
    def phase(self, name: str, total: int, versions: Mapping[str, str], *, table: bool = True) -> Iterator[None]:
        """Lines for one phase, then its table."""
        lines = Lines(name, total, self.note)
        rollouts = Rollouts(versions)
        self._phases.append((rollouts, lines))
        self.note(f"{name}: {total} rollouts; policies {describe_versions(versions)}")
        try:
            yield
        finally:
            self._phases.pop()
            if table:
                self.table(result_table(name, rollouts.records, time.monotonic() - lines.started))

    def add(self, record: RolloutRecord) -> None:
        """Print a line for the first and the last rollout, for every failure, and at intervals."""
        rollouts, lines = self._phases[-1]
        rollouts.add(record)
        if record.status == "failed":
            self.warn(f"{lines.name}: {failure(record)}")
        lines.tell(len(rollouts.records), running(rollouts.records), least=self._runners)

    @contextmanager
    def work(self, name: str, total: int) -> Iterator[Advance]:
        """Print a line for the first and the last step, and at intervals."""
        yield Lines(name, total, self.note).tell

    def table(self, table: Table) -> None:
        """The table as text."""
        self._console.print(table)

    def note(self, text: str) -> None:
        """One line."""
        self._console.print(Text(text), soft_wrap=True)

    def warn(self, text: str) -> None:
        """Print one line, marked as a warning."""
        self.note(f"warning: {text}")


class Lines:
    """Prints progress as lines at intervals."""

    def __init__(self, name: str, total: int, note: Callable[[str], None]) -> None:
        self.name = name
        self.started = self._last = time.monotonic()
        self._total = total
        self._note = note
        self._first = True

    def tell(self, done: int, text: str, *, least: int = 1) -> None:
        """Print a line if the interval is over, with the remaining time once `least` steps are done."""
        now = time.monotonic()
        if not self._first and done != self._total and now - self._last < LINE_SECONDS:
            return
        self._first, self._last = False, now
        more = self._total - done
        left = f", {(now - self.started) / done * more:.0f} s left" if done >= least and more else ""
        self._note(f"{self.name}: {done}/{self._total}{text and f', {text}'}{left}")


class TimeLeftColumn(TimeRemainingColumn):
    """Column with the remaining time, shown once `least` steps (or the task's field "least") are done."""

    def __init__(self, least: int) -> None:
        super().__init__()
        self._least = least

    def render(self, task: Task) -> Text:
        """The column's text for `task`."""
        known = task.completed >= task.fields.get("least", self._least)
        return super().render(task) if known else Text("-:--:--", "progress.remaining")


class LiveView:
    """A live view: the phases, progress with time left, running reward and its parts, failures, policy versions."""

    def __init__(self, console: Console, runners: int) -> None:
        self._console = console
        self._plan: dict[str, str] = {}
        self._phases: list[tuple[Rollouts, TaskID]] = []
        self._progress = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeLeftColumn(runners),
            TextColumn("{task.fields[text]}", markup=False),
            console=console,
        )
        self._live: Live | None = None

    def plan(self, names: Sequence[str], done: Sequence[str] = ()) -> None:
        """Show the phases above the progress from now on."""
        self._plan = {name: "done" if name in done else "" for name in names}

    @contextmanager
    def phase(self, name: str, total: int, versions: Mapping[str, str], *, table: bool = True) -> Iterator[None]:
        """The live view of one phase, then its table."""
        started = time.monotonic()
        rollouts = Rollouts(versions)
        try:
            with self._bar(name, total) as bar:
                self._phases.append((rollouts, bar))
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
        """Count the rollout and show it."""
        rollouts, bar = self._phases[-1]
        rollouts.add(record)
        self._progress.advance(bar)
        if record.status == "failed":
            self.warn(failure(record))
        self._show()

    @contextmanager
    def work(self, name: str, total: int) -> Iterator[Advance]:
        """Show a separate bar below that of the phase."""
        with self._bar(name, total, least=1) as bar:
            yield lambda done, text: self._progress.update(bar, completed=done, text=text)

    def table(self, table: Table) -> None:
        """The table above the live view."""
        self._console.print(table)

    def note(self, text: str) -> None:
        """One line above the live view."""
        self._console.print(Text(text))

    def warn(self, text: str) -> None:
        """One yellow line above the live view."""
        self._console.print(Text(f"warning: {text}", style="yellow"))

    @contextmanager
    def _bar(self, name: str, total: int, **fields: Any) -> Iterator[TaskID]:
        """A bar in the live view. rich allows one live view, which exists while there is any bar."""
        bar = self._progress.add_task(name, total=total, text="", **fields)
        state = self._plan.get(name)
        if state is not None:
            self._plan[name] = "running"
        if outermost := self._live is None:
            self._live = Live(self._picture(), console=self._console, refresh_per_second=4, transient=True)
            self._live.start(refresh=True)
        try:
            self._show()
            yield bar
            state = "done"
        finally:
            if name in self._plan:
                self._plan[name] = state or ""
            if outermost:
                live, self._live = self._live, None
                live.stop()
            self._progress.remove_task(bar)
            self._show()

    def _show(self) -> None:
        if self._live is not None:
            self._live.update(self._picture())

    def _picture(self) -> Group:
        lines: list[Any] = [self._progress]
        if self._plan:
            lines.insert(
                0,
                Text(" | ").join(Text(f"{name} {state}".rstrip(), STYLES[state]) for name, state in self._plan.items()),
            )
        if self._phases:
            rollouts, _ = self._phases[-1]
            parts = ", ".join(f"{name} {number(value)}" for name, value in part_means(rollouts.records).items())
            lines += [
                Text(f"  {running(rollouts.records)}"),
                Text(f"  parts: {parts or '-'}", style="dim"),
                Text(f"  policies: {describe_versions(rollouts.versions)}", style="dim"),
            ]
        return Group(*lines)
