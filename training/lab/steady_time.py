"""Time for Agent Lightning's store that does not jump when the computer's clock is set.

agentlightning 0.3.0 measures a rollout's duration with the clock. If the clock is set forward by an hour, it would end
all rollouts as late; if set back, it would wait an hour longer for hanging ones.
"""

import time
from importlib import import_module
from typing import Any


class SteadyTime:
    """Python's module `time`, but `time()` is the clock's time at the beginning plus the seconds since then."""

    def __init__(self) -> None:
        self._began = time.time() - time.monotonic()

    def time(self) -> float:
        """Seconds since 1970, as if the clock had never been set."""
        return self._began + time.monotonic()

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)


def use_steady_time() -> None:
    """Make Agent Lightning's store use `SteadyTime` in this process."""
    steady = SteadyTime()
    for name in ("store.collection_based", "store.utils"):
        vars(import_module(f"agentlightning.{name}"))["time"] = steady
