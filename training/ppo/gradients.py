"""The gradients of a rollout's learned calls, computed again with the weights that the run has kept, and in words.

What VeRL computes for a whole mini-batch, here for one call: the gradient by all weights of w (sum of L over its
tokens), with L and w as in `evaluation.traces.token_loss`.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chimera.run.directory import Run
from chimera.run.policies import Policy
from chimera.run.seals import checked
from chimera.serving.embedded.checkpoint import check_trainable, locate
from evaluation.traces.token_loss import MOST
from evaluation.traces.token_records import TokenRecord
from evaluation.traces.tree import Tree

LARGEST = 3
"""How many tokens of a call are named."""


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
            ValueError: The record is of another response.
        """
        import torch

        objective = record.objective
        if len(response) != len(record.mask):
            raise ValueError(f"the record of {record.response_id} is of another response")
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
        gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
        squares = [gradient.double().pow(2).sum() for gradient in gradients]
        assert logits.grad is not None
        return CallGradient(float(torch.stack(squares).sum().sqrt()), tuple(logits.grad.norm(dim=-1).tolist()))

    def _model(self, folder: Path) -> Any:
        import torch
        from transformers import AutoModelForCausalLM

        if self._loaded is None or self._loaded[0] != folder:
            check_trainable(folder)
            model = AutoModelForCausalLM.from_pretrained(
                folder, dtype=torch.float32, attn_implementation="eager", trust_remote_code=False
            )
            self._loaded = folder, model.eval()
        return self._loaded[1]


@dataclass(frozen=True, slots=True)
class _LearnedCall:
    """One call that an update learned from; `update` is the name of its weights after it, None if not known."""

    record: TokenRecord
    prompt: Sequence[int]
    response: Sequence[int]
    slot: str
    update: str | None


def gradient_lines(run: Run, tree: Tree, pieces: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """A line on each learned call, by response id.

    Raises:
        RunError: Weights were changed after the run had written them.
    """
    lines: dict[str, str] = {}
    models: dict[str, CallGradients] = {}
    for call in _learned(tree):
        gradients = models.setdefault(call.slot, CallGradients(run.config.models[call.slot].temperature))
        lines[call.record.response_id] = _line(run, call, gradients, pieces.get(call.record.response_id))
    return lines


def _learned(tree: Tree) -> Iterator[_LearnedCall]:
    for visit in tree.visits:
        for call in visit.calls:
            prompt = call.exchange.prompt_ids if call.exchange else None
            if prompt is None or call.exchange is None:
                continue
            if call.tokens is not None and call.exchange.response_ids:
                yield _LearnedCall(call.tokens, prompt, call.exchange.response_ids, visit.model, None)
            for branch in call.branches:
                if branch.tokens is not None and branch.ids:
                    yield _LearnedCall(
                        branch.tokens, prompt, branch.ids, visit.model, f"{branch.phase}-{branch.update}"
                    )


def _line(run: Run, call: _LearnedCall, models: CallGradients, texts: Sequence[str] | None) -> str:
    record, objective = call.record, call.record.objective
    # Where older weights may have sampled the call, its record does not say which ones were updated.
    before = _weights(run, call.slot, record.policy) if record.sampled_log_probs is None else None
    after = _weights(run, call.slot, None if call.update is None else f"{call.slot}@{call.update}")
    if before is None and after is None:
        return (
            "gradient: the run has kept neither the weights before the update nor those after it; a run with a larger "
            "verl.trainer.max_actor_ckpt_to_keep keeps more of them"
        )
    parts: list[str] = []
    for when, folder in (("before", before), ("after", after)):
        if folder is None:
            parts.append(f"the weights {when} the update are not kept")
        else:
            gradient = models.of(folder, record, call.prompt, call.response)
            parts.append(f"{_norm(gradient, objective.grad_norm)} {when} the update{_largest(gradient, texts)}")
    return (
        f"gradient by all weights, one backward pass: {'; '.join(parts)} (norms of calls do not add up to that of the "
        "update, which is a mean over mini-batches)"
    )


def _norm(gradient: CallGradient, whole: float | None) -> str:
    share = f", {gradient.by_weights / whole:.1%} of the update's {whole:.3g}" if whole else ""
    return f"norm {gradient.by_weights:.3g}{share}"


def _largest(gradient: CallGradient, texts: Sequence[str] | None) -> str:
    """The tokens with the largest gradients by their logits, each with its share of the sum over the call."""
    whole = sum(gradient.by_logits)
    if not whole:
        return ""
    order = sorted(range(len(gradient.by_logits)), key=gradient.by_logits.__getitem__, reverse=True)[:LARGEST]
    named = [f"{texts[at]!r}" if texts else f"token {at + 1}" for at in order]
    shares = [f"{name} {gradient.by_logits[at] / whole:.0%}" for name, at in zip(named, order, strict=True)]
    return f", by its logits most at {', '.join(shares)}"


def _weights(run: Run, slot: str, version: str | None) -> Path | None:
    """The folder of a slot's weights with this version; None if the run has not kept them."""
    if version is None:
        return None
    target, _, name = version.partition("@")
    folder = Policy.made("weights", target, name).folder
    if (run.path / folder).is_dir():
        return checked(run, folder)
    began = next((event["policy_versions"] for event in run.events() if event["event"] == "phase_started"), None)
    return locate(run.config.models[slot].path) if began is not None and began.get(slot) == version else None
