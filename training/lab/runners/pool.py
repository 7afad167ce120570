"""The runners of a run: one that dies is replaced, unless runners keep dying."""

from collections.abc import Callable
from functools import partial

from chimera.core.errors import RunError
from training.lab.runners.launching import RunnerLauncher, StartedRunner
from training.lab.runners.runner import worker_name

UNPRODUCTIVE_DEATHS = 3
"""After this number of deaths without a finished rollout in between, dead runners are no longer replaced."""


class RunnerPool:
    """`size` runners. Each has a number that is never reused, so that the store can distinguish them.

    Args:
        on_start: Called with a runner's name before it is started.
        on_death: Called with a runner's name and the reason when it died unexpectedly.
        on_shrinking: Called with a message for the user when dead runners are no longer replaced.
        on_failure: Called with the error when no runner is left.
    """

    def __init__(
        self,
        launcher: RunnerLauncher,
        size: int,
        on_start: Callable[[str], None],
        on_death: Callable[[str, str], None],
        on_shrinking: Callable[[str], None],
        on_failure: Callable[[RunError], None],
    ) -> None:
        self._launcher = launcher
        self._size = size
        self._on_start = on_start
        self._on_death = on_death
        self._on_shrinking = on_shrinking
        self._on_failure = on_failure
        self._runners: dict[str, StartedRunner] = {}
        self._started = 0
        self._unproductive = 0

    def start(self) -> None:
        """Start all runners. They ask the store for work immediately."""
        for _ in range(self._size):
            self._add()

    def productive(self) -> None:
        """Note that a runner has finished a rollout, which shows that runners work."""
        self._unproductive = 0

    def kill(self, worker: str) -> None:
        """End a runner that hangs. It is replaced like a runner that died."""
        if worker in self._runners:
            self._runners[worker].kill()

    def pids(self) -> dict[str, int]:
        """Process ids by the runners' names in the store, of those that run already."""
        return {worker: runner.pid for worker, runner in self._runners.items() if runner.pid is not None}

    def stop(self) -> None:
        """End all runners and their current rollouts."""
        self._runners = {}
        self._launcher.stop()

    def _add(self) -> None:
        number, self._started = self._started, self._started + 1
        worker = worker_name(number)
        self._on_start(worker)
        self._runners[worker] = self._launcher.start(number, partial(self._died, worker))

    def _replace(self) -> None:
        try:
            self._add()
        except RunError as error:
            self._on_failure(error)

    def _died(self, worker: str, ending: str, by_itself: bool) -> None:
        del self._runners[worker]
        self._on_death(worker, ending)
        if by_itself:
            self._unproductive += 1
        if self._unproductive <= UNPRODUCTIVE_DEATHS:
            self._replace()
        elif not self._runners:
            self._on_failure(RunError(f"all runners died; the last: {ending}"))
        elif self._unproductive == UNPRODUCTIVE_DEATHS + 1:
            self._on_shrinking(
                f"{self._unproductive} runners died with no rollout finished in between: until one finishes, runners "
                f"that die are not replaced; {len(self._runners)} of {self._size} are left"
            )
