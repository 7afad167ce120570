"""A run as plain log lines, for a pipe or a file."""

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Self

from rich.console import Console
from rich.table import Table
from rich.text import Text

from evaluation.conduct.progress import Advance
from evaluation.records.rollouts import RolloutRecord
from training.watch.progress import Activity, Rollouts, RunProgress, part_of
from training.watch.view_text import describe_versions, duration, failure, result_table, running, trend

LINE_SECONDS = 10.0
"""Minimum interval of progress lines."""
SILENT_SECONDS = 4.5
"""After so long without a line, one says what is happening."""
LONG_SECONDS = 60.0
"""What takes longer is told of only at such intervals."""


class LineView:
    """Plain log lines."""

    def __init__(self, console: Console, concurrency: int) -> None:
        self._console = console
        self._progress = RunProgress(concurrency)
        self._phases: list[tuple[Rollouts, Activity]] = []
        self._told: dict[int, float] = {}
        self._last = time.monotonic()
        self._closed = threading.Event()
        self._pulse: threading.Thread | None = None

    def __enter__(self) -> Self:
        self._pulse = threading.Thread(target=self._tell_silence, name="view", daemon=True)
        self._pulse.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        if self._pulse is not None:
            self._pulse.join()

    def plan(self, names: Sequence[str], done: Sequence[str] = (), costs: Mapping[str, float] | None = None) -> None:
        self._progress.forecast.plan(costs or {})
        self.note("phases: " + ", ".join(f"{name} (finished before)" if name in done else name for name in names))

    @contextmanager
    def doing(self, text: str) -> Iterator[None]:
        """Only told if it takes long."""
        with self._progress.doing(text):
            yield

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """A part of the run, for the time left."""
        with part_of(self._progress, name):
            yield

    @contextmanager
    def phase(self, name: str, total: int, versions: Mapping[str, str], *, table: bool = True) -> Iterator[None]:
        rollouts = Rollouts(versions)
        self.note(f"{name}: {total} rollouts; policies {describe_versions(versions)}")
        with self._progress.doing(name, total, rollouts=True) as activity:
            self._phases.append((rollouts, activity))
            try:
                yield
            finally:
                self._phases.pop()
                self._told.pop(id(activity), None)
                if table:
                    self.table(result_table(name, rollouts.records, time.monotonic() - activity.since))
                if words := trend(self._progress.rewards):
                    self.note(f"{name}: reward of the run so far {words}")

    def add(self, record: RolloutRecord) -> None:
        """Print a line for the first and the last rollout, for every failure, and at intervals."""
        rollouts, activity = self._phases[-1]
        rollouts.add(record)
        self._progress.rollout(record)
        if record.status == "failed":
            self.warn(f"{activity.text}: {failure(record)}")
        self._tell(activity, len(rollouts.records), running(rollouts.records))

    @contextmanager
    def work(self, name: str, total: int) -> Iterator[Advance]:
        """Print a line for the first and the last step, and at intervals."""
        with self._progress.doing(name, total) as activity:
            try:
                yield lambda done, text: self._tell(activity, done, text)
            finally:
                self._told.pop(id(activity), None)

    def decision(self, text: str) -> None:
        self.note(text)

    def table(self, table: Table) -> None:
        self._last = time.monotonic()
        self._console.print(table)

    def note(self, text: str) -> None:
        self._last = time.monotonic()
        self._console.print(Text(text), soft_wrap=True)

    def warn(self, text: str) -> None:
        self.note(f"warning: {text}")

    def _tell(self, activity: Activity, done: int, text: str) -> None:
        """Print a line about progress if the interval is over, with the remaining time once it is known."""
        self._progress.advance(activity, done, text)
        now, told = time.monotonic(), self._told.get(id(activity))
        if told is not None and done != activity.total and now - told < LINE_SECONDS:
            return
        self._told[id(activity)] = now
        self.note(_line(activity, now))

    def _tell_silence(self) -> None:
        """Say what is happening whenever nothing else was said for a while."""
        while not self._closed.wait(0.5):
            now, activities = time.monotonic(), self._progress.activities
            if not activities:
                continue
            inner = activities[-1]
            quiet = SILENT_SECONDS if now - inner.since < LONG_SECONDS else LONG_SECONDS
            if now - self._last >= quiet:
                self.note(f"{_line(inner, now)}, for {duration(now - inner.since)}; run {self._progress.time_words()}")


def _line(activity: Activity, now: float) -> str:
    counted = f": {activity.done}/{activity.total}" if activity.total else ""
    note = f", {activity.note}" if activity.note else ""
    left = activity.left(now)
    return f"{activity.text}{counted}{note}{'' if left is None else f', {left:.0f} s left'}"
