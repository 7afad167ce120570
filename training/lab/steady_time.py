"""Time for Agent Lightning's store that goes on evenly when somebody sets the computer's clock.

agentlightning 0.3.0 tells by the clock how long a rollout has run: set forward by an hour, it would end all of them as
late; set back, it would wait an hour more for those that hang.
"""

import time
from importlib import import_module
from typing import Any


class SteadyTime:
    """Python's module `time`, whose `time()` is the clock's time at the beginning and the seconds since then."""

    def __init__(self) -> None:
        self._began = time.time() - time.monotonic()

    def time(self) -> float:
        """Seconds since 1970 as the clock would show if nobody had set it."""
        return self._began + time.monotonic()

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)


def use_steady_time() -> None:
    """Have Agent Lightning's store use `SteadyTime` in this process."""
    steady = SteadyTime()
    for name in ("store.collection_based", "store.utils"):
        vars(import_module(f"agentlightning.{name}"))["time"] = steady
