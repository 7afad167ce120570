"""What a view knows of a run: activities, bars, rollouts and the time left. Drawn by `live`, told by `lines`."""

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from evaluation.records.rollouts import RolloutRecord
from training.watch.forecast import TimeForecast
from training.watch.view_text import duration


@dataclass
class Rollouts:
    """The rollouts of a phase so far, and the newest policy versions among them."""

    versions: Mapping[str, str]
    records: list[RolloutRecord] = field(default_factory=list)

    def add(self, record: RolloutRecord) -> None:
        self.records.append(record)
        self.versions = record.policy_versions or self.versions


@dataclass(eq=False)
class Activity:
    """Something that goes on.

    Attributes:
        since: When it began.
        total: Number of its steps; 0 if they are not counted.
        least: The time left is known once so many steps are done.
        note: About the last step.
    """

    text: str
    since: float
    total: int = 0
    done: int = 0
    least: int = 1
    note: str = ""

    def left(self, now: float) -> float | None:
        """Seconds until it ends, if it goes on at the mean speed of its own; None if that is not known."""
        if not self.total or self.done < max(1, self.least) or self.done >= self.total:
            return None
        return (now - self.since) / self.done * (self.total - self.done)


class RunProgress:
    """The activities of a run, innermost last, and its forecast. It is thread-safe."""

    def __init__(self, concurrency: int) -> None:
        self.forecast = TimeForecast()
        self.started = time.monotonic()
        self.rewards: list[float] = []
        self.latest: RolloutRecord | None = None
        self.decided = ""
        self._concurrency = concurrency
        self._lock = threading.Lock()
        self._activities: list[Activity] = []

    @property
    def activities(self) -> list[Activity]:
        """What goes on, innermost last."""
        with self._lock:
            return list(self._activities)

    @contextmanager
    def doing(self, text: str, total: int = 0, *, rollouts: bool = False) -> Iterator[Activity]:
        """Something goes on while the `with` block runs."""
        found = Activity(text, time.monotonic(), total, least=self._concurrency if rollouts else 1)
        with self._lock:
            self._activities.append(found)
        begun = bool(total) and self.forecast.begin(text)
        if total:
            self.forecast.measure(text)
        try:
            yield found
            if begun:
                self.forecast.finish(text)
        finally:
            with self._lock:
                self._activities.remove(found)

    def advance(self, activity: Activity, done: int, note: str = "") -> None:
        """Steps of an activity have ended."""
        activity.done, activity.note = done, note
        if activity.total and done >= activity.least:
            self.forecast.progress(activity.text, done / activity.total)

    def rollout(self, record: RolloutRecord) -> None:
        self.latest = record
        if record.reward is not None:
            self.rewards.append(record.reward)

    def time_words(self) -> str:
        """How long the run has taken, and about how long it will still take."""
        left = self.forecast.left()
        about = "" if left is None else f", about {duration(left)} left"
        return f"{duration(time.monotonic() - self.started)}{about}"


@contextmanager
def part_of(progress: RunProgress, name: str) -> Iterator[None]:
    """A part of the run goes on while the `with` block runs. One that is interrupted is not finished."""
    begun = progress.forecast.begin(name)
    with progress.doing(name):
        yield
    if begun:
        progress.forecast.finish(name)
