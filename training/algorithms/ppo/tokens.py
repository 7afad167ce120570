"""Makes the token records of a PPO update from the batch of its engine."""

from pathlib import Path
from typing import TYPE_CHECKING

from evaluation.traces.token_records import TokenRecord, tokens_file, write_tokens

if TYPE_CHECKING:
    from training.algorithms.ppo.batch import Batch


def record_update(run: Path, phase: str, step: int, batch: "Batch") -> None:
    """Write the token records of update `step`. A resumed run that repeats the step replaces the file.

    Args:
        run: The run's folder.
        phase: The phase.
        step: The update's number.
        batch: The update's calls with their advantages and log-probabilities.

    Raises:
        RunError: The file cannot be written.
    """
    write_tokens(records_of(batch), tokens_file(run, phase, step))


def records_of(batch: "Batch") -> list[TokenRecord]:
    """One record for each sample that has a call, in the order of the batch."""
    columns = [batch.mask, batch.columns["advantages"], batch.columns["old_log_probs"]]
    rows = zip(batch.samples, *(column.tolist() for column in columns), strict=True)
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
        )
        for sample, mask, advantages, log_probs in rows
        if (call := sample.call) is not None and (count := len(sample.response_ids))
    ]


def forget_update(run: Path, phase: str, step: int) -> None:
    """Remove an earlier process's records of a step that now makes no update."""
    tokens_file(run, phase, step).unlink(missing_ok=True)
