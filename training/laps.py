"""Where a run's seconds went."""

import time


class Laps:
    """Wall time of a process's stages, from its start on.

    Args:
        started: When the process was started, in seconds since 1970.
    """

    def __init__(self, started: float) -> None:
        self._last = started
        self._seconds: dict[str, float] = {}

    def lap(self, stage: str) -> None:
        """All time since the last lap was spent on `stage`."""
        now = time.time()
        self._seconds[stage] = self._seconds.get(stage, 0.0) + now - self._last
        self._last = now

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds of each stage, in the order of their first laps."""
        return dict(self._seconds)

    def words(self) -> str:
        """All stages that took a second or more, with their share of the whole, and the sum."""
        whole = sum(self._seconds.values())
        parts = (
            f"{stage} {seconds:.0f} s ({seconds / whole:.0%})"
            for stage, seconds in self._seconds.items()
            if seconds >= 1
        )
        return f"time: {', '.join(parts)}; {whole:.0f} s altogether"
