"""Answers to recorded prompts with the label as a hint. It is stripped: they count as answers without it."""

import asyncio
import json
import random
from collections.abc import Sequence

from agents.visit.prompting import Message, dump
from training.learning.base import Bench
from training.learning.groups import AnswerGroup, Valued
from training.learning.states import State
from training.learning.values import Values

HINT = "hint"
"""The key of the label in the JSON object of a prompt. A model that was never shown it seldom makes use of it."""


async def hinted(bench: Bench, values: Values, state: State, k: int, version: str) -> AnswerGroup:
    """`k` answers of the live weights to the prompt with the label as a hint, as answers to the prompt itself.

    They have no token ids: they were sampled after other tokens than those of the prompt.

    Args:
        version: The slot's version that is live. An answer by another is left out.

    Raises:
        ModelError: The model's server failed.
    """
    call = state.call
    assert call.asked is not None  # States are calls of a trace.
    messages = with_hint(call.asked.messages, state.episode.record.label)
    offered = {"tools": call.asked.tools or (), "response_format": call.asked.response_format}
    slot = bench.config.slot(call.role)
    draws = [random.Random(f"{bench.config.seed}/{HINT}/{state.name}/{number}").getrandbits(31) for number in range(k)]
    made = await asyncio.gather(*(bench.ask(slot, messages, seed=seed, **offered) for seed in draws))
    own = [call.answered(completion) for completion in made if completion.weights_version == version]
    worths = await asyncio.gather(*(values.of(state, one) for one in own))
    kept = [Valued(one, worth) for one, worth in zip(own, worths, strict=True) if worth is not None]
    return AnswerGroup(state, tuple(kept), {"stale": k - len(own), "unvalued": len(own) - len(kept)})


def with_hint(messages: Sequence[Message], label: str) -> list[Message]:
    """The messages of a prompt with one more key in the JSON object of its first user message, before the goal."""
    found = [dict(message) for message in messages]
    first = next(message for message in found if message["role"] == "user")
    payload = json.loads(first["content"])
    goal = payload.pop("goal")
    first["content"] = dump({**payload, HINT: label, "goal": goal})
    return found
