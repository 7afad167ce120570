"""The output layer of a model with a large vocabulary: log-probabilities a few tokens at a time.

Logits of a long micro-batch in float32, with their softmax and gradient, take more memory than a small model's weights:
2,048 tokens of 151,936 logits are 1.2 GB, four times over. Here the logits of a chunk of tokens exist only while its
log-probabilities are computed, and again during its backward pass.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

LOGITS = 2**25
"""Micro-batches with more logits than this (128 MiB as float32) are computed in chunks of at most so many."""


@dataclass(frozen=True, slots=True)
class HeadRequest:
    """What is asked of n tokens.

    Attributes:
        labels: (n,) the token that came next.
        temperature: The logits are divided by it.
        entropy: The entropy is wanted too.
    """

    labels: "Tensor"
    temperature: float
    entropy: bool


class ChunkedHead:
    """Takes the place of an output layer's forward pass; it gives logits unless it was asked for scores.

    The layer is called within the model's forward pass, so FSDP has gathered its weights.

    Args:
        vocabulary: Number of logits of a token.
    """

    def __init__(self, layer: Any, vocabulary: int) -> None:
        self._logits, self._vocabulary = layer.forward, vocabulary
        self._asked: HeadRequest | None = None
        layer.forward = self

    def ask(self, scored: HeadRequest) -> None:
        """Make the next forward pass give scores."""
        self._asked = scored

    def __call__(self, hidden: "Tensor") -> "Tensor":
        """Of `hidden` (rows, tokens, H) the logits (rows, tokens, V), or the scores that were asked for.

        Scores are (rows, tokens, 2): each label's log-probability, and the entropy, or 0 if it was not wanted.
        """
        import torch
        from torch.utils.checkpoint import checkpoint

        request, self._asked = self._asked, None
        if request is None:
            return self._logits(hidden)
        size = max(1, LOGITS // self._vocabulary)
        parts = [
            checkpoint(self._scores, some, labels, request, use_reentrant=False, preserve_rng_state=False)
            for some, labels in zip(hidden.flatten(0, 1).split(size), request.labels.split(size), strict=True)
        ]
        return torch.cat(parts).unflatten(0, hidden.shape[:-1])

    def _scores(self, hidden: "Tensor", labels: "Tensor", request: HeadRequest) -> "Tensor":
        import torch

        logits = self._logits(hidden).float()
        if request.temperature != 1:
            logits = logits / request.temperature
        total = logits.logsumexp(dim=-1)
        chosen = logits.gather(-1, labels[:, None])[:, 0] - total
        entropy = total - (logits.softmax(dim=-1) * logits).sum(dim=-1) if request.entropy else torch.zeros_like(total)
        return torch.stack([chosen, entropy], dim=-1)
