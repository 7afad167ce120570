"""A finished rollout in memory: its record, and from its spans what each algorithm learns from."""

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from agents.policies.events import BanditEvent
from evaluation.records.rollouts import RolloutRecord
from evaluation.traces import spans as traces
from evaluation.traces.spans import Span
from training.learning.experience import Call, Conversation

if TYPE_CHECKING:
    from training.learning.adapter import HierarchicalTraceAdapter


class Episode:
    """One rollout: its record, and its trace as `HierarchicalTraceAdapter` reads it.

    Whoever holds an episode holds its spans, about 100 kB: hold many as `on_disk`. An episode that has no spans in
    memory, such as one that an earlier process recorded, reads its trace each time that it is asked for calls or
    conversations.

    Args:
        spans: Its trace, as it is on disk; None if it has to be read from there.
        run: The run's folder.
    """

    __slots__ = ("_adapter", "_run", "_spans", "record")

    def __init__(
        self, record: RolloutRecord, spans: Sequence[Span] | None, run: Path, adapter: "HierarchicalTraceAdapter"
    ) -> None:
        self.record = record
        self._spans = None if spans is None else tuple(spans)
        self._run = run
        self._adapter = adapter

    def on_disk(self) -> "Episode":
        """The same episode without its spans in memory."""
        return Episode(self.record, None, self._run, self._adapter)

    def in_memory(self) -> "Episode":
        """The same episode with its spans in memory, for whoever asks it for several things.

        Raises:
            RunError: The trace cannot be read.
        """
        return Episode(self.record, self.trace(), self._run, self._adapter)

    def conversations(self, roles: Collection[str]) -> list[Conversation]:
        """The conversations of `roles`, one for each visit that came to a readable answer.

        Raises:
            RunError: The trace cannot be read.
        """
        return self._adapter.adapt_for_sft(self.trace(), roles)

    def calls(self, roles: Collection[str]) -> list[Call]:
        """The calls of `roles` with their token ids, in the order in which they were asked.

        Raises:
            RunError: The trace cannot be read, or a call has no token ids or no exchange.
        """
        return self._adapter.adapt_for_ppo(self.trace(), roles)

    def choices(self) -> list[BanditEvent]:
        """The choices that a bandit learns from, with the reward; none without a reward. It needs no trace."""
        return self._adapter.adapt_for_bandit(self.record)

    def trace(self) -> Sequence[Span]:
        """Its spans, from memory or from disk; empty when it left none; raises RunError if the trace cannot be read."""
        if self._spans is not None:
            return self._spans
        return () if self.record.trace is None else traces.read(self._run / self.record.trace)
