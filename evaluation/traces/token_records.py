"""Records of the tokens that PPO learned from: one file for each update, one line for each call.

<run>/phases/<phase>/tokens-<step>.jsonl.gz
"""

import gzip
import json
import re
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from chimera.core.errors import RunError
from chimera.core.files import parse_json, replace_file
from chimera.core.secrets import redact_tree


@dataclass(frozen=True, slots=True)
class Objective:
    """The update's objective, as `evaluation.traces.token_loss` uses it. All but `weight` is the same for all calls.

    Attributes:
        weight: What each token of this call weighs in the mean over the update.
        loss: Sum of |advantage|, weighted, over all tokens of the update.
        gradient: Sum of |advantage| (1 - p), weighted, over all tokens of the update.
        grad_norm: The norm of the whole gradient, as the engine measured it: the mean over its optimiser steps. None
            if the weights were not changed.
        clip_low: The probability ratio's clip range below 1.
        clip_high: The same above 1.
        clip_most: Times -advantage the largest loss of a token with a negative advantage.
    """

    weight: float
    loss: float
    gradient: float
    grad_norm: float | None
    clip_low: float
    clip_high: float
    clip_most: float


@dataclass(frozen=True, slots=True)
class TokenRecord:
    """One call as an update used it. Lists have one item for each token of the response, in order.

    Attributes:
        response_id: The server's id of the response, as in the trace.
        visit: Which of the role's visits, from 1.
        attempt: Which try of that visit, from 1.
        step: Which call of that try, from 1.
        reward: The credit that the call got.
        policy: The weights that sampled it.
        mask: 1.0 for tokens that count in the loss.
        advantages: How much better than expected, in the estimator's units; NaN where an update had none. With
            `sampled_log_probs`, times the token's importance weight.
        old_log_probs: Natural logarithm of each token's probability under the weights before the update.
        new_log_probs: The same under the weights after it; None if the call was not read again.
        parts: The parts of the reward, weighted, that `reward` is the sum of; empty if it is a share of a rollout's.
        objective: What a token's share of the loss and of the gradient is computed from.
        sampled_log_probs: Natural logarithm of each token's probability under the weights `policy`, which may be older
            than those before the update; None if they are the same.
    """

    rollout_id: str
    response_id: str
    role: str
    visit: int
    attempt: int
    step: int
    reward: float
    policy: str | None
    mask: list[float]
    advantages: list[float]
    old_log_probs: list[float]
    new_log_probs: list[float] | None = None
    parts: dict[str, float] = field(default_factory=dict)
    objective: Objective = field(kw_only=True)
    sampled_log_probs: list[float] | None = None

    @classmethod
    def load(cls, data: Mapping[str, Any]) -> "TokenRecord":
        return cls(**{**data, "objective": Objective(**data["objective"])})

    def dump(self) -> dict[str, Any]:
        """Plain data; without `sampled_log_probs` where there are none."""
        row = asdict(self)
        if self.sampled_log_probs is None:
            del row["sampled_log_probs"]
        return row


def tokens_file(run: Path, phase: str, step: int) -> Path:
    """Where update `step` of a phase of the run in folder `run` is recorded."""
    return run / "phases" / phase / f"tokens-{step}.jsonl.gz"


def write_tokens(records: Iterable[TokenRecord], path: Path) -> None:
    """Write an update's records durably; what was there is replaced whole, and the same records give the same bytes.

    Raises:
        RunError: The file cannot be written.
    """
    lines = "".join(json.dumps(redact_tree(record.dump())) + "\n" for record in records)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, gzip.compress(lines.encode(), compresslevel=3, mtime=0))
    except OSError as error:
        raise RunError(f"the tokens of an update cannot be written to {path}: {error.strerror}") from error


def read_tokens(path: Path, rollout_id: str | None = None) -> list[TokenRecord]:
    """The records of one update, all or those of one rollout; raises RunError if the file is missing or broken."""
    try:
        with gzip.open(path, "rt", encoding="utf-8") as file:
            # Most lines are about other rollouts: they are not worth parsing.
            lines = [line for line in file if rollout_id is None or rollout_id in line]
        records = [TokenRecord.load(parse_json(line)) for line in lines]
    except (OSError, EOFError, ValueError, TypeError, KeyError, zlib.error) as error:
        raise RunError(f"the token records {path} cannot be read: {error}") from error
    return [record for record in records if rollout_id in (None, record.rollout_id)]


def tokens_of(run: Path, rollout_id: str) -> list[TokenRecord]:
    """What an update learned from one rollout; empty when none did; raises RunError if a file is broken."""
    for phase in sorted(path.name for path in (run / "phases").glob("*")):
        for _, path in token_files(run, phase):
            if records := read_tokens(path, rollout_id):
                return records
    return []


def token_files(run: Path, phase: str) -> list[tuple[int, Path]]:
    """The updates of a phase that are recorded, in order, each with its file."""
    named = ((_STEP.fullmatch(path.name), path) for path in (run / "phases" / phase).glob("tokens-*.jsonl.gz"))
    return sorted((int(match[1]), path) for match, path in named if match)


_STEP = re.compile(r"tokens-(\d+)\.jsonl\.gz")
