"""Further answers to one recorded prompt: k samples of a role's decision cost k calls and not k rollouts."""

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from chimera.config.tree import Config
from chimera.core.errors import RunError
from training.bench.side_calls import SideCalls
from training.learning.experience import Call

MOST_AT_ONCE = 128
"""Answers to one request that the embedded server gives at most."""


async def ask_again(
    side: SideCalls,
    config: Config,
    versions: Mapping[str, str],
    call: Call,
    k: int,
    seed: int,
    *,
    log_probs: bool = False,
) -> list[Call]:
    """`k` answers to the prompt of `call`, by the weights that are live.

    Args:
        config: Tells whose model plays the role.
        call: From an episode of this run.
        seed: With the prompt it decides what is drawn: the same for both gives the same answers.
        log_probs: True to ask for the log-probabilities of their tokens too.

    Raises:
        RunError: The call's exchange is not known, or the server read other tokens than the call's.
        ModelError: The model's server failed.
    """
    exchange = call.asked
    if exchange is None:
        raise RunError(f"{_name(call)} cannot be asked again: its exchange is not in a trace")
    slot = config.slot(call.role)
    options = {"tools": exchange.tools or (), "response_format": exchange.response_format}
    branches: list[Call] = []
    while len(branches) < k:
        side_call = await side.make(
            "branch",
            slot,
            versions[slot],
            exchange.messages,
            about={"rollout_id": call.rollout_id, "response_id": call.response_id},
            n=min(k - len(branches), MOST_AT_ONCE),
            seed=_seed(seed, call, len(branches)),
            log_probs=log_probs,
            **options,
        )
        branches += _answers(call, side_call.response)
    return branches[:k]


def _answers(call: Call, response: Mapping[str, Any]) -> list[Call]:
    """Each answer as the call that it would have been; it earns nothing, because nothing came of it."""
    assert call.asked is not None
    prompt, choices = response.get("prompt_token_ids"), response["choices"]
    if prompt is None or any("token_ids" not in choice for choice in choices):
        raise RunError(f"{_name(call)} cannot be asked again: the server returns no token ids")
    if tuple(prompt) != call.prompt_ids:
        raise RunError(
            f"{_name(call)} cannot be asked again: the server reads {len(prompt)} tokens in its prompt, where it read "
            f"{len(call.prompt_ids)}, or other ones; was the chat template changed?"
        )
    version = response.get("weights_version")
    branches: list[Call] = []
    for choice in choices:
        name = f"{response.get('id') or 'branch'}/{choice.get('index', len(branches))}"
        branch = replace(
            call,
            response_id=name,
            response_ids=tuple(choice["token_ids"]),
            weights_version=version,
            immediate=0.0,
            outcome=False,
            asked=replace(call.asked, response_id=name, choice=choice, weights_version=version),
        )
        branches.append(branch)
    return branches


def _seed(seed: int, call: Call, offset: int) -> int:
    """The request's seed: of the prompt's tokens and not of ids, which differ between runs with one seed."""
    digest = hashlib.sha256(f"{seed}/{offset}/{call.role}/{call.prompt_ids}".encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1


def _name(call: Call) -> str:
    return f"call {call.response_id} of {call.role} in rollout {call.rollout_id}"
