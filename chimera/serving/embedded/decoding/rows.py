"""Chooses the cache row of a new prompt and the part of its prefix that is cached already; uses no tensors.

Rows 0..slots-1 decode; the rows from `slots` on only keep histories for reuse. The history of a row is the token ids
whose keys and values it holds.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

MIN_REUSE = 8
"""Shortest common prefix that is reused, in tokens. Copying a shorter one costs as much as computing it."""


@dataclass(frozen=True, slots=True)
class Placement:
    """The place of a prompt. First the row's history is copied to `stash_to`, then the prefix from `copy_from`.

    `reused` counts the leading tokens that need no prefill; it is smaller than the prompt, because the last token's
    logits are always computed.
    """

    row: int
    reused: int
    copy_from: int | None
    stash_to: int | None


class RowTable:
    """The histories of all rows of one engine."""

    def __init__(self, slots: int, spares: int) -> None:
        self.slots = slots
        self._history: list[np.ndarray] = [np.empty(0, np.int32) for _ in range(slots + spares)]
        self._used = [0] * (slots + spares)
        self._clock = 0

    def history(self, row: int) -> np.ndarray:
        """Token ids cached in `row`, in order."""
        return self._history[row]

    def record(self, row: int, tokens: Sequence[int]) -> None:
        """Record that `row` now holds exactly `tokens` and was just used."""
        self._history[row] = np.asarray(tokens, np.int32)
        self._clock += 1
        self._used[row] = self._clock

    def place(self, prompt: Sequence[int], live: Collection[int]) -> Placement:
        """Choose a decode row outside `live` for `prompt` and update the histories as if the placement were done.

        The row with the longest common prefix is used itself if that does not lengthen the decode batch. Otherwise the
        prefix is copied to the lowest free row, so that batches stay short. If the row held tokens beyond that prefix,
        they are copied to the least recently used spare row.
        """
        tokens = np.asarray(prompt, np.int32)
        best, reused = self._longest(tokens)
        free = [row for row in range(self.slots) if row not in live]
        top = max(live, default=-1)
        in_place = best in free and (best < top or best == free[0])
        row = best if in_place and reused else free[0]
        copy_from = best if reused and row != best else None
        stays = reused if row == best else 0
        stash_to = self._stash(copy_from) if len(self._history[row]) - stays >= MIN_REUSE else None
        if stash_to is not None:
            self._history[stash_to], self._used[stash_to] = self._history[row], self._used[row]
        if copy_from is not None:
            self._clock += 1
            self._used[copy_from] = self._clock
        self.record(row, prompt)
        return Placement(row, reused, copy_from, stash_to)

    def _longest(self, tokens: np.ndarray) -> tuple[int, int]:
        best, length = -1, MIN_REUSE - 1
        for row, history in enumerate(self._history):
            size = min(len(history), len(tokens) - 1)
            if size <= length:
                continue
            different = np.flatnonzero(history[:size] != tokens[:size])
            common = int(different[0]) if len(different) else size
            if common > length:
                best, length = row, common
        return (best, length) if best >= 0 else (-1, 0)

    def _stash(self, keep: int | None) -> int | None:
        """The least recently used spare row other than `keep`; None if there is none."""
        spares = [spare for spare in range(self.slots, len(self._history)) if spare != keep]
        return min(spares, key=self._used.__getitem__, default=None)
