"""The run's metrics over time in its metrics.jsonl, the one feed of all displays of a run.

A line is {"time", "phase", "step", ...values}. Five values of "phase" are not phases: "rollout" (one finished rollout;
the step is its number), "protocols" (the rollouts of a phase are complete and can be read), "gate" (a comparison),
"artifact" (a learned policy) and "ledger" (the last hash of the run's ledger).
"""

import math
import numbers
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from chimera.run.directory import Run
from chimera.run.policies import Policy
from evaluation.records.rollouts import RolloutRecord
from training.watch.summary import aligned

ROLLOUT = "rollout"
PROTOCOLS = "protocols"
ARTIFACT = "artifact"


class Metrics:
    """Writes the feed. It is thread-safe.

    Args:
        run: The run. Rollouts that are already in its metrics.jsonl are not logged again.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._lock = threading.Lock()
        self._rollouts = {line["rollout_id"] for line in run.metrics() if line.get("phase") == ROLLOUT}

    def log(self, phase: str, step: int | None, values: Mapping[str, Any]) -> None:
        """Log `values` of `phase`. A value that is not finite is logged as None, because JSON cannot represent it.

        Args:
            phase: Any name. Each phase has its own steps.
            step: Step of the phase; None for results of the whole phase.
            values: Numbers, texts, None, or mappings and lists of those.

        Raises:
            RunError: metrics.jsonl could not be written.
        """
        self._run.append_metrics({"phase": phase, "step": step, **plain(values)})

    def rollout(self, record: RolloutRecord) -> None:
        """Log one finished rollout with its reward and its parts. A rollout is logged only once."""
        with self._lock:
            if record.rollout_id not in self._rollouts:
                self._rollouts.add(record.rollout_id)
                self.log(ROLLOUT, len(self._rollouts), rollout_values(record))

    def protocols(self, phase: str, records: Sequence[RolloutRecord]) -> None:
        """Log that the recorded rollouts of `phase` are complete."""
        self.log(PROTOCOLS, None, {"of": phase, "rollouts": len(records)})

    def artifact(self, policy: Policy) -> None:
        self.log(ARTIFACT, None, policy.dump())


def rollout_values(record: RolloutRecord) -> dict[str, Any]:
    """The logged values of one rollout. A failed rollout has no reward and no parts."""
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
    """`value` for JSON: numbers of other libraries become Python numbers, and non-finite numbers None."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, numbers.Integral):
        return value if isinstance(value, bool) else int(value)
    if isinstance(value, numbers.Real):
        return float(value) if math.isfinite(value) else None
    return value
