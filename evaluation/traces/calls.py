"""The model calls in a trace with token ids and roles, and the outcomes of its attempts.

A trace holds two kinds of spans: one for each visit of a role, with the ids of its responses, and one for each
exchange, with messages, token ids and the response id. They are joined by this id, never by time or by a framework's
names.
"""

import ast
import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from evaluation.traces.spans import EXCHANGE, OBJECT, OBJECT_JSON, OPERATION, RAW, RESPONSE_IDS, SpanLike

RESPONSE_ID = f"{RAW}id"


@dataclass(frozen=True, slots=True)
class TracedCall:
    """One exchange with a model: request, response and role.

    `prompt_ids` and `response_ids` are from the server; None if it does not return them. `attempt_id` is the rollout's
    attempt. `attempt` is the attempt of this visit within it, from 1.
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
    form: str | None = None

    @property
    def response_format(self) -> dict[str, Any] | None:
        """The `response_format` that was sent, parsed here because most readers do not need it."""
        return _plain(self.form)

    @property
    def tools(self) -> list[dict[str, Any]] | None:
        """OpenAI schemas of the offered tools, parsed only here because most readers do not need them."""
        return _plain(self.offered)


def visits(spans: Iterable[SpanLike]) -> Iterator[tuple[SpanLike, list[str]]]:
    """Our span of each visit of a role, with the ids of the responses it got."""
    for span in spans:
        if span.name == OPERATION and "role" in span.attributes:
            responses = span.attributes.get(RESPONSE_IDS, ())
            yield span, [str(response) for response in responses] if isinstance(responses, list | tuple) else []


def model_calls(
    spans: Sequence[SpanLike], *, roles: Collection[str] | None = None, attempt_id: str | None = None
) -> list[TracedCall]:
    """Every attributed model call of a trace, once each, in the order of their sequence numbers.

    A call whose exchange is not in the trace is left out. So are all calls that share a response id within an attempt
    (some servers draw ids from a small range), because their exchanges cannot be told apart.

    Args:
        roles: Only calls of these roles. Others are not parsed.
        attempt_id: Only calls of this attempt of the rollout.
    """
    visit_of_call: dict[tuple[str, str], SpanLike | None] = {}
    for span, responses in visits(spans):
        if attempt_id is None or span.attempt_id == attempt_id:
            for response in responses:
                key = span.attempt_id, response
                visit_of_call[key] = None if key in visit_of_call else span
    calls: dict[tuple[str, str], TracedCall] = {}
    for span in spans:
        if span.name == EXCHANGE:
            key = span.attempt_id, str(span.attributes.get(RESPONSE_ID))
            visit = visit_of_call.get(key)
            if visit is not None and key not in calls and (roles is None or visit.attributes["role"] in roles):
                calls[key] = _call(span, key[1], visit.attributes)
    return sorted(calls.values(), key=lambda call: call.sequence_id)


def untraced(spans: Sequence[SpanLike]) -> set[str]:
    """Response ids of visits whose exchange is not in the trace."""
    exchanges = {span.attributes.get(RESPONSE_ID) for span in spans if span.name == EXCHANGE}
    return {response for _, responses in visits(spans) for response in responses} - exchanges


def last_outcome(spans: Sequence[SpanLike]) -> tuple[str, dict[str, Any]] | None:
    """Id and outcome of the last attempt that reported one; None when no attempt has reported one.

    The store numbers the spans of a rollout through all its attempts, so the largest number is the last.
    """
    outcomes = (span for span in spans if span.name == OBJECT and OBJECT_JSON in span.attributes)
    reported = max(outcomes, key=lambda span: span.sequence_id, default=None)
    return None if reported is None else (reported.attempt_id, json.loads(reported.attributes[OBJECT_JSON]))


def _call(span: SpanLike, response_id: str, visit: Mapping[str, Any]) -> TracedCall:
    raw = {key.removeprefix(RAW): value for key, value in span.attributes.items() if key.startswith(RAW)}
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
        weights_version=raw.get("weights_version"),
        attempt=int(visit.get("attempt", 1)),
        offered=raw.get("tools"),
        form=raw.get("response_format"),
    )


def _plain(value: Any) -> Any:
    """LiteLLM writes nested values into spans as Python literals."""
    return ast.literal_eval(value) if isinstance(value, str) else value


def _numbers(value: Any) -> list[int] | None:
    """Parse a list of whole numbers as JSON, which has the same text and is twenty times faster to read."""
    return json.loads(value) if isinstance(value, str) and value.startswith("[") else _plain(value)
