"""The gradient of one recorded call, computed again: one forward and one backward pass with the weights of its update.

What VeRL computes for a whole mini-batch, here for one call: the gradient by all weights of w (sum of L over its
tokens), with L and w as in `evaluation.traces.token_loss`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chimera.serving.embedded.checkpoint import check_trainable
from evaluation.traces.token_loss import MOST
from evaluation.traces.token_records import TokenRecord


@dataclass(frozen=True, slots=True)
class CallGradient:
    """Norms of a call's gradient.

    Attributes:
        by_weights: By all weights of the model.
        by_logits: Of each token, by its logits.
    """

    by_weights: float
    by_logits: tuple[float, ...]


class CallGradients:
    """Computes gradients of recorded calls, in float32 on the CPU. It keeps the model that it used last.

    Args:
        temperature: At which the calls were sampled.
    """

    def __init__(self, temperature: float) -> None:
        self._temperature = temperature
        self._loaded: tuple[Path, Any] | None = None

    def of(self, folder: Path, record: TokenRecord, prompt: Sequence[int], response: Sequence[int]) -> CallGradient:
        """The gradient with the weights in `folder`, those before the update or those after it.

        Args:
            folder: A Hugging Face folder.

        Raises:
            ConfigError: The folder holds no safetensors.
            ValueError: The record has no objective, or is of another response.
        """
        import torch

        objective = record.objective
        if objective is None or len(response) != len(record.mask):
            raise ValueError(f"the record of {record.response_id} does not tell the objective of its tokens")
        model = self._model(folder)
        model.zero_grad(set_to_none=True)
        ids = torch.tensor([[*prompt, *response]])
        logits = model(ids).logits[0, len(prompt) - 1 : -1] / self._temperature
        logits.retain_grad()
        chosen = torch.log_softmax(logits, -1).gather(-1, ids[0, len(prompt) :, None])[:, 0]
        advantages, old = torch.tensor(record.advantages), torch.tensor(record.old_log_probs)
        ratio = (chosen - old).clamp(-MOST, MOST).exp()
        inside = ratio.clamp(1 - objective.clip_low, 1 + objective.clip_high)
        losses = torch.maximum(-advantages * ratio, -advantages * inside)
        limited = torch.minimum(losses, -advantages * objective.clip_most)
        losses = torch.where(advantages < 0, limited, losses) * torch.tensor(record.mask)
        (objective.weight * losses.sum()).backward()
        squares = [one.grad.double().pow(2).sum() for one in model.parameters() if one.grad is not None]
        assert logits.grad is not None
        return CallGradient(float(torch.stack(squares).sum().sqrt()), tuple(logits.grad.norm(dim=-1).tolist()))

    def _model(self, folder: Path) -> Any:
        import torch
        from transformers import AutoModelForCausalLM

        if self._loaded is None or self._loaded[0] != folder:
            check_trainable(folder)
            made = AutoModelForCausalLM.from_pretrained(
                folder, dtype=torch.float32, attn_implementation="eager", trust_remote_code=False
            )
            self._loaded = folder, made.eval()
        return self._loaded[1]
