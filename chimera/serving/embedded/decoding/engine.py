"""A forward pass over a static key/value cache: one token for many rows, several tokens for some rows.

It computes Qwen2, Qwen3 and Llama models (`shapes`), on a processor or a GPU. Matrices are kept in the weights' dtype,
float32 or bfloat16; what is computed and cached has the dtype that suits the device (`matrices`). Logits are float32.

Sizes in comments and docstrings: R cache rows, B rows that get one token, n tokens of a chunk, N all tokens of a pass,
V vocabulary, H query heads, K key/value heads, G = H / K, D head size, M context length. Query, key and value
projections are fused, and so are gate and up. Grouped-query attention runs as G extra query positions per key/value
head, so nothing is repeated.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from chimera.serving.embedded.decoding.matrices import Matrices, arithmetic
from chimera.serving.embedded.decoding.step_graphs import StepGraphs
from chimera.serving.embedded.sources.shapes import Shape


@dataclass(frozen=True, slots=True)
class Chunk:
    """Tokens (n,) to run in one row at positions start..start+n-1; earlier positions must be in the row's cache.

    Logits are computed after the last `scored` tokens only.
    """

    row: int
    tokens: Sequence[int]
    start: int
    scored: int = 1


@dataclass(frozen=True, slots=True)
class Singles:
    """One token for each of the rows 0..B-1.

    `tokens` (B,) and `positions` (B,) say which token and where; rows that are not in use have `idle_position`.
    `columns` is the largest position in use + 1: attention reads that many cache columns.
    """

    tokens: Sequence[int] = ()
    positions: Sequence[int] = ()
    columns: int = 0


@dataclass(frozen=True, slots=True)
class _Span:
    """A chunk's place among the N tokens of a pass, and its attention mask (G n, start + n)."""

    chunk: Chunk
    tokens: slice
    mask: Tensor


@dataclass(frozen=True, slots=True)
class _Layer:
    norm: Tensor
    qkv: Tensor
    qkv_bias: Tensor | None
    head_norms: tuple[Tensor, Tensor] | None
    out: Tensor
    out_bias: Tensor | None
    mlp_norm: Tensor
    gate_up: Tensor
    down: Tensor


