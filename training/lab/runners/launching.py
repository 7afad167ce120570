"""How a pool starts its runners: as processes of this machine here, as actors of Ray in `training.cluster.ray`."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from chimera.processes import children, forks
from training.lab.runners.runner import RunnerSpec, serve

OnEnd = Callable[[str, bool], None]
"""Is told how a runner ended, and whether by itself: False if it was ended with another process."""


class StartedRunner(Protocol):
    """A runner that a launcher has started."""

    @property
    def pid(self) -> int | None:
        """Its process id where it runs; None until it does."""
        ...

    def kill(self) -> None:
        """End it, because it hangs."""
        ...


class RunnerLauncher(Protocol):
    """Starts runners, and notices when one ends. Use it in one event loop."""

    def start(self, number: int, on_end: OnEnd) -> StartedRunner:
        """Start runner `number`; `on_end` is called in the event loop, once.

        Raises:
            RunError: It cannot be started.
        """
        ...

    def stop(self) -> None:
        """End all runners; nobody is told."""
        ...


class ForkedRunners:
    """Starts runners as processes of this machine."""

    def __init__(self, spec: RunnerSpec, logs: Path) -> None:
        self._spec = spec
        self._logs = logs
        self._running: set[forks.Fork] = set()

    def start(self, number: int, on_end: OnEnd) -> forks.Fork:
        child = forks.Fork(f"runner {number}", serve, (self._spec, number), self._logs / f"runner-{number}.log")
        child.start()
        self._running.add(child)
        asyncio.get_running_loop().add_reader(child.sentinel, self._ended, child, on_end)
        return child

    def stop(self) -> None:
        runners, self._running = self._running, set()
        loop = asyncio.get_running_loop()
        for child in runners:
            loop.remove_reader(child.sentinel)
        children.stop(runners)

    def _ended(self, child: forks.Fork, on_end: OnEnd) -> None:
        self._running.discard(child)
        asyncio.get_running_loop().remove_reader(child.sentinel)
        child.join(1.0)
        ending = child.ending() if child.killed() else f"{child.ending()}: {child.last_words()}"
        on_end(f"{ending} (see {child.log_file})", not child.orphaned)
