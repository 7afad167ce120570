"""Attention for packed training batches without flash attention: every sequence attends only to itself.

VeRL concatenates the sequences of a micro-batch without padding. Plain scaled-dot-product attention then needs one mask
over the whole pack, so its cost grows with the square of the pack's length. Here it grows with the sum of the squared
lengths of the sequences, as in flash attention's variable-length kernels; tokens of a shared beginning count once.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface

from training.model.prefix_tree import PrefixTree, TokenRun

NAME = "packed_sdpa"
"""The value for `attn_implementation`, valid after this module is imported."""


def packed_sdpa(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    position_ids: Tensor | None = None,
    prefix_tree: PrefixTree | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Causal attention within each sequence of a pack.

    Args:
        module: The attention layer, for its number of query heads per key head.
        query: (1, heads, tokens, head size).
        key: (1, key heads, tokens, head size).
        attention_mask: Always None: a pack has no padding.
        dropout: Share of attention weights to drop.
        scaling: Factor of the scores; by default one over the root of the head size.
        position_ids: (1, tokens); without a tree, a sequence begins wherever they do not increase by one.
        prefix_tree: The runs of a pack whose sequences share beginnings.

    Returns:
        The heads' outputs, (1, tokens, heads, head size), and None for the weights.

    Raises:
        ValueError: The batch is not packed.
    """
    if query.shape[0] != 1 or attention_mask is not None or position_ids is None:
        raise ValueError(f"{NAME} is for packed batches (one row, positions, no mask): use 'sdpa' for padded ones")
    runs = prefix_tree.runs if prefix_tree else _sequences(position_ids[0])
    sizes = [run.size for run in runs]
    # Split each tensor once: its gradient is one concatenation. Each slice's gradient would have the pack's size.
    queries, keys, values = (tensor.split(sizes, dim=2) for tensor in (query, key, value))
    parts = [
        F.scaled_dot_product_attention(
            queries[number],
            _seen(keys, run, number),
            _seen(values, run, number),
            attn_mask=_mask(run, query) if run.before else None,
            dropout_p=dropout,
            scale=scaling,
            is_causal=not run.before,
            enable_gqa=query.shape[1] != key.shape[1],
        )
        for number, run in enumerate(runs)
    ]
    return torch.cat(parts, dim=2).transpose(1, 2).contiguous(), None


def _sequences(positions: Tensor) -> list[TokenRun]:
    begins = F.pad(positions[1:] != positions[:-1] + 1, (1, 0), value=True).nonzero()[:, 0].tolist()
    return [TokenRun(end - begin, ()) for begin, end in zip(begins, [*begins[1:], len(positions)], strict=True)]


def _seen(parts: tuple[Tensor, ...], run: TokenRun, number: int) -> Tensor:
    """Keys or values that a run attends to: those of the runs it continues, then its own."""
    if not run.before:
        return parts[number]
    return torch.cat([*(parts[earlier][:, :, :size] for earlier, size in run.before), parts[number]], dim=2)


def _mask(run: TokenRun, like: Tensor) -> Tensor:
    """(tokens, tokens seen): True where a token of the run may look."""
    before = sum(size for _, size in run.before)
    return torch.ones(run.size, before + run.size, dtype=torch.bool, device=like.device).tril(before)


AttentionInterface.register(NAME, packed_sdpa)
AttentionMaskInterface.register(NAME, lambda *_, **__: None)
