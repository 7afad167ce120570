"""Makes the token records of a PPO update from the batch of its engine."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from evaluation.traces.token_records import Objective, TokenRecord, tokens_file, write_tokens
from training.ppo.engine.batch import WEIGHTS
from training.ppo.verl.settings import PpoSettings

if TYPE_CHECKING:
    from torch import Tensor

    from training.ppo.engine.batch import Batch


def record_update(
    run: Path, phase: str, step: int, settings: PpoSettings, batch: "Batch", metrics: Mapping[str, float]
) -> None:
    """Write the token records of update `step`. A resumed run that repeats the step replaces the file.

    Args:
        run: The run's folder.

    Raises:
        RunError: The file cannot be written.
    """
    write_tokens(records_of(batch, settings, metrics.get("actor/grad_norm")), tokens_file(run, phase, step))


def records_of(batch: "Batch", settings: PpoSettings, grad_norm: float | None) -> list[TokenRecord]:
    """One record for each sample that has a call, in the order of the batch."""
    columns = [batch.mask, _advantages(batch), batch.columns["old_log_probs"]]
    after = [] if batch.after is None else batch.after.tolist()
    rows = zip(batch.samples, *(column.tolist() for column in columns), strict=True)
    objectives = _objectives(batch, settings, grad_norm)
    return [
        TokenRecord(
            rollout_id=call.rollout_id,
            response_id=call.response_id,
            role=call.role,
            visit=call.visit,
            attempt=call.attempt,
            step=call.step,
            reward=sample.reward,
            policy=call.weights_version,
            mask=mask[:count],
            advantages=advantages[:count],
            old_log_probs=log_probs[:count],
            new_log_probs=[round(value, 6) for value in after[place][:count]] if place < len(after) else None,
            parts=dict(sample.parts),
            objective=objectives[place],
            sampled_log_probs=None if sample.log_probs is None else list(sample.log_probs),
        )
        for place, (sample, mask, advantages, log_probs) in enumerate(rows)
        if (call := sample.call) is not None and (count := len(sample.response_ids))
    ]


def token_weights(mode: str, lengths: Sequence[int]) -> list[float]:
    """What each token of each call weighs in the objective's mean, for calls of so many tokens.

    token-mean: 1 / (all tokens); seq-mean-token-sum: 1 / (all calls); seq-mean-token-mean: 1 / (all calls) / (the
    call's tokens), as VeRL's `agg_loss` has them.
    """
    if mode == "token-mean":
        return [1 / sum(lengths)] * len(lengths)
    return [1 / len(lengths) / (length if mode == "seq-mean-token-mean" else 1) for length in lengths]


def _objectives(batch: "Batch", settings: PpoSettings, grad_norm: float | None) -> list[Objective]:
    """The objective with the weight of each call's tokens."""
    actor = settings.verl_values.actor
    weights = token_weights(actor.loss_agg_mode, [len(sample.response_ids) for sample in batch.samples])
    sizes = _advantages(batch).abs() * batch.mask
    pulls = sizes * -batch.columns["old_log_probs"].clamp(max=0.0).expm1()
    loss, gradient = (
        math.fsum(weight * total for weight, total in zip(weights, of_call.sum(dim=1).tolist(), strict=True))
        for of_call in (sizes, pulls)
    )
    clip = actor.clip_ratio_low, actor.clip_ratio_high, actor.clip_ratio_c
    return [Objective(weight, loss, gradient, grad_norm, *clip) for weight in weights]


def _advantages(batch: "Batch") -> "Tensor":
    """(B, T) advantages, times the importance weights if there are any: the loss is linear in the advantage."""
    advantages = batch.columns["advantages"]
    return advantages * batch.columns[WEIGHTS] if WEIGHTS in batch.columns else advantages


def forget_update(run: Path, phase: str, step: int) -> None:
    """Remove an earlier process's records of a step that now makes no update."""
    tokens_file(run, phase, step).unlink(missing_ok=True)
