"""Writes a conversation so that a chat template takes it that knows no tools, no system messages, or strict turns."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

OPEN, CLOSE = "<tool_call>", "</tool_call>"
"""Marks around a call in an answer."""
TOOLS = """You can call these tools:
{tools}
First call one of them: answer only
{example}
Its results follow, and then you answer."""
"""A small model that was not trained to call tools seldom does where it is left a choice."""
RESULT = "<tool_response>\n{}\n</tool_response>"

Message = dict[str, Any]
"""One message as chat templates read them: role, content, and for assistants tool_calls."""


@dataclass(frozen=True, slots=True)
class Manners:
    """What a chat template renders: tools and calls, system messages, two user messages in a row."""

    tools: bool = True
    system: bool = True
    rows: bool = True

    def sentences(self) -> list[str]:
        """How a template is used that does not render everything."""
        instead = {
            "knows no tools, so they are described in the system message and called in plain text": self.tools,
            "refuses system messages, so they stand at the beginning of the user's first message": self.system,
            "refuses two user messages in a row, so they become one": self.rows,
        }
        return [f"its chat template {what}" for what, renders in instead.items() if not renders]

    def adapted(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> list[Message]:
        """The same conversation in a form that the template renders."""
        adapted = list(messages)
        if not self.tools:
            adapted = [_as_text(message) for message in adapted]
            if tools:
                adapted = _joined([{"role": "system", "content": _offer(tools)}], adapted, "system", before=False)
        if not self.system:
            system = [{**message, "role": "user"} for message in adapted if message["role"] == "system"]
            adapted = _joined(system, [message for message in adapted if message["role"] != "system"], "user")
        if not self.rows:
            groups = (list(row) for _, row in groupby(adapted, key=lambda message: message["role"]))
            adapted = [message for row in groups for message in (_merged(row) if row[0]["role"] == "user" else row)]
        return adapted


def _joined(further: list[Message], messages: list[Message], role: str, *, before: bool = True) -> list[Message]:
    """The conversation with the texts of `further` in its first message, if that is of `role`, or before it."""
    if messages and messages[0]["role"] == role and further:
        first = [*further, messages[0]] if before else [messages[0], *further]
        return [*_merged(first), *messages[1:]]
    return [*further, *messages]


def _merged(messages: Sequence[Message]) -> Iterator[Message]:
    yield {**messages[0], "content": "\n\n".join(message["content"] for message in messages)}


def _offer(tools: Sequence[Mapping[str, Any]]) -> str:
    functions = [tool["function"] for tool in tools]
    arguments = dict.fromkeys((functions[0].get("parameters") or {}).get("required", ()), "...")
    example = _call(functions[0]["name"], json.dumps(arguments, separators=(",", ":")))
    return TOOLS.format(tools="\n".join(json.dumps(each, ensure_ascii=False) for each in functions), example=example)


def _as_text(message: Message) -> Message:
    """A message without calls and results of tools, which are written into its text."""
    if message["role"] == "tool":
        return {"role": "user", "content": RESULT.format(message["content"])}
    calls = [_call(call["function"]["name"], call["function"]["arguments"]) for call in message.get("tool_calls", ())]
    content = "\n".join([*filter(None, [message["content"]]), *calls])
    return {"role": message["role"], "content": content if calls else message["content"]}


def _call(name: str, arguments: str) -> str:
    return f'{OPEN}{{"name":"{name}","arguments":{arguments}}}{CLOSE}'
