"""How long a run will still take, from what its parts have taken so far.

A part is a phase or a gate's evaluation. The unit of cost is one gathered rollout. Costs of parts that have not begun
are rough (`training.phases.expected_costs`); the speed is measured, and so is the part that is running.
"""

import time
from collections.abc import Callable, Mapping

LEAST_SHARE = 0.1
"""A part that takes longer than expected is taken to have this share of its expected cost left."""
LEAST_S = 1.0
"""A part that ends sooner was read from disk, after an earlier start of the run made it: it says nothing of speed."""


class TimeForecast:
    """The time left of a run.

    Args:
        clock: Seconds, from any start.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._costs: dict[str, float] = {}
        self._done: dict[str, float] = {}
        self._running: str | None = None
        self._began = self._measured_from = clock()
        self._share = 0.0

    def plan(self, costs: Mapping[str, float]) -> None:
        """The parts that are still to come, in order, with their expected costs."""
        self._costs = dict(costs)

    def begin(self, name: str) -> bool:
        """A part begins; False if it is not planned, or if another is running."""
        if name not in self._costs or self._running is not None:
            return False
        self._running, self._began, self._share = name, self._clock(), 0.0
        self._measured_from = self._began
        return True

    def measure(self, name: str) -> None:
        """From now on `progress` tells of the running part: what it did before has no share of its own."""
        if name == self._running:
            self._measured_from, self._share = self._clock(), 0.0

    def progress(self, name: str, share: float) -> None:
        """The share of the running part that is done, since `measure`."""
        if name == self._running:
            self._share = min(share, 1.0)

    def finish(self, name: str) -> None:
        if name == self._running:
            self._done[name] = self._clock() - self._began
            self._running = None

    def left(self) -> float | None:
        """Seconds until the last part ends; None if nothing was measured yet."""
        coming = [name for name in self._costs if name not in self._done and name != self._running]
        current = self._left_of_running()
        rate = self._rate()
        if rate is None or (self._running is not None and current is None):
            return None
        return (current or 0.0) + rate * sum(self._costs[name] for name in coming)

    def _rate(self) -> float | None:
        """Measured seconds of one unit of cost."""
        measured = [name for name, seconds in self._done.items() if seconds >= LEAST_S]
        spent, cost = sum(self._done[name] for name in measured), sum(self._costs[name] for name in measured)
        if self._running is not None and self._share:
            spent += (self._clock() - self._measured_from) / self._share
            cost += self._costs[self._running]
        return spent / cost if cost else None

    def _left_of_running(self) -> float | None:
        if self._running is None:
            return None
        if self._share:
            return (self._clock() - self._measured_from) * (1 - self._share) / self._share
        if (rate := self._rate()) is None:
            return None
        expected = rate * self._costs[self._running]
        return max(expected - (self._clock() - self._began), LEAST_SHARE * expected)
