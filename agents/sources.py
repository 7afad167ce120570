"""The passages that a society has seen: what its claims may rest on."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from agents.prompting import Message
from chimera.types import Brief, abstract_text

SourceText = dict[str, str]
"""One passage as prompts hold it: {"id", "text"}."""


def given_sources(brief: Brief) -> list[SourceText] | None:
    """The brief's abstract as the one source of a prompt; None when the brief has no abstract."""
    return [{"id": brief.id, "text": abstract_text(brief.context)}] if brief.context else None


def sources_seen(messages: Mapping[str, Sequence[Message]]) -> list[SourceText]:
    """Every passage in any role's prompt or tool results, once, in the order of roles and messages.

    An id may come twice with two texts: tools cut long passages to what the query was about, and a quote may stand in
    either.
    """
    passages = (passage for channel in messages.values() for message in channel for passage in _passages(message))
    return [{"id": id, "text": text} for id, text in dict.fromkeys((item["id"], item["text"]) for item in passages)]


def _passages(message: Message) -> Iterable[dict[str, Any]]:
    """The passages of one message; user and tool messages are JSON that `agents.prompting` wrote."""
    if message["role"] == "user":
        return json.loads(message["content"]).get("sources") or ()
    if message["role"] == "tool":
        return json.loads(message["content"]).get("results") or ()
    return ()
