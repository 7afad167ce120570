"""The rollouts that a run has recorded: a resumed run finds them and makes only the missing ones."""

from collections.abc import Mapping, Sequence

from chimera.config.sections.rollouts import RewardConfig
from chimera.run.directory import Run
from evaluation.records.rollouts import RolloutInput, RolloutRecord
from evaluation.traces.spans import Span
from training.learning.adapter import HierarchicalTraceAdapter
from training.learning.episodes import Episode

Identity = tuple[str, str, int]
"""Phase, task and repeat. They identify a rollout in a run and in the resumed run."""


class Records:
    """A run's recorded rollouts, and their episodes."""

    def __init__(self, run: Run, reward: RewardConfig) -> None:
        self._run = run
        self._adapter = HierarchicalTraceAdapter(reward)
        self._known: dict[str, dict[Identity, RolloutRecord]] = {}

    def of(self, phase: str) -> Mapping[Identity, RolloutRecord]:
        """The rollouts of `phase`, succeeded or failed, which need not run again."""
        if phase not in self._known:
            records = map(RolloutRecord.load, self._run.rollouts(phase))
            self._known[phase] = {identity(record): record for record in records}
        return self._known[phase]

    def episode(self, record: RolloutRecord, spans: Sequence[Span] | None = None) -> Episode:
        """The episode of a recorded rollout. Without spans it reads its trace from disk when needed."""
        return Episode(record, spans, self._run.path, self._adapter)

    def note(self, record: RolloutRecord) -> None:
        """Remember a rollout that has been written."""
        self._known[record.phase][identity(record)] = record


def identity(rollout: RolloutRecord | RolloutInput) -> Identity:
    """The identity of a rollout in a run and in the resumed run."""
    task_id = rollout.task_id if isinstance(rollout, RolloutRecord) else rollout.task.id
    return rollout.phase, task_id, rollout.repeat
