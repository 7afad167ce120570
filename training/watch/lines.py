"""A run as plain log lines, for a pipe or a file."""

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Self

from rich.console import Console
from rich.table import Table
from rich.text import Text

from training.watch.progress import Activity, Rollouts
from training.watch.view import View
from training.watch.view_text import describe_versions, duration, result_table, running, trend

LINE_SECONDS = 10.0
"""Minimum interval of progress lines."""
SILENT_SECONDS = 4.5
"""After so long without a line, one says what is happening."""
LONG_SECONDS = 60.0
"""What takes longer is reported only at such intervals."""


class LineView(View):
    """Plain log lines: for the first and the last step, at intervals, and after a silence."""

    def __init__(self, console: Console, concurrency: int) -> None:
        super().__init__(console, concurrency)
        self._last = time.monotonic()
        self._closed = threading.Event()
        self._pulse: threading.Thread | None = None

    def __enter__(self) -> Self:
        self._pulse = threading.Thread(target=self._break_silence, name="view", daemon=True)
        self._pulse.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        if self._pulse is not None:
            self._pulse.join()

    @contextmanager
    def phase(self, name: str, total: int, versions: Mapping[str, str], *, table: bool = True) -> Iterator[None]:
        self.note(f"{name}: {total} rollouts; policies {describe_versions(versions)}")
        with super().phase(name, total, versions, table=table):
            yield

    def table(self, table: Table) -> None:
        self._last = time.monotonic()
        self._console.print(table)

    def note(self, text: str) -> None:
        self._last = time.monotonic()
        self._console.print(Text(text), soft_wrap=True)

    def _show_plan(self, names: Sequence[str], done: Sequence[str]) -> None:
        self.note("phases: " + ", ".join(f"{name} (finished before)" if name in done else name for name in names))

    def _show_result(self, name: str, rollouts: Rollouts, seconds: float, *, table: bool) -> None:
        if table:
            self.table(result_table(name, rollouts.records, seconds))
        if words := trend(self._rewards):
            self.note(f"{name}: reward of the run so far {words}")

    def _show(self, activity: Activity) -> None:
        """Print a line about progress if the interval is over, with the remaining time once it is known."""
        now = time.monotonic()
        if activity.shown is None or activity.done == activity.total or now - activity.shown >= LINE_SECONDS:
            activity.shown = now
            self.note(_line(activity, now))

    def _note_of(self, rollouts: Rollouts) -> str:
        return running(rollouts.records)

    def _break_silence(self) -> None:
        """Say what is happening whenever nothing else was said for a while."""
        while not self._closed.wait(0.5):
            now, activities = time.monotonic(), self._current()
            if not activities:
                continue
            inner = activities[-1]
            quiet = SILENT_SECONDS if now - inner.since < LONG_SECONDS else LONG_SECONDS
            if now - self._last >= quiet:
                self.note(f"{_line(inner, now)}, for {duration(now - inner.since)}; run {self._time_words()}")


def _line(activity: Activity, now: float) -> str:
    counted = f": {activity.done}/{activity.total}" if activity.total else ""
    note = f", {activity.note}" if activity.note else ""
    left = activity.left(now)
    return f"{activity.text}{counted}{note}{'' if left is None else f', {left:.0f} s left'}"
