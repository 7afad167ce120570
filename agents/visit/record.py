"""Records of each model call and tool call; rewards and traces are made from them."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, fields
from typing import Any

from agents.roles import ROLES
from chimera.serving.client import REFUSED


@dataclass(frozen=True, slots=True)
class ModelCall:
    """One model call of one role.

    `visit` counts the role's visits in the graph from 1 (2 and more are revisions), `step` the calls within the visit.
    `parsed` is True or False when the answer was read as the role's schema, None when it was a tool call.
    `repair` marks the one repair request after an answer that did not validate. `attempt` counts the attempts at one
    visit from 1: a retriable model error starts the visit again, with the same visit and step numbers. `rule`: the hard
    rule that the answer broke (`society.rules`).
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
    rule: str | None = None


@dataclass(frozen=True, slots=True)
class ToolUse:
    """One tool call.

    `valid`: the role has the tool, the arguments fit and the role's limit allowed the call. `ok`: it gave a result.
    `arguments` is canonical JSON (sorted keys, no spaces) if the model wrote a JSON object, so equal calls are equal
    strings; otherwise it is the raw text. `results` holds the ids of the passages found. `attempt`: as in `ModelCall`.
    `fault`: the kind of fault that an evaluation put in the tool's place. `rule`: the hard rule that the call broke, so
    that it was refused.
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
    fault: str | None = None
    rule: str | None = None


CallRecord = ModelCall | ToolUse
Observer = Callable[[CallRecord], None]

Operation = Callable[[str, dict[str, Any]], AbstractContextManager[Any]]
"""Opens a span with a name and attributes; returns a context manager. Training passes Agent Lightning's."""


def dump(record: CallRecord) -> dict[str, Any]:
    """A record as plain data, including its kind."""
    return {"kind": type(record).__name__, **{field.name: getattr(record, field.name) for field in fields(record)}}


def no_operation(name: str, attributes: dict[str, Any]) -> AbstractContextManager[None]:
    """The `Operation` that opens nothing."""
    return nullcontext()


def no_observer(record: CallRecord) -> None:
    """The `Observer` that keeps nothing."""


def count(records: Sequence[CallRecord]) -> dict[str, int]:
    """Totals of one run of the society: calls, tokens, tool calls, repairs, failures, and broken hard rules.

    Where an evaluation put faults into tools, also "faults/<tool>/<kind>", and of these "recovered/<tool>/<kind>": a
    later call of the visit gave the role passages after all.
    """
    calls = [record for record in records if isinstance(record, ModelCall)]
    tools = [record for record in records if isinstance(record, ToolUse)]
    return {
        "model_calls": len(calls),
        "model_errors": sum(not call.response_id for call in calls),
        "repairs": sum(call.repair for call in calls),
        "cut_answers": Counter(call.finish_reason for call in calls)["length"],
        "refused_answers": Counter(call.finish_reason for call in calls)[REFUSED],
        "prompt_tokens": sum(call.prompt_tokens for call in calls),
        "completion_tokens": sum(call.completion_tokens for call in calls),
        "tool_calls": len(tools),
        "invalid_tool_calls": sum(not use.valid for use in tools),
        "failed_tool_calls": sum(not use.ok for use in tools),
        "broken_rules": sum(record.rule is not None for record in records),
        **_faults(tools),
    }


def _faults(uses: Sequence[ToolUse]) -> Counter[str]:
    """The faults among tool calls, by tool and kind, and those that the visit recovered from."""
    faults = Counter[str]()
    for number, use in enumerate(uses):
        if use.fault is not None:
            faults[f"faults/{use.tool}/{use.fault}"] += 1
            visit = use.role, use.visit, use.attempt
            later = (other for other in uses[number + 1 :] if (other.role, other.visit, other.attempt) == visit)
            faults[f"recovered/{use.tool}/{use.fault}"] += any(other.results and not other.fault for other in later)
    return faults


def tokens(records: Sequence[CallRecord]) -> dict[str, dict[str, int]]:
    """Tokens that each logical model read ("prompt") and wrote ("completion"); costs are computed from them."""
    by_model: dict[str, dict[str, int]] = {}
    for record in records:
        if isinstance(record, ModelCall):
            of_model = by_model.setdefault(record.model, {"prompt": 0, "completion": 0})
            of_model["prompt"] += record.prompt_tokens
            of_model["completion"] += record.completion_tokens
    return by_model


def by_visit(records: Sequence[CallRecord]) -> dict[str, dict[str, int]]:
    """Model calls and tokens of each visit, as "HypothesisRefiner/1" (role and number): {"calls", "prompt",
    "completion"}. Attempts of one visit are added up."""
    usage: dict[str, dict[str, int]] = {}
    for record in records:
        if isinstance(record, ModelCall):
            of_visit = usage.setdefault(f"{record.role}/{record.visit}", {"calls": 0, "prompt": 0, "completion": 0})
            of_visit["calls"] += 1
            of_visit["prompt"] += record.prompt_tokens
            of_visit["completion"] += record.completion_tokens
    return usage


def tool_calls(records: Sequence[CallRecord], tools: Mapping[str, Sequence[str]]) -> dict[str, int]:
    """Tool calls of each role that made model calls and has tools; invalid calls count, 0 if it made none.

    `tools` holds the names of each role's tools.
    """
    worked = {record.role for record in records if isinstance(record, ModelCall)}
    used = Counter(record.role for record in records if isinstance(record, ToolUse))
    return {name: used[name] for name in ROLES if tools[name] and name in worked}
