"""Servers of providers for tests, on loopback: Anthropic's Messages API, Ollama's chat API, and OpenAI's."""

import json
from contextlib import contextmanager

from web_kit import answering

USAGE = {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18}


class Providers:
    """Answers all APIs by `play`, which takes a request in OpenAI's form and returns a text, or a list of tool calls
    [(name, arguments)], or (status, body). `requests` holds (path, headers, body) of each request."""

    def __init__(self, play):
        self.play = play
        self.requests = []
        self.url = ""

    def answer(self, path, headers, body):
        self.requests.append((path, headers, body))
        found = self.play(_asked(body))
        if isinstance(found, tuple):
            return found
        calls = found if isinstance(found, list) else []
        text = "" if calls else found
        if path == "/api/chat":
            told = [{"function": {"name": name, "arguments": given}} for name, given in calls]
            message = {"role": "assistant", "content": text, **({"tool_calls": told} if told else {})}
            counts = {"prompt_eval_count": 11, "eval_count": 7}
            ended = {"done": True, "done_reason": "stop", "created_at": "2026-01-01T00:00:00Z"}
            return 200, {"model": body["model"], "message": message, **ended, **counts}
        number = len(self.requests)
        if path == "/v1/chat/completions":
            choice = {"message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
            return 200, {"id": f"openai-{number}", "choices": [choice], "usage": USAGE}
        if body.get("tool_choice"):  # A structured answer: LangChain offers its schema as a tool that must be called.
            calls = [(body["tool_choice"]["name"], json.loads(text))]
        content = [
            {"type": "tool_use", "id": f"tu_{number}_{place}", "name": name, "input": given}
            for place, (name, given) in enumerate(calls)
        ]
        return 200, {
            "id": f"msg_{number}",
            "type": "message",
            "role": "assistant",
            "model": body["model"],
            "content": content or [{"type": "text", "text": text}],
            "stop_reason": "tool_use" if calls else "end_turn",
            "stop_sequence": None,
            "usage": {"input_tokens": 11, "output_tokens": 7},
        }


def _asked(body):
    """A request in OpenAI's form, as far as scripts look at it."""
    system = [{"role": "system", "content": body["system"]}] if "system" in body else []
    messages = [*system]
    for message in body["messages"]:
        content = message.get("content")
        results = [part for part in content if part["type"] == "tool_result"] if isinstance(content, list) else []
        messages += [{"role": "tool", "content": _text(part["content"])} for part in results]
        if not results:
            messages.append({**message, "content": _text(content)})
    if not body.get("tool_choice"):
        return {**body, "messages": messages}
    schema = {"name": body["tool_choice"]["name"], "schema": body["tools"][0]["input_schema"]}
    return {**body, "messages": messages, "tools": None, "response_format": {"json_schema": schema}}


def _text(content):
    if isinstance(content, list):
        return "".join(part.get("text", "") for part in content)
    return content


@contextmanager
def serve(play):
    """A running `Providers`."""
    providers = Providers(play)

    def answer(path, headers, body):
        status, found, *more = providers.answer(path, dict(headers), json.loads(body))
        kind = "application/x-ndjson" if "/api/" in path else "application/json"
        data = found if isinstance(found, bytes) else json.dumps(found).encode() + b"\n"
        return status, {"content-type": kind, **dict(more)}, data

    with answering(answer) as providers.url:
        yield providers
