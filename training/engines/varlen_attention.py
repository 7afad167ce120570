"""Attention for packed training batches without flash attention: every sequence attends only to itself.

VeRL concatenates the sequences of a micro-batch without padding. Plain scaled-dot-product attention then needs one mask
over the whole pack, so its cost grows with the square of the pack's length. Here it grows with the sum of the squared
lengths of the sequences, as in flash attention's variable-length kernels.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface

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
    **_: Any,
) -> tuple[Tensor, None]:
    """Causal attention within each sequence of a pack.

    Args:
        module: The attention layer, for its number of query heads per key head.
        query: (1, heads, tokens, head size).
        key: (1, key heads, tokens, head size).
        value: As `key`.
        attention_mask: Always None: a pack has no padding.
        dropout: Share of attention weights to drop.
        scaling: Factor of the scores; by default one over the root of the head size.
        position_ids: (1, tokens); a sequence begins wherever they do not increase by one.

    Returns:
        The heads' outputs, (1, tokens, heads, head size), and None for the weights.

    Raises:
        ValueError: The batch is not packed.
    """
    if query.shape[0] != 1 or attention_mask is not None or position_ids is None:
        raise ValueError(f"{NAME} is for packed batches (one row, positions, no mask): use 'sdpa' for padded ones")
    positions = position_ids[0]
    begins = F.pad(positions[1:] != positions[:-1] + 1, (1, 0), value=True).nonzero()[:, 0].tolist()
    lengths = [end - begin for begin, end in zip(begins, [*begins[1:], len(positions)], strict=True)]
    # Split each tensor once: its gradient is one concatenation. Each slice's gradient would have the pack's size.
    parts = [
        F.scaled_dot_product_attention(
            *one, dropout_p=dropout, scale=scaling, is_causal=True, enable_gqa=query.shape[1] != key.shape[1]
        )
        for one in zip(*(tensor.split(lengths, dim=2) for tensor in (query, key, value)), strict=True)
    ]
    return torch.cat(parts, dim=2).transpose(1, 2).contiguous(), None


AttentionInterface.register(NAME, packed_sdpa)
AttentionMaskInterface.register(NAME, lambda *_, **__: None)
