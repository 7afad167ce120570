"""Traces on disk, and the model calls in them with their token ids and the role that made each.

A trace holds two kinds of spans: ours, one for each visit of a role, which lists the ids of the responses it got; and
the gateway's, one for each exchange, which holds messages and token ids under its response id. They are joined by that
id, never by time or by a framework's names.
"""

import ast
import gzip
import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import agentlightning as agl
from agentlightning.semconv import AGL_OBJECT, AGL_OPERATION, LightningSpanAttributes
from agentlightning.utils.otel import flatten_attributes

from chimera.errors import RunError
from chimera.secrets import redact_tree

EXCHANGE = "raw_gen_ai_request"
"""The gateway's span that holds request and response as the model's server saw them."""

_RAW = "llm.hosted_vllm."
_RESPONSES = f"{LightningSpanAttributes.OPERATION_OUTPUT.value}.response_ids"
_KEPT_SPANS = (EXCHANGE, "litellm_request")
_KEPT_ATTRIBUTES = ("agentlightning.", "exception.", "gen_ai.", "llm.", "role", "model", "visit", "attempt")
_LEFT_OUT = ("resource", "context", "parent")


@dataclass(frozen=True, slots=True)
class TracedCall:
    """One exchange with a model: what was sent, what came back, and who asked.

    `prompt_ids` and `response_ids` are as the server sampled them, None when it does not return them. `attempt_id` is
    the rollout's attempt, `attempt` the try of this visit within it, from 1.
    """

    response_id: str
    role: str
    visit: int
    attempt_id: str
    sequence_id: int
    model: str
    messages: list[dict[str, Any]]
    choice: dict[str, Any]
    prompt_ids: list[int] | None
    response_ids: list[int] | None
    weights_version: str | None
    attempt: int
    offered: str | None

    @property
    def tools(self) -> list[dict[str, Any]] | None:
        """OpenAI schemas of the tools that were offered, parsed here because most readers need none of it."""
        return _plain(self.offered)


