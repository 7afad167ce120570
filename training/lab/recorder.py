"""Makes the episode of an ended rollout: joins trace and outcome and writes both to disk."""

import asyncio
from collections.abc import Mapping, Sequence

import agentlightning as agl

from chimera.config.sections.rollouts import RewardConfig
from chimera.run.directory import Run
from evaluation.conduct.rollout import keep
from evaluation.records.rollouts import Made, Outcome, RolloutInput, RolloutRecord
from evaluation.traces.spans import Span
from training.lab.store import LabStore
from training.learning import traces
from training.learning.adapter import HierarchicalTraceAdapter
from training.learning.episodes import Episode

TRACE_SECONDS = 30.0
"""Time that a finished rollout's last exchanges may take from the gateway to the store."""
SETTLE_SECONDS = 0.5
"""Time to wait for late exchanges of a rollout whose runner died, so that their number is unknown."""

Identity = tuple[str, str, int]
"""Phase, task and repeat. They identify a rollout in a run and in the resumed run."""


class Recorder:
    """Writes a run's rollouts and knows which ones are written already."""

    def __init__(self, run: Run, store: LabStore, reward: RewardConfig) -> None:
        self._run = run
        self._store = store
        self._adapter = HierarchicalTraceAdapter(reward)
        self._known: dict[str, dict[Identity, RolloutRecord]] = {}

    def recorded(self, phase: str) -> Mapping[Identity, RolloutRecord]:
        """The rollouts of `phase` that need not run again: all that ended by themselves, succeeded or failed.

        If its runner died, a rollout says nothing about the society, so a resumed run repeats it.
        """
        if phase not in self._known:
            records = [RolloutRecord.load(data) for data in self._run.rollouts(phase)]
            self._known[phase] = {identity(record): record for record in records if record.seconds is not None}
        return self._known[phase]

    async def outcome(
        self, rollout: agl.Rollout, given: RolloutInput, policy_versions: Mapping[str, str]
    ) -> tuple[RolloutRecord, Sequence[Span]]:
        """The record and trace of an ended rollout. Nothing is written yet."""
        attempt = await self._store.get_latest_attempt(rollout.rollout_id)
        spans = await self._trace(rollout.rollout_id, attempt)
        reported = traces.outcome(spans, attempt.attempt_id) if attempt else None
        made = Made(
            rollout_id=rollout.rollout_id,
            policy_versions=policy_versions,
            traced=bool(spans),
            untraced_calls=len(traces.untraced(spans)),
            attempt=attempt.sequence_id if attempt else 0,
            worker=attempt.worker_id if attempt else None,
            failure=None if rollout.status == "succeeded" and reported else _reason(rollout, attempt),
        )
        return RolloutRecord.of(given, Outcome.load(reported) if reported else None, made), traces.plain(spans)

    def write(self, record: RolloutRecord, spans: Sequence[Span]) -> Episode:
        kept = keep(self._run, record, spans)
        self.note(record)
        return self.episode(record, kept)

    def episode(self, record: RolloutRecord, spans: Sequence[Span] | None = None) -> Episode:
        """The episode of a recorded rollout. Without spans it reads its trace from disk when needed."""
        return Episode(record, spans, self._run.path, self._adapter)

    def note(self, record: RolloutRecord) -> None:
        """Remember a rollout that has been written."""
        if record.seconds is not None and record.phase in self._known:
            self._known[record.phase][identity(record)] = record

    async def _trace(self, rollout_id: str, attempt: agl.Attempt | None) -> Sequence[agl.Span]:
        """The rollout's spans. Waits for the last exchanges, which the gateway may write just after answering."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + TRACE_SECONDS
        spans = (await self._store.query_spans(rollout_id)).items
        if attempt is not None and traces.outcome(spans, attempt.attempt_id) is None:
            # The runner died, so its last calls are unknown.
            await asyncio.sleep(SETTLE_SECONDS)
            spans = (await self._store.query_spans(rollout_id)).items
        while traces.untraced(spans) and loop.time() < deadline:
            await asyncio.sleep(0.05)
            spans = (await self._store.query_spans(rollout_id)).items
        return spans


def identity(rollout: RolloutRecord | RolloutInput) -> Identity:
    """The identity of a rollout in a run and in the resumed run."""
    task_id = rollout.task_id if isinstance(rollout, RolloutRecord) else rollout.task.id
    return rollout.phase, task_id, rollout.repeat


def _reason(rollout: agl.Rollout, attempt: agl.Attempt | None) -> str:
    """Why a rollout failed, if its runner did not report it."""
    if attempt is None:
        return f"the rollout was {rollout.status} before it started"
    if attempt.metadata and "error" in attempt.metadata:
        return str(attempt.metadata["error"])
    if attempt.status == "timeout":
        return f"the runner {attempt.worker_id} gave no result in time (rollouts.timeout_s) and was ended"
    return f"the attempt ended as {attempt.status!r} and its outcome never reached the store: see logs/"
