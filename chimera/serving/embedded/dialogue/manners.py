"""Writes a conversation so that a chat template takes it that knows no tools, no system messages, or strict turns.

Then a system message tells what tools there are, calls are text between tags, and their results are a user's messages.
A system message becomes the beginning of the user's first one, and several messages of the user in a row become one.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from chimera.serving.embedded.grammar import CLOSE, OPEN

TOOLS = """You can call these tools:
{tools}
To call one, answer only
{example}
and its results will follow."""
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
        """What users should know of how the template is used."""
        lacking = {
            "knows no tools, so they are described in the system message and called in plain text": self.tools,
            "refuses system messages, so they stand at the beginning of the user's first message": self.system,
            "refuses two user messages in a row, so they become one": self.rows,
        }
        return [f"its chat template {what}" for what, renders in lacking.items() if not renders]

    def adapted(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> list[Message]:
        """The same conversation in a form that the template renders."""
        adapted = list(messages)
        if not self.tools:
            adapted = [_as_text(message) for message in adapted]
            if tools:
                adapted = _introduced(adapted, _offer(tools))
        if not self.system:
            system = "\n\n".join(message["content"] for message in adapted if message["role"] == "system")
            adapted = [message for message in adapted if message["role"] != "system"]
            place = next((place for place, message in enumerate(adapted) if message["role"] == "user"), None)
            if system and place is None:
                adapted.insert(0, {"role": "user", "content": system})
            elif system and place is not None:
                adapted[place] = {**adapted[place], "content": f"{system}\n\n{adapted[place]['content']}"}
        return adapted if self.rows else list(_merged(adapted))


def _introduced(messages: list[Message], text: str) -> list[Message]:
    """The conversation with `text` at the end of its first system message."""
    if messages and messages[0]["role"] == "system":
        return [{**messages[0], "content": f"{messages[0]['content']}\n\n{text}"}, *messages[1:]]
    return [{"role": "system", "content": text}, *messages]


def _offer(tools: Sequence[Mapping[str, Any]]) -> str:
    functions = [tool["function"] for tool in tools]
    parameters = functions[0].get("parameters") or {}
    names = parameters.get("required") or list(parameters.get("properties") or ())[:1]
    example = _call(functions[0]["name"], json.dumps(dict.fromkeys(names, "..."), separators=(",", ":")))
    return TOOLS.format(tools="\n".join(json.dumps(each, ensure_ascii=False) for each in functions), example=example)


def _as_text(message: Message) -> Message:
    """A message without calls and results of tools, which are written into its text."""
    if message["role"] == "tool":
        return {"role": "user", "content": RESULT.format(message["content"])}
    calls = [_call(call["function"]["name"], call["function"]["arguments"]) for call in message.get("tool_calls", ())]
    plain = {name: value for name, value in message.items() if name not in ("tool_calls", "tool_call_id")}
    return {**plain, "content": "\n".join([*filter(None, [message["content"]]), *calls])} if calls else plain


def _call(name: str, arguments: str) -> str:
    return f'{OPEN}{{"name":{json.dumps(name)},"arguments":{arguments}}}{CLOSE}'


def _merged(messages: Iterable[Message]) -> Iterator[Message]:
    """Messages of the user in a row as one."""
    for role, group in groupby(messages, key=lambda message: message["role"]):
        row = list(group)
        together = "\n\n".join(message["content"] for message in row) if role == "user" else ""
        yield from [{**row[0], "content": together}] if role == "user" else row
