"""How long the phases of earlier runs took, which tells how long those of this run will take."""

from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from chimera.config.source import read_yaml
from chimera.core.errors import ChimeraError
from chimera.run.chain import read_events
from chimera.run.directory import LEDGER
from evaluation.view.pages.phases import phase_seconds
from evaluation.view.reading.watched import Snapshot

LOOKED_AT = 12
"""The number of other runs that are looked at, the newest."""
ALSO = ("gate.tasks", "rollouts.concurrency")
"""Settings outside a phase's own that change how long it takes."""


def earlier_seconds(snapshot: Snapshot, others: Iterable[Path]) -> dict[str, float]:
    """Seconds of each phase in the newest other run that finished it with the same settings.

    Args:
        others: The folders of other runs, newest first.
    """
    seconds_by_phase: dict[str, float] = {}
    for folder in list(others)[:LOOKED_AT]:
        ledger = folder / LEDGER
        if folder == snapshot.run or not ledger.is_file():
            continue
        seconds, settings = _of(folder, ledger.stat().st_mtime_ns)
        for phase, spent in seconds.items():
            if phase not in seconds_by_phase and _same(phase, settings, snapshot.settings):
                seconds_by_phase[phase] = spent
    return seconds_by_phase


def _same(phase: str, settings: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """True if both runs give the phase the same settings."""
    keys = {key for key in (*settings, *other) if key.startswith(f"pipeline.{phase}.") or key in ALSO}
    return all(settings.get(key) == other.get(key) for key in keys)


@lru_cache(maxsize=64)
def _of(folder: Path, _changed: int) -> tuple[dict[str, float], dict[str, Any]]:
    """Seconds of the finished phases of a run, and its settings; none if it cannot be read."""
    try:
        seconds = phase_seconds(list(read_events(folder / LEDGER)))
        return seconds, {key: entry.value for key, entry in read_yaml(folder / "config.yaml").items()}
    except (ChimeraError, OSError):
        return {}, {}
