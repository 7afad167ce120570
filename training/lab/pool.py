"""The runner processes of a run: started together, replaced when one dies, and given up on when all keep dying."""

import asyncio
from collections.abc import Callable
from pathlib import Path

from chimera.core.errors import RunError
from chimera.run import children, forks
from training.lab.runner import RunnerSpec, serve, worker_name

UNPRODUCTIVE_DEATHS = 3
"""After so many deaths with no rollout finished in between, further dead runners are not replaced."""


class RunnerPool:
    """`size` runner processes. Each has a number of its own, never used again, so that the store can tell them apart.

    Args:
        spec: What each runner needs.
        size: How many work at a time.
        logs: Folder of their log files.
        on_start: Called with a runner's name before it is started.
        on_death: Called with a runner's name and how it ended when it died unasked.
        on_shrinking: Called with what to tell the user when dead runners begin not to be replaced.
        on_failure: Called with the error when no runner is left.
    """

    def __init__(
        self,
        spec: RunnerSpec,
        size: int,
        logs: Path,
        on_start: Callable[[str], None],
        on_death: Callable[[str, str], None],
        on_shrinking: Callable[[str], None],
        on_failure: Callable[[RunError], None],
    ) -> None:
        self._spec = spec
        self._size = size
        self._logs = logs
        self._on_start = on_start
        self._on_death = on_death
        self._on_shrinking = on_shrinking
        self._on_failure = on_failure
        self._runners: dict[str, forks.Fork] = {}
        self._started = 0
        self._unproductive = 0

    def start(self) -> None:
        """Start all runners; they ask the store for work at once."""
        for _ in range(self._size):
            self._add()

    def productive(self) -> None:
        """Tell that a runner has just finished a rollout, so the runners as such work."""
        self._unproductive = 0

    def kill(self, worker: str) -> None:
        """End a runner that hangs; it is replaced like one that died."""
        if worker in self._runners:
            self._runners[worker].kill()

    def pids(self) -> dict[str, int]:
        """Process ids by the runners' names in the store."""
        return {worker: child.pid for worker, child in self._runners.items()}

    def stop(self) -> None:
        """End all runners and the rollouts that they work on."""
        runners, self._runners = self._runners, {}
        loop = asyncio.get_running_loop()
        for child in runners.values():
            loop.remove_reader(child.sentinel)
        children.stop(runners.values())

    def _add(self) -> None:
        number, self._started = self._started, self._started + 1
        worker = worker_name(number)
        child = forks.Fork(f"runner {number}", serve, (self._spec, number), self._logs / f"runner-{number}.log")
        self._on_start(worker)
        child.start()
        self._runners[worker] = child
        asyncio.get_running_loop().add_reader(child.sentinel, self._died, worker)

    def _replace(self) -> None:
        try:
            self._add()
        except RunError as error:
            self._on_failure(error)

    def _died(self, worker: str) -> None:
        child = self._runners.pop(worker)
        asyncio.get_running_loop().remove_reader(child.sentinel)
        child.join(1.0)
        ending = child.ending() if child.killed() else f"{child.ending()}: {child.last_words()}"
        self._on_death(worker, f"{ending} (see {child.log_file})")
        if not child.orphaned:
            self._unproductive += 1
        if self._unproductive <= UNPRODUCTIVE_DEATHS:
            self._replace()
        elif not self._runners:
            self._on_failure(RunError(f"all runners died; the last: {ending} (see {child.log_file})"))
        elif self._unproductive == UNPRODUCTIVE_DEATHS + 1:
            self._on_shrinking(
                f"{self._unproductive} runners died with no rollout finished in between: until one finishes, runners "
                f"that die are not replaced; {len(self._runners)} of {self._size} are left"
            )