class Engine:
    """One set of weights with its cache of R rows.

    The cache has one column more than the context. Decode steps run over rows 0..B-1, and an idle row among them writes
    to the spare column, so its cached tokens stay valid for prefix reuse.
    """

    def __init__(
        self,
        shape: Shape,
        weights: dict[str, Tensor],
        *,
        rows: int,
        context: int,
        dtype: torch.dtype | None = None,
        device: Literal["cpu", "cuda"] = "cpu",
    ) -> None:
        """Take the tensors out of `weights` one by one, so that no more than one layer is in memory twice.

        Args:
            weights: By their Hugging Face names; it is empty afterwards.
            context: Most tokens of a row.
            dtype: What to compute with; by default what suits the weights and the device.
            device: Where weights and cache lie; logits are there as well.
        """
        self.shape = shape
        self.rows = rows
        self.context = context
        self.device = device
        self._dtype = dtype or arithmetic(weights["model.embed_tokens.weight"].dtype, device)
        # The processor converts the weights of large matrices as it goes (`Matrices`); a GPU multiplies equal types.
        stored = self._dtype if device == "cuda" else None
        self._embed = weights.pop("model.embed_tokens.weight").to(device, stored).contiguous()
        self._matrices = Matrices(self._dtype)
        self._layers = []
        for layer in range(shape.layers):
            prefix = f"model.layers.{layer}."
            parts = {name.removeprefix(prefix): weights.pop(name) for name in list(weights) if name.startswith(prefix)}
            parts = {name: part.to(device, stored) for name, part in parts.items()}
            self._layers.append(_fuse(parts, shape, self._dtype, self._matrices))
        self._norm = weights.pop("model.norm.weight").to(device, self._dtype).contiguous()
        self._head = self._embed if shape.tied else weights.pop("lm_head.weight").to(device, stored).contiguous()
        angles = torch.outer(torch.arange(context + 1).float(), shape.rotary_frequencies())
        cos, sin = angles.cos(), angles.sin()
        # Rotation is x * cos + swapped_halves(x) * sin, with the first half of sin negated.
        self._cos = torch.cat([cos, cos], -1).to(device, self._dtype)
        self._sin = torch.cat([-sin, sin], -1).to(device, self._dtype)
        self._cache = self._empty_cache()
        self._graphs = StepGraphs(rows, context + 1) if device == "cuda" else None

    def _empty_cache(self) -> Tensor:
        size = self.shape.layers, self.rows, 2 * self.shape.kv_heads, self.context + 1, self.shape.head_dim
        zeros = _zeros if self.device == "cpu" else partial(torch.zeros, device=self.device)
        return zeros(size, dtype=self._dtype)

    def release_cache(self) -> None:
        """Forget all rows and give back their memory; not on a GPU: its recorded steps know the cache by its place."""
        self._cache = self._empty_cache()

    @property
    def idle_position(self) -> int:
        """The position of rows that are not in use in a decode step."""
        return self.context

    @torch.inference_mode()
    def forward(self, singles: Singles, chunks: Sequence[Chunk]) -> tuple[Tensor, list[Tensor]]:
        """Run single tokens and chunks in one pass; a row may be in only one of them.

        Returns the logits after each single token (B, V) and after the last `scored` tokens of each chunk (scored, V).
        """
        if self._graphs is not None and singles.tokens:
            logits = self._graphs.logits(self._step, singles.tokens, singles.positions, singles.columns)
            return logits, self.forward(Singles(), chunks)[1] if chunks else []
        tokens, places = list(singles.tokens), list(singles.positions)
        for chunk in chunks:
            tokens += chunk.tokens
            places += range(chunk.start, chunk.start + len(chunk.tokens))
        groups = self.shape.heads // self.shape.kv_heads
        spans = list(_spans(chunks, len(singles.tokens), groups, self._dtype, self.device))
        scored = [torch.arange(len(singles.tokens))]
        scored += [torch.arange(span.tokens.stop - span.chunk.scored, span.tokens.stop) for span in spans]
        placed = torch.tensor([tokens, places], device=self.device)
        last = torch.cat(scored).to(self.device)
        logits = self._pass(placed[0], placed[1], len(singles.tokens), singles.columns, spans, last)
        parts = logits.split([len(part) for part in scored])
        return parts[0], list(parts[1:])

    def _pass(
        self, tokens: Tensor, positions: Tensor, batch: int, columns: int, spans: Sequence[_Span], scored: Tensor | None
    ) -> Tensor:
        """Logits (scored, V) after the tokens (N,) that `scored` names, by default all.

        The first `batch` are single tokens, which see so many `columns`; the others are those of `spans`.
        """
        shape, kv, device = self.shape, self.shape.kv_heads, self.device
        groups = shape.heads // kv
        cos, sin = self._cos[positions, None], self._sin[positions, None]
        later = torch.arange(columns, device=device) > positions[:batch, None]
        mask = torch.zeros(batch, columns, dtype=self._dtype, device=device)
        mask = mask.masked_fill_(later, float("-inf"))[:, None, None]
        every = torch.arange(batch, device=device)
        x = functional.embedding(tokens, self._embed).to(self._dtype)
        mixed = x.new_empty(len(tokens), shape.heads * shape.head_dim)
        for cache, layer in zip(self._cache, self._layers, strict=True):
            projected = self._project(x, layer, cos, sin)
            if batch:
                cache[every, :, positions[:batch]] = projected[:batch, shape.heads :]
                q = projected[:batch, : shape.heads].reshape(batch, kv, groups, shape.head_dim)
                keys, values = cache[:batch, :kv, :columns], cache[:batch, kv:, :columns]
                seen = functional.scaled_dot_product_attention(q, keys, values, attn_mask=mask)
                mixed[:batch] = seen.reshape(batch, -1)
            for span in spans:
                self._attend(span, projected[span.tokens], cache, mixed[span.tokens])
            x = self._finish(x, mixed, layer)
        x = x if scored is None else x[scored]
        return self._matrices.product(self._normed(x, self._norm), self._head).float()

    def _step(self, tokens: Tensor, positions: Tensor, columns: int) -> Tensor:
        return self._pass(tokens, positions, len(tokens), columns, (), None)

    def _attend(self, span: _Span, projected: Tensor, cache: Tensor, mixed: Tensor) -> None:
        """Cache a chunk's keys and values, and write its attention to `mixed` (n, H D)."""
        heads, kv, dim = self.shape.heads, self.shape.kv_heads, self.shape.head_dim
        n, chunk = len(projected), span.chunk
        end = chunk.start + n
        row = cache[chunk.row]
        row[:, chunk.start : end] = projected[:, heads:].transpose(0, 1)
        q = projected[:, :heads].transpose(0, 1).reshape(1, kv, heads // kv * n, dim)
        keys, values = row[None, :kv, :end], row[None, kv:, :end]
        seen = functional.scaled_dot_product_attention(q, keys, values, attn_mask=span.mask)
        mixed.view(n, heads, dim).copy_(seen.reshape(heads, n, dim).transpose(0, 1))

    @torch.inference_mode()
    def copy_prefix(self, source: int, target: int, length: int) -> None:
        """Copy the first `length` cached positions of one row to another."""
        self._cache[:, target, :, :length] = self._cache[:, source, :, :length]

    def _normed(self, x: Tensor, weight: Tensor) -> Tensor:
        return torch.rms_norm(x, (len(weight),), weight, self.shape.norm_eps)

    def _project(self, x: Tensor, layer: _Layer, cos: Tensor, sin: Tensor) -> Tensor:
        """Queries, keys and values (n, H + 2K, D) of x (n, hidden), the first two rotated to their positions."""
        shape = self.shape
        fused = self._matrices.product(self._normed(x, layer.norm), layer.qkv, layer.qkv_bias)
        fused = fused.view(len(x), shape.heads + 2 * shape.kv_heads, shape.head_dim)
        if layer.head_norms is not None:
            parts = fused.split([shape.heads, shape.kv_heads, shape.kv_heads], 1)[:2]
            for part, norm in zip(parts, layer.head_norms, strict=True):
                part.copy_(self._normed(part, norm))
        turned = fused[:, : shape.heads + shape.kv_heads]
        first, second = turned.chunk(2, -1)
        turned.copy_(torch.addcmul(turned * cos, torch.cat([second, first], -1), sin))
        return fused

    def _finish(self, x: Tensor, mixed: Tensor, layer: _Layer) -> Tensor:
        product = self._matrices.product
        x = x + product(mixed, layer.out, layer.out_bias)
        gate, up = product(self._normed(x, layer.mlp_norm), layer.gate_up).chunk(2, -1)
        return x + product(functional.silu(gate) * up, layer.down)


def _zeros(size: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Zeros that take memory only where something else was written: numpy asks for them lazily, torch writes them."""
    return torch.from_numpy(np.zeros(math.prod(size) * dtype.itemsize, np.uint8)).view(dtype).view(size)


def _spans(chunks: Sequence[Chunk], first: int, groups: int, dtype: torch.dtype, device: str) -> Iterator[_Span]:
    """The chunks' places after the `first` single tokens."""
    for chunk in chunks:
        n = len(chunk.tokens)
        later = torch.ones(n, chunk.start + n, dtype=torch.bool, device=device).triu(chunk.start + 1)
        mask = torch.zeros(later.shape, dtype=dtype, device=device).masked_fill_(later, float("-inf"))
        mask = mask.repeat(groups, 1)
        yield _Span(chunk, slice(first, first + n), mask)
        first += n


def cache_bytes_per_row(shape: Shape, context: int, bytes_per_number: int) -> int:
    """Memory of one cache row in bytes."""
    return 2 * bytes_per_number * shape.layers * shape.kv_heads * (context + 1) * shape.head_dim


def _fuse(weights: dict[str, Tensor], shape: Shape, dtype: torch.dtype, matrices: Matrices) -> _Layer:
    def get(name: str) -> Tensor:
        return weights.pop(name).contiguous()

    def small(*parts: str) -> Tensor:
        return torch.cat([get(part) for part in parts]).to(dtype)

    qkv = [f"self_attn.{part}_proj" for part in "qkv"]
    return _Layer(
        norm=small("input_layernorm.weight"),
        qkv=matrices.prepared(torch.cat([get(f"{part}.weight") for part in qkv])),
        qkv_bias=small(*(f"{part}.bias" for part in qkv)) if shape.qkv_bias else None,
        head_norms=(small("self_attn.q_norm.weight"), small("self_attn.k_norm.weight")) if shape.head_norms else None,
        out=matrices.prepared(get("self_attn.o_proj.weight")),
        out_bias=small("self_attn.o_proj.bias") if shape.out_bias else None,
        mlp_norm=small("post_attention_layernorm.weight"),
        gate_up=matrices.prepared(torch.cat([get("mlp.gate_proj.weight"), get("mlp.up_proj.weight")])),
        down=matrices.prepared(get("mlp.down_proj.weight")),
    )
