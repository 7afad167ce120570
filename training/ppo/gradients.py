"""The gradients of a rollout's learned calls in words, computed with the weights that the run has kept."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from chimera.run.directory import Run
from chimera.run.policies import Policy
from chimera.run.seals import checked
from chimera.serving.embedded.checkpoint import locate
from evaluation.traces.token_records import TokenRecord
from evaluation.traces.tree import Tree
from training.ppo.call_gradient import CallGradient, CallGradients

LARGEST = 3
"""How many tokens of a call are named."""


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
    found: dict[str, str] = {}
    models: dict[str, CallGradients] = {}
    for one in _learned(tree):
        made = models.setdefault(one.slot, CallGradients(run.config.models[one.slot].temperature))
        found[one.record.response_id] = _line(run, one, made, pieces.get(one.record.response_id))
    return found


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


def _line(run: Run, one: _LearnedCall, models: CallGradients, texts: Sequence[str] | None) -> str:
    record, objective = one.record, one.record.objective
    if objective is None:
        return "gradient: an earlier version of Chimera recorded the call without its objective"
    # Where older weights may have sampled the call, its record does not say which ones were updated.
    before = _weights(run, one.slot, record.policy) if record.sampled_log_probs is None else None
    after = _weights(run, one.slot, None if one.update is None else f"{one.slot}@{one.update}")
    if before is None and after is None:
        return (
            "gradient: the run has kept neither the weights before the update nor those after it; a run with a larger "
            "max_actor_ckpt_to_keep keeps more of them"
        )
    told: list[str] = []
    for when, folder in (("before", before), ("after", after)):
        if folder is None:
            told.append(f"the weights {when} the update are not kept")
        else:
            gradient = models.of(folder, record, one.prompt, one.response)
            told.append(f"{_norm(gradient, objective.grad_norm)} {when} the update{_largest(gradient, texts)}")
    return (
        f"gradient by all weights, one backward pass: {'; '.join(told)} (norms of calls do not add up to that of the "
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
