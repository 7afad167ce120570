"""Traces as Agent Lightning's spans: reads and writes files, and converts to the form of its tracer.

`evaluation.traces.spans` and `evaluation.traces.calls` read traces without this library.
"""

from collections.abc import Iterable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import agentlightning as agl
from agentlightning.utils.otel import flatten_attributes

from chimera.core.errors import RunError
from evaluation.traces import spans as plain_spans
from evaluation.traces.calls import TracedCall, model_calls, visits
from evaluation.traces.spans import EXCHANGE, OPERATION, RAW, Span
from training.learning.adapter import without_nothing

_LEFT_OUT = ("resource", "context", "parent")


def plain(spans: Iterable[agl.Span]) -> list[Span]:
    """Agent Lightning's spans as our `Span`s, only those that a trace file keeps."""
    kept = (
        span for span in spans if span.name.startswith("agentlightning.") or span.name in (EXCHANGE, "litellm_request")
    )
    found = (span.model_dump(mode="json", exclude=set(_LEFT_OUT)) for span in kept)
    return [Span(**{one.name: row[one.name] for one in fields(Span)}) for row in found]


def write(spans: Iterable[agl.Span], path: Path) -> None:
    """Write Agent Lightning's spans as `evaluation.traces.spans.write` does."""
    plain_spans.write(plain(spans), path)


def read(path: Path) -> list[agl.Span]:
    """The spans of a trace file; raises RunError if the file is missing or broken."""
    nothing = {"resource": {"attributes": {}, "schema_url": ""}, "context": None, "parent": None}
    try:
        return [agl.Span.model_validate({**row, **nothing}) for row in plain_spans.read_rows(path)]
    except ValueError as error:
        raise RunError(f"trace {path} cannot be read: {error}") from error


def as_instrumented(spans: Sequence[agl.Span]) -> list[agl.Span]:
    """The trace in the form of Agent Lightning's tracer, for its adapters.

    Each exchange becomes an `openai.chat.completion` span below the span of its visit, which names the role as agent.
    """
    calls = {(call.attempt_id, call.response_id): call for call in model_calls(spans)}
    parents = {(span.attempt_id, response): span.span_id for span, responses in visits(spans) for response in responses}
    found: list[agl.Span] = []
    for span in spans:
        if span.name == OPERATION and "role" in span.attributes:
            named = {**span.attributes, "agent.name": span.attributes["role"]}
            found.append(span.model_copy(update={"attributes": named}))
        elif span.name == EXCHANGE:
            key = span.attempt_id, str(span.attributes.get(f"{RAW}id"))
            if (call := calls.pop(key, None)) is not None:
                changed = {"name": "openai.chat.completion", "parent_id": parents[key], "attributes": _openai(call)}
                found.append(span.model_copy(update=changed))
        elif span.name.startswith("agentlightning."):
            found.append(span)
    return found


def _openai(call: TracedCall) -> dict[str, Any]:
    answer = {**call.choice["message"], "finish_reason": call.choice.get("finish_reason")}
    messages = {"gen_ai": {"prompt": without_nothing(call.messages), "completion": [without_nothing(answer)]}}
    return {
        **flatten_attributes(messages),
        "gen_ai.request.model": call.model,
        "gen_ai.response.id": call.response_id,
        "prompt_token_ids": call.prompt_ids or [],
        "response_token_ids": call.response_ids or [],
    }
