"""Messages for every role, as pure functions.

A user or tool message is one compact JSON object. All untrusted text (tasks, tool output, other roles' answers) is a
JSON string in it, so its braces, tags or quotes cannot change the prompt's structure. The goal comes last, after
untrusted text: small models read better if the question follows the evidence, and large models are reminded of their
task after any instruction in that text.

A tokenizer may read `<|im_end|>` or `<tool_call>` as a control token even inside a JSON string. So the first character
of anything like a tag is written as a JSON escape. Parsing the JSON gives the original text.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any

from agents.findings import FORMS
from agents.roles import Role, prompt_in_form, prompt_with_options
from agents.schemas import Answer, with_options
from chimera.core.types import ShownOptions

Message = dict[str, Any]
"""One OpenAI chat message."""

_TAG = re.compile(r"<(?=[|/A-Za-z])")


def dump(payload: Mapping[str, Any]) -> str:
    """Compact JSON without ASCII escapes, the form of all prompts and answers."""
    return _TAG.sub(r"\\u003c", json.dumps(payload, ensure_ascii=False, separators=(",", ":")))


def canonical(payload: Mapping[str, Any]) -> str:
    """Compact JSON with sorted keys, so that equal objects are equal strings."""
    return json.dumps(payload, ensure_ascii=False, separators=(",", ":"), sort_keys=True)


def opening(role: Role, goal: str, *, options: ShownOptions | None = None, **inputs: Any) -> list[Message]:
    """System prompt and first user message of `role`. `inputs` that are None are left out; the goal comes last.

    `options` are the answers that a task offers, if not yes, no and maybe. They stand before the goal, and the prompt
    asks for one of them. The input "form" names the form of the answer, if it is not the role's own.
    """
    prompt = prompt_in_form(role.prompt, inputs.get("form"))
    payload = {key: value for key, value in inputs.items() if value is not None}
    question = {"options": options, "goal": goal} if options else {"goal": goal}
    return [
        {"role": "system", "content": prompt_with_options(prompt, options) if options else prompt},
        {"role": "user", "content": dump({**payload, **question})},
    ]


def options_in(messages: Iterable[Message]) -> tuple[str, ...]:
    """The names of the options in a visit's messages; empty if the answers are yes, no and maybe."""
    return tuple(_first(messages, '"options"').get("options") or ())


def schema_in(role: Role, messages: Sequence[Message]) -> type[Answer]:
    """The schema of a role's answer in a visit: in the form and of the options that its messages name."""
    form = FORMS.get(str(_first(messages, '"form"').get("form")))
    return form or with_options(role.schema, options_in(messages))


def _first(messages: Iterable[Message], key: str) -> dict[str, Any]:
    """The JSON object of a visit's first user message; empty if `key` does not occur in it."""
    first = next((message for message in messages if message["role"] == "user"), None)
    return read_payload(first) if first and key in str(first["content"]) else {}


def read_payload(message: Message) -> dict[str, Any]:
    """The JSON object of a user or tool message; empty for prompts of other programs, which traces may hold."""
    if message["role"] not in ("user", "tool"):
        return {}
    try:
        payload = json.loads(message["content"])
    except (TypeError, ValueError):
        return {}
    return payload if isinstance(payload, dict) else {}


def tool_message(call_id: str, content: Mapping[str, Any], goal: str) -> Message:
    """The answer to one tool call: `content` is {"results": [{"id", "text"}, ...]} or {"error": "..."}."""
    return {"role": "tool", "tool_call_id": call_id, "content": dump({**content, "goal": goal})}


def repair_message(error: str, goal: str) -> Message:
    """The message that asks once more after an answer that did not validate."""
    return {"role": "user", "content": dump({"error": error, "request": "answer again, as JSON only", "goal": goal})}


def response_format(role: Role, messages: Sequence[Message] = ()) -> dict[str, Any]:
    """A new OpenAI `response_format` for a role's answer after `messages`. Graders recognise the role by its name."""
    schema = json.loads(_schema_text(schema_in(role, messages)))
    return schema_format(schema["title"], schema)


@cache
def _schema_text(schema: type[Answer]) -> str:
    """The JSON schema as cached text: pydantic is slow to make it for every model call, and text is immutable."""
    return json.dumps(schema.model_json_schema())


def schema_format(name: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    """An OpenAI `response_format` of type json_schema."""
    return {"type": "json_schema", "json_schema": {"name": name, "schema": dict(schema)}}


def payload_of(messages: Sequence[Message]) -> dict[str, Any]:
    """The JSON object in the first user message. Graders and tests read prompts with it."""
    for message in messages:
        if message["role"] == "user":
            return json.loads(message["content"])
    raise ValueError("no user message among the messages")
