"""Shared beginnings of the sequences of a training batch, so that each is computed once.

Answers to one prompt begin with equal tokens. Sorted, each sequence shares a beginning with the one before it and adds
a run of new tokens. Only new tokens go through the model; in attention a run sees the runs it continues. A token
depends only on those before it, so loss and gradients are those of separate sequences, up to rounding: what reaches a
shared token in the backward pass is the sum over its continuations.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from operator import eq
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class TokenRun:
    """New tokens of one sequence.

    Attributes:
        size: Number of tokens.
        before: What the run continues: numbers of earlier runs, each with how many of its first tokens.
    """

    size: int
    before: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class PrefixTree:
    """N tokens of a pack, of which M differ in themselves or in what precedes them within their sequence.

    Attributes:
        runs: The M tokens in their order, by runs.
        kept: (M,) places in the pack of the tokens to compute.
        place: (N,) for each token of the pack, which of the M it equals.
    """

    runs: tuple[TokenRun, ...]
    kept: "Tensor"
    place: "Tensor"


def grow(tokens: "Tensor", lengths: Sequence[int]) -> PrefixTree:
    """The tree of a pack.

    Args:
        tokens: (N,) token ids, sequence after sequence.
        lengths: Number of tokens of each sequence; they sum to N.
    """
    import torch

    ids = tokens.tolist()
    begins = [sum(lengths[:number]) for number in range(len(lengths))]
    sequences = [ids[begin : begin + length] for begin, length in zip(begins, lengths, strict=True)]
    place = [0] * len(ids)
    places: list[int] = []
    runs: list[TokenRun] = []
    path: tuple[tuple[int, int], ...] = ()
    before: list[int] = []
    last = 0
    for number in sorted(range(len(sequences)), key=sequences.__getitem__):
        sequence, begin = sequences[number], begins[number]
        shared = len(list(takewhile(bool, map(eq, before, sequence))))  # Equal tokens at the beginning.
        for depth in range(shared):
            place[begin + depth] = place[last + depth]
        for depth in range(shared, len(sequence)):
            place[begin + depth] = len(places)
            places.append(begin + depth)
        path = _first(path, shared)
        if shared < len(sequence):
            runs.append(TokenRun(len(sequence) - shared, path))
            path = (*path, (len(runs) - 1, len(sequence) - shared))
        before, last = sequence, begin
    return PrefixTree(tuple(runs), torch.tensor(places), torch.tensor(place))


def _first(path: Sequence[tuple[int, int]], tokens: int) -> tuple[tuple[int, int], ...]:
    """The beginning of a path that has so many tokens."""
    beginning = []
    for run, size in path:
        if tokens <= 0:
            break
        beginning.append((run, min(size, tokens)))
        tokens -= size
    return tuple(beginning)
