"""Decode steps on a GPU, recorded once for each size and then replayed: one start for a step instead of hundreds."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

COLUMNS = 256
"""Numbers of cache columns are rounded up to multiples of it, and numbers of rows to powers of two."""

Step = Callable[[Tensor, Tensor, int], Tensor]
"""Logits (B, V) of tokens (B,) at positions (B,), with so many cache columns read."""


@dataclass(frozen=True, slots=True)
class _Recording:
    graph: Any
    tokens: Tensor
    positions: Tensor
    logits: Tensor


class StepGraphs:
    """The recordings of one engine; use it from one thread at a time.

    Args:
        rows: Most rows of a step.
        columns: Most cache columns, the spare one included; its last is where idle rows write.
    """

    def __init__(self, rows: int, columns: int) -> None:
        self._rows, self._columns = rows, columns
        self._recordings: dict[tuple[int, int], _Recording] = {}
        self._memory: Any = torch.cuda.graph_pool_handle()

    def logits(self, step: Step, tokens: Sequence[int], positions: Sequence[int], columns: int) -> Tensor:
        """Logits (B, V) of the engine's own `step` for one token in each of B rows; they last until the next call."""
        rows = min(self._rows, 1 << (len(tokens) - 1).bit_length())
        size = rows, min(self._columns, -(-columns // COLUMNS) * COLUMNS)
        idle = rows - len(tokens)
        filled = torch.tensor([[*tokens, *[0] * idle], [*positions, *[self._columns - 1] * idle]])
        if size not in self._recordings:
            self._recordings[size] = self._record(step, filled.cuda(), size[1])
        recording = self._recordings[size]
        recording.tokens.copy_(filled[0])
        recording.positions.copy_(filled[1])
        recording.graph.replay()
        return recording.logits[: len(tokens)]

    def _record(self, step: Step, places: Tensor, columns: int) -> _Recording:
        tokens, positions = places.clone().unbind()
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            step(tokens, positions, columns)  # Libraries set themselves up in their first call.
        torch.cuda.current_stream().wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        # Another thread may load new weights meanwhile.
        with torch.cuda.graph(graph, pool=self._memory, capture_error_mode="thread_local"):
            logits = step(tokens, positions, columns)
        return _Recording(graph, tokens, positions, logits)