def write(spans: Iterable[agl.Span], path: Path) -> None:
    """Write spans as gzipped JSON lines, whole or not at all.

    LiteLLM's bookkeeping spans and the request headers that it copies are left out; secrets are replaced.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}")
    with gzip.open(draft, "wt", encoding="utf-8", compresslevel=3) as file:
        for span in spans:
            if span.name.startswith("agentlightning.") or span.name in _KEPT_SPANS:
                data = span.model_dump(mode="json", exclude=set(_LEFT_OUT))
                data["attributes"] = {
                    key: value for key, value in data["attributes"].items() if key.startswith(_KEPT_ATTRIBUTES)
                }
                file.write(json.dumps(redact_tree(data), ensure_ascii=False) + "\n")
    draft.replace(path)


def read(path: Path) -> list[agl.Span]:
    """The spans of a trace file.

    Raises:
        RunError: The file is missing or broken.
    """
    nothing = {"resource": {"attributes": {}, "schema_url": ""}, "context": None, "parent": None}
    try:
        with gzip.open(path, "rt", encoding="utf-8") as file:
            return [agl.Span.model_validate({**json.loads(line), **nothing}) for line in file]
    except (OSError, EOFError, ValueError) as error:
        raise RunError(f"trace {path} cannot be read: {error}") from error


def visits(spans: Iterable[agl.Span]) -> Iterator[tuple[agl.Span, list[str]]]:
    """Our span of each visit of a role, with the ids of the responses it got."""
    for span in spans:
        if span.name == AGL_OPERATION and "role" in span.attributes:
            responses = span.attributes.get(_RESPONSES, ())
            yield span, [str(response) for response in responses] if isinstance(responses, list | tuple) else []


def model_calls(
    spans: Sequence[agl.Span], *, roles: Collection[str] | None = None, attempt_id: str | None = None
) -> list[TracedCall]:
    """Every attributed model call of a trace, once each, in the order of the gateway's sequence numbers.

    A call whose exchange is not in the trace is left out, and so are all calls that share a response id within an
    attempt (some servers draw ids from a small range): nobody can tell which exchange is whose.

    Args:
        spans: The trace.
        roles: Only calls of these roles; those of others are not even parsed.
        attempt_id: Only calls of this attempt of the rollout.
    """
    asked: dict[tuple[str, str], agl.Span | None] = {}
    for span, responses in visits(spans):
        if attempt_id is None or span.attempt_id == attempt_id:
            for response in responses:
                key = span.attempt_id, response
                asked[key] = None if key in asked else span
    calls: dict[tuple[str, str], TracedCall] = {}
    for span in spans:
        if span.name == EXCHANGE:
            key = span.attempt_id, str(span.attributes.get(f"{_RAW}id"))
            visit = asked.get(key)
            if visit is not None and key not in calls and (roles is None or visit.attributes["role"] in roles):
                calls[key] = _call(span, key[1], visit.attributes)
    return sorted(calls.values(), key=lambda call: call.sequence_id)


def untraced(spans: Sequence[agl.Span]) -> set[str]:
    """Response ids that a role got but whose exchange is not in the trace (yet: the gateway writes it just after)."""
    exchanges = {span.attributes.get(f"{_RAW}id") for span in spans if span.name == EXCHANGE}
    return {response for _, responses in visits(spans) for response in responses} - exchanges


def outcome(spans: Sequence[agl.Span], attempt_id: str) -> dict[str, Any] | None:
    """What the runner reported of this attempt; None when it could not, for example because it was killed."""
    for span in reversed(spans):
        if span.name == AGL_OBJECT and span.attempt_id == attempt_id:
            return agl.get_object_value(span)
    return None


def last_outcome(spans: Sequence[agl.Span]) -> tuple[str, dict[str, Any]] | None:
    """Id and outcome of the last attempt that reported one; None when every attempt's runner was killed.

    The store numbers the spans of a rollout through all its attempts, so the largest number is the last.
    """
    reported = max((span for span in spans if span.name == AGL_OBJECT), key=lambda span: span.sequence_id, default=None)
    return None if reported is None else (reported.attempt_id, agl.get_object_value(reported))


def _call(span: agl.Span, response_id: str, visit: Mapping[str, Any]) -> TracedCall:
    raw = {key.removeprefix(_RAW): value for key, value in span.attributes.items() if key.startswith(_RAW)}
    choice = _plain(raw.get("choices"))[0]
    return TracedCall(
        response_id=response_id,
        role=str(visit["role"]),
        visit=int(visit["visit"]),
        attempt_id=span.attempt_id,
        sequence_id=span.sequence_id,
        model=str(raw.get("model")),
        messages=_plain(raw.get("messages")),
        choice=choice,
        prompt_ids=_numbers(raw.get("prompt_token_ids")),
        response_ids=choice.get("token_ids"),
        weights_version=raw.get("weights_version"),  # pyright: ignore[reportArgumentType]  text when it is there
        attempt=int(visit.get("attempt", 1)),
        offered=raw.get("tools"),  # pyright: ignore[reportArgumentType]  text when it is there
    )


def _plain(value: Any) -> Any:
    """LiteLLM writes nested values into spans as Python literals."""
    return ast.literal_eval(value) if isinstance(value, str) else value


def _numbers(value: Any) -> list[int] | None:
    """A list of whole numbers is the same text in Python and in JSON, which is read twenty times faster."""
    return json.loads(value) if isinstance(value, str) and value.startswith("[") else _plain(value)


def without_nothing(value: Any) -> Any:
    """`value` without None and empty lists and objects in it: span attributes cannot hold them."""
    if isinstance(value, dict):
        kept = {key: without_nothing(item) for key, item in value.items()}
        return {key: item for key, item in kept.items() if item not in (None, [], {})}
    return [without_nothing(item) for item in value] if isinstance(value, list) else value


def as_instrumented(spans: Sequence[agl.Span]) -> list[agl.Span]:
    """The trace as Agent Lightning's own tracer would have written it, for its own adapters.

    Each exchange becomes an `openai.chat.completion` span below the span of its visit, which names the role as agent.
    """
    calls = {(call.attempt_id, call.response_id): call for call in model_calls(spans)}
    parents = {(span.attempt_id, response): span.span_id for span, responses in visits(spans) for response in responses}
    found: list[agl.Span] = []
    for span in spans:
        if span.name == AGL_OPERATION and "role" in span.attributes:
            named = {**span.attributes, "agent.name": span.attributes["role"]}
            found.append(span.model_copy(update={"attributes": named}))
        elif span.name == EXCHANGE:
            key = span.attempt_id, str(span.attributes.get(f"{_RAW}id"))
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
