"""Shows a run to the user: a live view in a terminal (`live`), plain lines elsewhere (`lines`).

While a view is open, it is never silent for long: it says what is happening, also where there is nothing to count.
"""

import logging
import threading
import time
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Self

from rich.console import Console
from rich.table import Table
from rich.text import Text

from evaluation.records.rollouts import RolloutRecord, cause
from evaluation.rollout.progress import Advance, ProgressView
from training.watch.forecast import TimeForecast
from training.watch.progress import Activity, Rollouts
from training.watch.view_text import duration, failure

logger = logging.getLogger(__name__)


class View(ProgressView):
    """Shows a run's progress, and knows its activities, rollouts and time left.

    As a context manager it is open: only then it shows what is happening where nothing is counted.
    """

    def __init__(self, console: Console, concurrency: int) -> None:
        self._console = console
        self._concurrency = concurrency
        self._forecast = TimeForecast()
        self._started = time.monotonic()
        self._lock = threading.Lock()
        self._activities: list[Activity] = []
        self._rewards: list[float] = []
        self._latest: RolloutRecord | None = None
        self._causes: set[str] = set()

    @abstractmethod
    def __enter__(self) -> Self: ...

    @abstractmethod
    def __exit__(self, *_: object) -> None: ...

    def plan(self, names: Sequence[str], done: Sequence[str] = (), costs: Mapping[str, float] | None = None) -> None:
        """Show the phases of the run. Those in `done` were finished before.

        `costs` are the expected costs of the parts that are to come (`forecast`), for the time left of the whole run.
        """
        self._forecast.plan(costs or {})
        self._show_plan(names, done)

    @contextmanager
    def doing(self, text: str) -> Iterator[None]:
        with self._active(text):
            yield

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """A part of the run. One that is interrupted is not finished."""
        begun = self._forecast.begin(name)
        with self._active(name):
            yield
        if begun:
            self._forecast.finish(name)

    @contextmanager
    def phase(self, name: str, total: int, versions: Mapping[str, str], *, table: bool = True) -> Iterator[None]:
        rollouts = Rollouts(versions)
        started = time.monotonic()
        try:
            with self._active(name, total, rollouts):
                yield
        finally:
            self._show_result(name, rollouts, time.monotonic() - started, table=table)

    def add(self, record: RolloutRecord) -> None:
        activity, rollouts = self._phases()[-1]
        rollouts.add(record)
        self._latest = record
        if record.reward is not None:
            self._rewards.append(record.reward)
        if (why := cause(record)) is not None:
            logger.warning("rollout %s on task %s failed: %s", record.rollout_id, record.task_id, record.error)
            if why not in self._causes:  # The figures count the others, the log has each.
                self._causes.add(why)
                self.warn(f"{activity.text}: {failure(record)}")
        self._advance(activity, len(rollouts.records), self._note_of(rollouts))

    @contextmanager
    def work(self, name: str, total: int) -> Iterator[Advance]:
        with self._active(name, total) as activity:
            yield lambda done, text: self._advance(activity, done, text)

    def decision(self, text: str) -> None:
        """Show a decision of the gate, and keep it in sight."""
        self.note(text)

    def table(self, table: Table) -> None:
        self._console.print(table)

    def note(self, text: str) -> None:
        """Show a message."""
        self._console.print(Text(text), soft_wrap=True)

    def warn(self, text: str) -> None:
        """Show a warning about a problem that does not stop the run."""
        self.note(f"warning: {text}")

    @abstractmethod
    def _show_plan(self, names: Sequence[str], done: Sequence[str]) -> None: ...

    @abstractmethod
    def _show_result(self, name: str, rollouts: Rollouts, seconds: float, *, table: bool) -> None:
        """Show the result of a phase that has ended, also if it was interrupted."""

    @abstractmethod
    def _show(self, activity: Activity) -> None:
        """Show how far an activity is."""

    def _note_of(self, rollouts: Rollouts) -> str:
        """A text about a phase's rollouts beside their number."""
        return ""

    @contextmanager
    def _active(self, text: str, total: int = 0, rollouts: Rollouts | None = None) -> Iterator[Activity]:
        """Something goes on while the `with` block runs. What is counted has a share of the time left of the run."""
        least = 1 if rollouts is None else self._concurrency
        activity = Activity(text, time.monotonic(), total, rollouts, least=least)
        with self._lock:
            self._activities.append(activity)
        begun = bool(total) and self._forecast.begin(text)
        if total:
            self._forecast.measure(text)
        try:
            yield activity
            if begun:
                self._forecast.finish(text)
        finally:
            with self._lock:
                self._activities.remove(activity)

    def _advance(self, activity: Activity, done: int, note: str) -> None:
        activity.done, activity.note = done, note
        if activity.total and done >= activity.least:
            self._forecast.progress(activity.text, done / activity.total)
        self._show(activity)

    def _current(self) -> list[Activity]:
        """What goes on, innermost last."""
        with self._lock:
            return list(self._activities)

    def _phases(self) -> list[tuple[Activity, Rollouts]]:
        """The phases that go on, innermost last, and their rollouts."""
        return [(activity, activity.rollouts) for activity in self._current() if activity.rollouts is not None]

    def _time_words(self) -> str:
        """How long the run has taken, and about how long it will still take."""
        left = self._forecast.left()
        about = "" if left is None else f", about {duration(left)} left"
        return f"{duration(time.monotonic() - self._started)}{about}"


def make_view(console: Console, concurrency: int) -> View:
    """The view that fits the console.

    It shows no remaining time until `concurrency` rollouts have ended. The first ends show the duration of a rollout,
    but not yet the rate.
    """
    from training.watch.lines import LineView
    from training.watch.live import LiveView

    return LiveView(console, concurrency) if console.is_terminal else LineView(console, concurrency)
