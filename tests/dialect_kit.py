"""Servers that speak almost OpenAI's protocol: what they write beside it, and what they refuse to go on without."""

import re
from contextlib import contextmanager

CHAT_KEYS = {"role", "content", "tool_calls", "tool_call_id", "name"}


class Dialect:
    """One server's way. `write` changes a message that it sends; `fault` is the body of its refusal, or None.

    `thoughts` holds what it has thought, which nobody else should ever read.
    """

    def __init__(self):
        self.thoughts = []

    def think(self):
        self.thoughts.append(f"secret thought {len(self.thoughts)}")
        return self.thoughts[-1]

    def write(self, message):
        raise NotImplementedError

    def fault(self, messages):
        raise NotImplementedError


class Gemini(Dialect):
    """Signs each tool call, and takes no conversation with a call that lacks its signature."""

    def __init__(self):
        super().__init__()
        self.signed = {}

    def write(self, message):
        for call in message.get("tool_calls") or ():
            call["id"] = f"function-call-{len(self.signed)}"
            self.signed[call["id"]] = call["extra_content"] = {"google": {"thought_signature": self.think()}}

    def fault(self, messages):
        calls = [call for message in messages for call in message.get("tool_calls") or ()]
        if all(call.get("extra_content") == self.signed[call["id"]] for call in calls):
            return None
        error = {"code": 400, "message": "Function call is missing a thought_signature", "status": "INVALID_ARGUMENT"}
        return [{"error": error}]


class DeepSeek(Dialect):
    """Thinks before each message, and wants its thoughts back."""

    def write(self, message):
        message["reasoning_content"] = self.think()

    def fault(self, messages):
        answers = [message for message in messages if message["role"] == "assistant"]
        if all(answer.get("reasoning_content") in self.thoughts for answer in answers):
            return None
        return {"error": "The `reasoning_content` in the thinking mode must be passed back to the API."}


class Mistral(Dialect):
    """Sends content in parts, with its thoughts among them, arguments as objects, and some calls without an id."""

    def write(self, message):
        thought = {"type": "thinking", "thinking": [{"type": "text", "text": self.think()}]}
        text = message["content"]
        message["content"] = [thought, *([{"type": "text", "text": text}] if text else [])]
        for call in message.get("tool_calls") or ():
            call |= {"id": None, "function": {"name": call["function"]["name"], "arguments": {"query": "relapse rate"}}}

    def fault(self, messages):
        answers = [message["content"] for message in messages if message["role"] == "assistant"]
        ids = [message["tool_call_id"] for message in messages if message["role"] == "tool"]
        thoughts = [content[0]["thinking"][0]["text"] for content in answers if isinstance(content, list)]
        if len(thoughts) == len(answers) and all(re.fullmatch("[A-Za-z0-9]{9}", id_) for id_ in ids):
            return None
        return {"message": {"detail": [{"loc": ["body", "messages"], "msg": "a thought or an id is not mine"}]}}


DIALECTS = {dialect.__name__: dialect for dialect in (Gemini, DeepSeek, Mistral)}


@contextmanager
def speaking(scripted, dialect):
    """The scripted server speaks `dialect` within the block; it stays as it is but for the form of its messages."""
    usual = scripted.answer

    async def answer(request):
        unknown = {key for message in request["messages"] for key in message} - CHAT_KEYS - {"reasoning_content"}
        if unknown:
            return 400, f"messages have the fields {sorted(unknown)}, which nobody knows"
        if fault := dialect.fault(request["messages"]):
            return 400, fault
        status, body, *headers = await usual(request)
        if status == 200:
            body = {name: value for name, value in body.items() if name in ("id", "object", "choices", "usage")}
            dialect.write(body["choices"][0]["message"])
        return status, body, *headers

    scripted.answer = answer
    try:
        yield dialect
    finally:
        scripted.answer = usual
