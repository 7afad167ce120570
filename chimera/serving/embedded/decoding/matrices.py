"""Products with large matrices, a block of rows at a time, so that a block stays in the processor's cache.

A processor without instructions for bfloat16 multiplies it several times as slowly as float32. There the weights are
kept in bfloat16, and each block becomes float32 right before it is used: half the memory, float32's results for
the same weights. For the few tokens of a decode step blocks of float32 are also faster where nothing is converted.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from chimera.serving.devices import fast_bfloat16

BLOCK = 2**20
"""Numbers of a block: 4 MiB as float32. Smaller matrices are multiplied whole, as they are by transformers."""
FEW = 64
"""Below this number of tokens, blocks are faster than the whole matrix without a conversion; not for a single one."""


def arithmetic(stored: torch.dtype, device: str) -> torch.dtype:
    """The type to compute with, for weights of a type: bfloat16 only where the device multiplies it itself."""
    return stored if stored != torch.bfloat16 or device == "cuda" or fast_bfloat16() else torch.float32


class Matrices:
    """Multiplies with an engine's matrices; use it from one thread at a time.

    Args:
        dtype: The type of all other numbers: tokens' states, biases and results.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        self._dtype = dtype
        self._scratch = torch.empty(0, dtype=dtype)

    def prepared(self, weight: Tensor) -> Tensor:
        """`weight` as `product` takes it fastest: bfloat16 in the order in which the processor reads it, if it can.

        Otherwise torch 2.13 orders it anew in each product, which takes a third of a decode step's time.
        """
        if not self._native(weight) or weight.is_cuda or weight.is_mkldnn or not fast_bfloat16():
            return weight
        return torch.ops.mkldnn._reorder_linear_weight(weight, FEW)

    def _native(self, weight: Tensor) -> bool:
        """True for bfloat16 that is computed with as it is."""
        return weight.dtype == self._dtype == torch.bfloat16

    def product(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """`x` (n, inputs) by the rows of `weight` (outputs, inputs), and `bias` (outputs,): (n, outputs).

        `weight` may be `prepared`.
        """
        if weight.is_cuda:
            return functional.linear(x, weight, bias)
        if weight.is_mkldnn:
            return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
        converted = weight.dtype != self._dtype
        whole_is_faster = self._native(weight) or weight.numel() < 2 * BLOCK or not 1 < len(x) < FEW
        if not converted and whole_is_faster:
            return functional.linear(x, weight, bias)
        blocks = weight.split(max(1, BLOCK // weight.shape[1]))
        if len(blocks) == 1:
            return functional.linear(x, self._converted(weight), bias)
        whole = torch.empty(len(x), len(weight), dtype=self._dtype)
        self._fill(whole, x, blocks)
        return whole if bias is None else whole.add_(bias)

    def _fill(self, whole: Tensor, x: Tensor, blocks: Sequence[Tensor]) -> None:
        for part, block in zip(whole.split([len(rows) for rows in blocks], 1), blocks, strict=True):
            torch.mm(x, self._converted(block).t(), out=part)

    def _converted(self, block: Tensor) -> Tensor:
        """The block in the type to compute with; in memory that the next block takes again."""
        if block.dtype == self._dtype:
            return block
        if self._scratch.numel() < block.numel():
            self._scratch = torch.empty(block.numel(), dtype=self._dtype)
        return self._scratch[: block.numel()].view(block.shape).copy_(block)
