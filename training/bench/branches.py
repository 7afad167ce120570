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
    asked = call.asked
    if asked is None:
        raise RunError(f"{_name(call)} cannot be asked again: its exchange is not in a trace")
    slot = config.slot(call.role)
    options = {"tools": asked.tools or (), "response_format": asked.response_format}
    found: list[Call] = []
    while len(found) < k:
        made = await side.make(
            "branch",
            slot,
            versions[slot],
            asked.messages,
            about={"rollout_id": call.rollout_id, "response_id": call.response_id},
            n=min(k - len(found), MOST_AT_ONCE),
            seed=_seed(seed, call, len(found)),
            log_probs=log_probs,
            **options,
        )
        found += _answers(call, made.response)
    return found[:k]


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
    found: list[Call] = []
    for choice in choices:
        name = f"{response.get('id') or 'branch'}/{choice.get('index', len(found))}"
        branch = replace(
            call,
            response_id=name,
            response_ids=tuple(choice["token_ids"]),
            weights_version=version,
            immediate=0.0,
            outcome=False,
            asked=replace(call.asked, response_id=name, choice=choice, weights_version=version),
        )
        found.append(branch)
    return found


def _seed(seed: int, call: Call, found: int) -> int:
    """The request's seed: of the prompt's tokens and not of ids, which differ between runs with one seed."""
    digest = hashlib.sha256(f"{seed}/{found}/{call.role}/{call.prompt_ids}".encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1


def _name(call: Call) -> str:
    return f"call {call.response_id} of {call.role} in rollout {call.rollout_id}"
