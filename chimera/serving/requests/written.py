"""What a server wrote into its own messages beyond OpenAI's fields, such as thought signatures and reasoning.

It stays with the message in conversations and traces, under a key of its own, and goes back unchanged to that server,
which may refuse the conversation otherwise. No other server gets it, and nobody is shown it as a role's words.
"""

from collections.abc import Collection, Mapping
from typing import Any

WRITTEN = "written"
"""The key in a message: {"by": the server, "message": the message as it wrote it}."""


def as_sent(message: Mapping[str, Any], place: str, refused: Collection[str] = ()) -> dict[str, Any]:
    """`message` as the server at `place` gets it: with what it wrote itself, except for fields that it has refused."""
    sent = {name: value for name, value in message.items() if name not in (WRITTEN, "refusal")}
    written = message.get(WRITTEN)
    return _merged(sent, written["message"], refused) if written and written["by"] == place else sent


def names_written(message: Mapping[str, Any]) -> list[str]:
    """The fields of a server's message and of its tool calls."""
    written = message.get(WRITTEN, {}).get("message", {})
    return [name for part in (written, *(written.get("tool_calls") or ())) for name in part]


def _merged(ours: Any, theirs: Any, refused: Collection[str]) -> Any:
    """`ours` with the fields that only `theirs` has, and its content if that is a list of parts."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        more = {name: value for name, value in theirs.items() if name not in ours and name not in refused}
        return {name: _merged(value, theirs.get(name), refused) for name, value in ours.items()} | more
    if isinstance(ours, list) and isinstance(theirs, list):
        return [_merged(mine, other, refused) for mine, other in zip(ours, theirs, strict=True)]
    return theirs if isinstance(theirs, list) else ours
