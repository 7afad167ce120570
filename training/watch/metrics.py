"""The run's figures over time, in its metrics.jsonl: the one feed that everything that shows a run follows.

A line is {"time", "phase", "step", ...values}. Four names are no phases: "rollout" (one finished rollout; the step is
its number), "protocols" (the rollouts of a phase are complete and can be read), "artifact" (a learned policy) and
"ledger" (the last hash of the run's ledger).
"""

import logging
import math
import numbers
import threading
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Protocol, Self

from chimera.core.secrets import redact
from chimera.run.directory import Run
from chimera.run.policies import Policy
from evaluation.records.rollouts import RolloutRecord
from training.summary import aligned

ROLLOUT = "rollout"
PROTOCOLS = "protocols"
ARTIFACT = "artifact"

logger = logging.getLogger(__name__)


class Sink(Protocol):
    """Shows the run elsewhere while it goes on, by following its metrics.jsonl."""

    @property
    def name(self) -> str:
        """How warnings call it."""
        ...

    def close(self, *, interrupted: bool) -> None:
        """No more lines will come: show what is left and end; within seconds if the user has `interrupted` the run."""
        ...


class Metrics:
    """Writes the feed; threads may log at once. As a context manager it closes the sinks at the end.

    Args:
        run: The run. Rollouts that are in its metrics.jsonl already are not logged again.
        sinks: What follows the feed.
        warn: Is told of a sink that could not be closed.
    """

    def __init__(self, run: Run, sinks: Sequence[Sink] = (), warn: Callable[[str], None] = logger.warning) -> None:
        self._run = run
        self._sinks = list(sinks)
        self._warn = warn
        self._lock = threading.Lock()
        self._rollouts = {line["rollout_id"] for line in run.metrics() if line.get("phase") == ROLLOUT}

    def log(self, phase: str, step: int | None, values: Mapping[str, Any]) -> None:
        """Log `values` of `phase`; a value that is not finite is logged as None, because JSON has no word for it.

        Args:
            phase: Any name; each has its own steps.
            step: Counts within the phase; None for what the phase as a whole came to.
            values: Numbers, texts, None, or mappings and lists of those.

        Raises:
            RunError: metrics.jsonl could not be written.
        """
        self._run.append_metrics({"phase": phase, "step": step, **plain(values)})

    def rollout(self, record: RolloutRecord) -> None:
        """Log one finished rollout with its reward and the parts of it; a second time it is left out."""
        with self._lock:
            if record.rollout_id not in self._rollouts:
                self._rollouts.add(record.rollout_id)
                self.log(ROLLOUT, len(self._rollouts), rollout_values(record))

    def protocols(self, phase: str, records: Sequence[RolloutRecord]) -> None:
        """Tell that the rollouts of `phase`, which are recorded, are complete."""
        self.log(PROTOCOLS, None, {"of": phase, "rollouts": len(records)})

    def artifact(self, policy: Policy) -> None:
        """Tell of a learned policy."""
        self.log(ARTIFACT, None, policy.dump())

    def close(self, *, interrupted: bool = False) -> None:
        """Close the sinks; the run stays open."""
        while self._sinks:
            sink = self._sinks.pop()
            try:
                sink.close(interrupted=interrupted)
            except Exception as error:  # noqa: BLE001  whatever is wrong with a sink, the run has not failed
                reason = redact(f"{type(error).__name__}: {error}")
                self._warn(f"{sink.name} may lack something that metrics.jsonl has: {reason}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(interrupted=kind is not None)


def rollout_values(record: RolloutRecord) -> dict[str, Any]:
    """What is logged of one rollout; a rollout that failed has no reward and no parts."""
    fits = aligned(record)
    return {
        "rollout_id": record.rollout_id,
        "of": record.phase,
        "reward": record.reward,
        "parts": dict(record.parts),
        "aligned": None if fits is None else int(fits),
        "failed": int(record.status == "failed"),
        "seconds": record.seconds,
    }


def plain(value: Any) -> Any:
    """`value` as JSON can hold it: numbers of other libraries become Python's, and those that are not finite None."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, numbers.Integral):
        return value if isinstance(value, bool) else int(value)
    if isinstance(value, numbers.Real):
        return float(value) if math.isfinite(value) else None
    return value
