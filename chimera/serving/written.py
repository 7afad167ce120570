"""What a server wrote into its own messages beyond OpenAI's fields, such as thought signatures and reasoning.

It stays with the message in conversations and traces, under a key of its own, and goes back unchanged to that server,
which may refuse the conversation otherwise. No other server gets it, and nobody is shown it as a role's words.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

WRITTEN = "written"
"""The key in a message: {"by": the server, "message": its fields, "calls": the fields of each tool call}."""
_KEPT_HERE = (WRITTEN, "refusal")


def as_sent(message: Mapping[str, Any], place: str, refused: Collection[str] = ()) -> dict[str, Any]:
    """`message` as the server at `place` gets it: with what it wrote itself, except for fields that it has refused."""
    sent = {name: value for name, value in message.items() if name not in _KEPT_HERE}
    if (written := _by(message, place)) is None:
        return sent
    if written["calls"]:
        sent["tool_calls"] = [
            {**call, **_without(more["call"], refused), "function": {**call["function"], **more["function"]}}
            for call, more in zip(sent["tool_calls"], written["calls"], strict=True)
        ]
    return {**sent, **_without(written["message"], refused)}


def names_written(messages: Iterable[Mapping[str, Any]], place: str) -> Iterator[str]:
    """The fields that the server at `place` would get back."""
    for message in messages:
        if (written := _by(message, place)) is not None:
            yield from (name for name in written["message"] if name != "content")
            yield from (name for call in written["calls"] for name in call["call"])


def _by(message: Mapping[str, Any], place: str) -> Mapping[str, Any] | None:
    written = message.get(WRITTEN)
    return written if written and written["by"] == place else None


def _without(fields: Mapping[str, Any], refused: Collection[str]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if name not in refused}
