"""The run's figures over time: always in the run's metrics.jsonl, and in every sink (such as W&B) that is there."""

import logging
import math
import numbers
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from chimera.runs import Run
from chimera.secrets import redact
from training.policies import Policy
from training.rollouts import RolloutRecord
from training.summary import aligned

ROLLOUT = "rollout"
"""The phase under which single rollouts are logged, whatever phase they belong to; the step is their number."""

logger = logging.getLogger(__name__)


class Sink(Protocol):
    """Something else that is told what is logged. It may raise: it is dropped then, and training goes on."""

    @property
    def name(self) -> str:
        """How warnings call it."""
        ...

    def log(self, phase: str, step: int | None, values: Mapping[str, Any]) -> None:
        """Values of `phase` at its own `step`; without a step they are what the phase came to."""
        ...

    def protocols(self, phase: str, records: Sequence[RolloutRecord]) -> None:
        """The rollouts of a phase that has ended, whose protocols may be worth reading."""
        ...

    def artifact(self, policy: Policy, folder: Path) -> None:
        """A policy that was learned, and where it is."""
        ...

    def close(self) -> None:
        """No more will come; returns within seconds."""
        ...


class Metrics:
    """Logs to the run and to the sinks; threads may log at once.

    Args:
        run: Its metrics.jsonl gets everything. Rollouts that are in it already are not logged again.
        sinks: A sink that raises is dropped.
        warn: Is told, once, that a sink was dropped.
    """

    def __init__(self, run: Run, sinks: Sequence[Sink] = (), warn: Callable[[str], None] = logger.warning) -> None:
        self._run = run
        self._sinks = list(sinks)
        self._warn = warn
        self._lock = threading.RLock()
        self._rollouts = {line["rollout_id"] for line in run.metrics() if line.get("phase") == ROLLOUT}

    def log(self, phase: str, step: int | None, values: Mapping[str, Any]) -> None:
        """Log `values` of `phase`; a value that is not finite is logged as None, because JSON has no other word for it.

        Args:
            phase: Any name; each has its own steps.
            step: Counts within the phase; None for what the phase as a whole came to.
            values: Numbers, texts, None, or mappings and lists of those.

        Raises:
            RunError: metrics.jsonl could not be written.
        """
        values = plain(values)
        with self._lock:
            self._run.append_metrics({"phase": phase, "step": step, **values})
            self._tell(lambda sink: sink.log(phase, step, values))

    def rollout(self, record: RolloutRecord) -> None:
        """Log one finished rollout with its reward and the parts of it; a second time it is left out."""
        with self._lock:
            if record.rollout_id not in self._rollouts:
                self._rollouts.add(record.rollout_id)
                self.log(ROLLOUT, len(self._rollouts), rollout_values(record))

    def protocols(self, phase: str, records: Sequence[RolloutRecord]) -> None:
        """Hand a finished phase's rollouts to the sinks; the run has them in its rollouts folder."""
        with self._lock:
            self._tell(lambda sink: sink.protocols(phase, records))

    def artifact(self, policy: Policy) -> None:
        """Tell the sinks of a learned policy; the run has it in its ledger."""
        with self._lock:
            self._tell(lambda sink: sink.artifact(policy, self._run.path / policy.folder))

    def close(self) -> None:
        """Close the sinks; the run stays open."""
        with self._lock:
            self._tell(lambda sink: sink.close())
            self._sinks.clear()

    def _tell(self, send: Callable[[Sink], None]) -> None:
        for sink in tuple(self._sinks):
            try:
                send(sink)
            except Exception as error:  # noqa: BLE001  whatever is wrong with a sink, training goes on without it
                self._sinks.remove(sink)
                reason = redact(f"{type(error).__name__}: {error}")
                self._warn(f"{sink.name} failed and gets no more metrics, metrics.jsonl has them all: {reason}")


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
