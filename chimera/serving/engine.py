"""A Qwen2 forward pass in float32 over a static key/value cache: prefill one row, decode many rows.

Sizes in comments and docstrings: R cache rows, B rows of a decode step, n prompt tokens, V vocabulary, H query heads,
K key/value heads, G = H / K, D head size, M context length. Query, key and value projections are fused, and so
are gate and up. Grouped-query attention runs as G extra query positions per key/value head, so nothing is repeated.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from chimera.serving.checkpoint import Shape


@dataclass(frozen=True, slots=True)
class _Layer:
    norm: Tensor
    qkv: Tensor
    qkv_bias: Tensor
    out: Tensor
    mlp_norm: Tensor
    gate_up: Tensor
    down: Tensor


class Engine:
    """One set of weights with its cache of R rows.

    The cache has one column more than the context: decode steps run over rows 0..B-1, and a row in between that is idle
    writes to the spare column, so what it cached earlier stays valid for prefix reuse.
    """

    def __init__(self, shape: Shape, weights: dict[str, Tensor], *, rows: int, context: int) -> None:
        self.shape = shape
        self.rows = rows
        self.context = context
        self._layers = [_fuse(weights, layer) for layer in range(shape.layers)]
        self._embed = weights["model.embed_tokens.weight"].contiguous()
        self._norm = weights["model.norm.weight"].contiguous()
        self._head = self._embed if shape.tied else weights["lm_head.weight"].contiguous()
        frequencies = 1.0 / shape.rope_theta ** (torch.arange(0, shape.head_dim, 2).float() / shape.head_dim)
        angles = torch.outer(torch.arange(context + 1).float(), frequencies)
        cos, sin = angles.cos(), angles.sin()
        # Rotation is x * cos + swapped_halves(x) * sin with the sign of the first half's sine turned.
        self._cos, self._sin = torch.cat([cos, cos], -1), torch.cat([-sin, sin], -1)
        self._cache = torch.zeros(shape.layers, rows, 2 * shape.kv_heads, context + 1, shape.head_dim)

    @property
    def idle_position(self) -> int:
        """The position to give rows of a decode step that are not in use."""
        return self.context

    @torch.inference_mode()
    def prefill(self, row: int, tokens: Tensor, start: int) -> Tensor:
        """Run `tokens` (n,) at positions start..start+n-1 of `row`; returns the next token's logits (V,).

        Positions before `start` must hold the cache of the tokens that precede them.
        """
        shape, n = self.shape, len(tokens)
        heads, kv, dim = shape.heads, shape.kv_heads, shape.head_dim
        groups, end = heads // kv, start + n
        cos, sin = self._cos[start:end, None], self._sin[start:end, None]
        later = torch.ones(n, end, dtype=torch.bool).triu(start + 1)
        mask = torch.zeros(n, end).masked_fill_(later, float("-inf")).repeat(groups, 1)
        x = functional.embedding(tokens, self._embed)
        for cache, layer in zip(self._cache[:, row], self._layers, strict=True):
            projected = self._project(x, layer, cos, sin)
            cache[:, start:end] = projected[:, heads:].transpose(0, 1)
            q = projected[:, :heads].transpose(0, 1).reshape(1, kv, groups * n, dim)
            keys, values = cache[None, :kv, :end], cache[None, kv:, :end]
            mixed = functional.scaled_dot_product_attention(q, keys, values, attn_mask=mask)
            x = self._finish(x, mixed.view(heads, n, dim).transpose(0, 1).reshape(n, heads * dim), layer)
        return functional.linear(self._normed(x[-1:], self._norm), self._head)[0]

    @torch.inference_mode()
    def decode(self, tokens: Tensor, positions: Tensor, columns: int) -> Tensor:
        """One token for each of the rows 0..B-1; returns logits (B, V).

        Args:
            tokens: (B,) the newest token of each row, whose keys and values this step writes.
            positions: (B,) where it stands; `idle_position` for rows that are not in use.
            columns: cache columns that attention reads: the largest live position + 1.
        """
        shape, batch = self.shape, len(tokens)
        heads, kv, dim = shape.heads, shape.kv_heads, shape.head_dim
        cos, sin = self._cos[positions, None], self._sin[positions, None]
        later = torch.arange(columns) > positions[:, None]
        mask = torch.zeros(batch, columns).masked_fill_(later, float("-inf"))[:, None, None]
        every = torch.arange(batch)
        x = functional.embedding(tokens, self._embed)
        for cache, layer in zip(self._cache, self._layers, strict=True):
            projected = self._project(x, layer, cos, sin)
            cache[every, :, positions] = projected[:, heads:]
            q = projected[:, :heads].reshape(batch, kv, heads // kv, dim)
            keys, values = cache[:batch, :kv, :columns], cache[:batch, kv:, :columns]
            mixed = functional.scaled_dot_product_attention(q, keys, values, attn_mask=mask)
            x = self._finish(x, mixed.reshape(batch, heads * dim), layer)
        return functional.linear(self._normed(x, self._norm), self._head)

    @torch.inference_mode()
    def copy_prefix(self, source: int, target: int, length: int) -> None:
        """Copy the first `length` cached positions of one row to another."""
        self._cache[:, target, :, :length] = self._cache[:, source, :, :length]

    def _normed(self, x: Tensor, weight: Tensor) -> Tensor:
        return torch.rms_norm(x, (self.shape.hidden,), weight, self.shape.norm_eps)

    def _project(self, x: Tensor, layer: _Layer, cos: Tensor, sin: Tensor) -> Tensor:
        """Queries, keys and values (n, H + 2K, D) of x (n, hidden), the first two rotated to their positions."""
        shape = self.shape
        fused = functional.linear(self._normed(x, layer.norm), layer.qkv, layer.qkv_bias)
        fused = fused.view(len(x), shape.heads + 2 * shape.kv_heads, shape.head_dim)
        turned = fused[:, : shape.heads + shape.kv_heads]
        first, second = turned.chunk(2, -1)
        turned.copy_(torch.addcmul(turned * cos, torch.cat([second, first], -1), sin))
        return fused

    def _finish(self, x: Tensor, mixed: Tensor, layer: _Layer) -> Tensor:
        x = x + functional.linear(mixed, layer.out)
        gate, up = functional.linear(self._normed(x, layer.mlp_norm), layer.gate_up).chunk(2, -1)
        return x + functional.linear(functional.silu(gate) * up, layer.down)


def cache_bytes_per_row(shape: Shape, context: int) -> int:
    """Memory of one cache row in bytes."""
    return 2 * 4 * shape.layers * shape.kv_heads * (context + 1) * shape.head_dim


def _fuse(weights: dict[str, Tensor], index: int) -> _Layer:
    def get(name: str) -> Tensor:
        return weights[f"model.layers.{index}.{name}"].contiguous()

    return _Layer(
        norm=get("input_layernorm.weight"),
        qkv=torch.cat([get(f"self_attn.{part}_proj.weight") for part in "qkv"]),
        qkv_bias=torch.cat([get(f"self_attn.{part}_proj.bias") for part in "qkv"]),
        out=get("self_attn.o_proj.weight"),
        mlp_norm=get("post_attention_layernorm.weight"),
        gate_up=torch.cat([get("mlp.gate_proj.weight"), get("mlp.up_proj.weight")]),
        down=get("mlp.down_proj.weight"),
    )
