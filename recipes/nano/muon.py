"""Muon as in `torch.optim.Muon`, but in float32.

PyTorch orthogonalises in bfloat16, which a processor without bfloat16 instructions computes many times more slowly.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Of the quintic that Newton and Schulz's iteration applies to the singular values (Jordan et al. 2024)."""
STEPS = 5


class FloatMuon(torch.optim.Optimizer):
    """Steps along the orthogonalised momentum of matrices, with Nesterov momentum and decoupled weight decay."""

    def __init__(self, matrices: Iterable["Tensor"], *, lr: float, momentum: float, weight_decay: float) -> None:
        super().__init__(matrices, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride] - no closure
        for group in self.param_groups:
            for matrix in group["params"]:
                if matrix.grad is None:
                    continue
                mean = self.state[matrix].setdefault("mean", torch.zeros_like(matrix))
                mean.lerp_(matrix.grad, 1 - group["momentum"])
                update = orthogonal(matrix.grad.lerp(mean, group["momentum"]))
                rate = group["lr"] * max(1.0, matrix.shape[0] / matrix.shape[1]) ** 0.5
                matrix.mul_(1 - group["lr"] * group["weight_decay"]).add_(update, alpha=-rate)


def orthogonal(matrix: "Tensor") -> "Tensor":
    """The matrix (A, B) with all its singular values brought near 1."""
    a, b, c = COEFFICIENTS
    tall = matrix.shape[0] > matrix.shape[1]
    estimate = (matrix.T if tall else matrix) / matrix.norm().clamp(min=1e-7)
    for _ in range(STEPS):
        gram = estimate @ estimate.T
        estimate = a * estimate + (b * gram + c * gram @ gram) @ estimate
    return estimate.T if tall else estimate
