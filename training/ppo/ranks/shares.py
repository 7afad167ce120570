"""Which calls of a mini-batch each rank computes, and in which micro-batches. Pure functions, equal on all ranks."""

import math
from collections.abc import Sequence
from typing import Any

Rows = list[int]


def plan(
    bundles: Sequence[Sequence[int]], sizes: Sequence[int], prompts: Sequence[int], *, ranks: int, budget: int
) -> list[list[Rows]]:
    """For each rank its micro-batches, equally many for each, because ranks wait for each other in each.

    Ranks get about equally many tokens to compute. Rows of one prompt stay together, so that their prompt is computed
    once, unless another division is faster. A micro-batch without rows has nothing to do.

    Args:
        bundles: Rows of the mini-batch; those of a bundle have one prompt.
        sizes: Number of tokens of every row, prompt and response together.
        prompts: Number of tokens of every row's prompt.
        ranks: Number of ranks.
        budget: Most tokens of a micro-batch; at least the largest of `sizes`.
    """
    pieces = divide(bundles, sizes, prompts, ranks)
    largest = max(sum(sizes[row] for bundle in mine for row in bundle) for mine in pieces)
    count = math.ceil(largest / budget)
    while True:
        micro_batches = [_micro_batches(mine, sizes, count) for mine in pieces]
        if all(sum(sizes[row] for row in rows) <= budget for mine in micro_batches for rows in mine):
            return micro_batches
        count += 1


def divide(
    bundles: Sequence[Sequence[int]], sizes: Sequence[int], prompts: Sequence[int], ranks: int
) -> list[list[Rows]]:
    """For each rank its pieces of the bundles, with about equally many tokens to compute.

    The largest piece is halved again and again; each half has to compute the prompt. Of these divisions that one is
    taken whose slowest rank has the fewest tokens.
    """
    pieces = [list(bundle) for bundle in bundles]
    best, fewest = None, math.inf
    for _ in range(4 * ranks):
        if len(pieces) >= ranks:
            costs = [cost(piece, sizes, prompts) for piece in pieces]
            parts = _balanced(costs, ranks)
            most = max(sum(costs[place] for place in part) for part in parts)
            if most < fewest:
                best, fewest = [[pieces[place] for place in part] for part in parts], most
        several = [piece for piece in pieces if len(piece) > 1]
        if not several:
            break
        large = max(several, key=lambda piece: cost(piece, sizes, prompts))
        middle = len(large) // 2
        pieces.remove(large)
        pieces += [large[:middle], large[middle:]]
    return best or [[piece] for piece in pieces] + [[] for _ in range(ranks - len(pieces))]


def cost(rows: Sequence[int], sizes: Sequence[int], prompts: Sequence[int]) -> int:
    """Tokens to compute for rows of one prompt: the prompt once, and every response."""
    return prompts[rows[0]] + sum(sizes[row] - prompts[row] for row in rows)


def _micro_batches(pieces: Sequence[Rows], sizes: Sequence[int], count: int) -> list[Rows]:
    """`count` micro-batches of a rank's pieces; a piece is divided only if there are too few."""
    split = list(pieces)
    while len(split) < count and (large := max(split, key=len, default=[])) and len(large) > 1:
        split.remove(large)
        split += [large[: len(large) // 2], large[len(large) // 2 :]]
    filled = min(count, len(split))
    if not filled:
        return [[] for _ in range(count)]
    parts = _balanced([sum(sizes[row] for row in piece) for piece in split], filled)
    return [[row for place in part for row in split[place]] for part in parts] + [[] for _ in range(count - filled)]


def _balanced(weights: Sequence[int], parts: int) -> list[list[int]]:
    """Places of `weights` in so many parts of about equal sums (VeRL's Karmarkar-Karp)."""
    from verl.utils.seqlen_balancing import get_seqlen_balanced_partitions

    partitions: Any = get_seqlen_balanced_partitions(list(weights), parts, equal_size=False)
    return partitions
