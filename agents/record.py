"""What the society reports of each model call and tool call while it works: the raw material of rewards and traces."""

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, fields
from typing import Any

from agents.roles import ROLES


@dataclass(frozen=True, slots=True)
class ModelCall:
    """One model call of one role.

    `visit` counts the role's visits in the graph from 1 (2 and more are revisions), `step` the calls within the visit.
    `parsed` is True or False when the answer was read as the role's schema, None when it was a tool call.
    `repair` marks the one re-ask after an answer that did not validate. `attempt` counts the tries of one visit from 1:
    a retriable model error starts the visit again, with the same visit and step numbers.
    """

    role: str
    model: str
    visit: int
    step: int
    response_id: str
    weights_version: str | None
    finish_reason: str
    prompt_tokens: int
    completion_tokens: int
    seconds: float
    parsed: bool | None
    repair: bool
    error: str | None = None
    attempt: int = 1


@dataclass(frozen=True, slots=True)
class ToolUse:
    """One tool call.

    `valid` when the role has the tool, the arguments fit and the role's limit allowed the call; `ok` when it gave a
    result. `arguments` is canonical JSON (sorted keys, no spaces) when the model wrote a JSON object, its raw text
    otherwise, so equal calls are equal strings. `results` holds the ids of the passages found. `attempt` is that of
    `ModelCall`.
    """

    role: str
    visit: int
    step: int
    tool: str
    arguments: str
    valid: bool
    ok: bool
    results: tuple[str, ...]
    error: str | None
    seconds: float
    attempt: int = 1


CallRecord = ModelCall | ToolUse
Observer = Callable[[CallRecord], None]

Operation = Callable[[str, dict[str, Any]], AbstractContextManager[Any]]
"""Opens a span: name and attributes in, context manager out. Training hands in Agent Lightning's; others none."""


def dump(record: CallRecord) -> dict[str, Any]:
    """A record as plain data, with its kind."""
    return {"kind": type(record).__name__, **{field.name: getattr(record, field.name) for field in fields(record)}}


def no_operation(name: str, attributes: dict[str, Any]) -> AbstractContextManager[None]:
    """The `Operation` that opens nothing."""
    return nullcontext()


def no_observer(record: CallRecord) -> None:
    """The `Observer` that keeps nothing."""


def count(records: Sequence[CallRecord]) -> dict[str, int]:
    """How much work a run of the society was: calls, tokens, tool calls, repairs, and what of it failed."""
    calls = [record for record in records if isinstance(record, ModelCall)]
    tools = [record for record in records if isinstance(record, ToolUse)]
    return {
        "model_calls": len(calls),
        "model_errors": sum(not call.response_id for call in calls),
        "repairs": sum(call.repair for call in calls),
        "cut_answers": Counter(call.finish_reason for call in calls)["length"],
        "prompt_tokens": sum(call.prompt_tokens for call in calls),
        "completion_tokens": sum(call.completion_tokens for call in calls),
        "tool_calls": len(tools),
        "invalid_tool_calls": sum(not use.valid for use in tools),
        "failed_tool_calls": sum(not use.ok for use in tools),
    }


def tokens(records: Sequence[CallRecord]) -> dict[str, dict[str, int]]:
    """Tokens that each logical model read ("prompt") and wrote ("completion"); what it costs follows from this."""
    found: dict[str, dict[str, int]] = {}
    for record in records:
        if isinstance(record, ModelCall):
            of_model = found.setdefault(record.model, {"prompt": 0, "completion": 0})
            of_model["prompt"] += record.prompt_tokens
            of_model["completion"] += record.completion_tokens
    return found


def by_visit(records: Sequence[CallRecord]) -> dict[str, dict[str, int]]:
    """Model calls and tokens of each visit, as "HypothesisRefiner/1" (role and number): {"calls", "prompt",
    "completion"}. Tries of one visit are added up."""
    found: dict[str, dict[str, int]] = {}
    for record in records:
        if isinstance(record, ModelCall):
            of_visit = found.setdefault(f"{record.role}/{record.visit}", {"calls": 0, "prompt": 0, "completion": 0})
            of_visit["calls"] += 1
            of_visit["prompt"] += record.prompt_tokens
            of_visit["completion"] += record.completion_tokens
    return found


def tool_calls(records: Sequence[CallRecord]) -> dict[str, int]:
    """Tool calls of each role that worked and has tools, 0 for one that made none; invalid calls count."""
    worked = {record.role for record in records if isinstance(record, ModelCall)}
    used = Counter(record.role for record in records if isinstance(record, ToolUse))
    return {name: used[name] for name, role in ROLES.items() if role.tools and name in worked}
