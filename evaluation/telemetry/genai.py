"""A recorded rollout as spans with OpenTelemetry's semantic conventions for generative AI.

    invoke_agent chimera                      the rollout: task, answer, decision, reward and its parts
      invoke_agent Geneticist                 one visit of a role
        chat junior                           one model call: model, tokens, finish reason
        execute_tool literature_search        one tool call

Names: https://opentelemetry.io/docs/specs/semconv/gen-ai/gen-ai-agent-spans/ (development status). What models read and
wrote is left out unless `content` is asked for.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from evaluation.records.rollouts import RolloutRecord
from evaluation.traces.calls import RESPONSE_ID, last_outcome, model_calls
from evaluation.traces.spans import EXCHANGE, OPERATION, RESPONSE_IDS, Span

SOCIETY = "chimera"
"""The name of the whole society as an agent."""
PROVIDER = "chimera"
"""`gen_ai.provider.name`: models are asked by the run's own names of slots, through its own servers."""

Attributes = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class GenAiSpan:
    """One span to send. Times are seconds since 1970; ids are hexadecimal digits; `error` is a type of error."""

    name: str
    trace_id: str
    span_id: str
    parent_id: str | None
    start: float
    end: float
    attributes: Attributes
    error: str | None = None
    client: bool = False


def spans_of(record: RolloutRecord, trace: Sequence[Span], *, run: str, content: bool) -> list[GenAiSpan]:
    """The spans of a recorded rollout, the society's first; empty if its trace has no span.

    Args:
        trace: Its trace as it was written: without secrets.
        content: True adds what models and tools read and wrote.
    """
    times = [time for span in trace for time in (span.start_time, span.end_time) if time is not None]
    if not times:
        return []
    trace_id = _id(record.rollout_id, 32)
    root = GenAiSpan(
        f"invoke_agent {SOCIETY}",
        trace_id,
        _id(f"{record.rollout_id}/society", 16),
        None,
        min(times),
        max(times),
        {**_about(record, run), **(_content_of_rollout(record) if content else {})},
        error="rollout_failed" if record.status == "failed" else None,
    )
    return [root, *_of_visits(record, trace, root, content)]


def _about(record: RolloutRecord, run: str) -> dict[str, Any]:
    """What is said of a rollout without its content."""
    facts = {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.provider.name": PROVIDER,
        "gen_ai.agent.name": SOCIETY,
        "gen_ai.conversation.id": record.rollout_id,
        "gen_ai.usage.input_tokens": record.counts.get("prompt_tokens"),
        "gen_ai.usage.output_tokens": record.counts.get("completion_tokens"),
        "chimera.run": run,
        "chimera.phase": record.phase,
        "chimera.rollout": record.rollout_id,
        "chimera.task": record.task_id,
        "chimera.repeat": record.repeat,
        "chimera.label": record.label,
        "chimera.answer": record.answer,
        "chimera.decision": record.decision,
        "chimera.status": record.status,
        "chimera.reward": record.reward,
    }
    parts = {f"chimera.reward.{name}": value for name, value in record.parts.items()}
    versions = {f"chimera.policy.{slot}": version for slot, version in record.policy_versions.items()}
    return _known({**facts, **parts, **versions})


def _of_visits(record: RolloutRecord, trace: Sequence[Span], root: GenAiSpan, content: bool) -> Iterator[GenAiSpan]:
    """Each visit of a role with its model calls and tool calls."""
    reported = last_outcome(trace)
    calls: Sequence[Mapping[str, Any]] = reported[1]["calls"] if reported else ()
    texts = _texts(trace) if content else {}
    exchanges = {str(span.attributes.get(RESPONSE_ID)): span for span in trace if span.name == EXCHANGE}
    for span in trace:
        if span.name != OPERATION or "role" not in span.attributes or span.start_time is None:
            continue
        role, visit = str(span.attributes["role"]), span.attributes.get("visit")
        attempt = span.attributes.get("attempt", 1)
        failed = span.status.get("status_code") == "ERROR"
        agent = {
            "gen_ai.operation.name": "invoke_agent",
            "gen_ai.provider.name": PROVIDER,
            "gen_ai.agent.name": role,
            "gen_ai.request.model": span.attributes.get("model"),
            "gen_ai.conversation.id": record.rollout_id,
            "chimera.visit": visit,
            "chimera.attempt": attempt,
        }
        end = span.start_time if span.end_time is None else span.end_time
        visit_span = GenAiSpan(
            f"invoke_agent {role}",
            root.trace_id,
            span.span_id,
            root.span_id,
            span.start_time,
            end,
            _known(agent),
            error=str(span.status.get("description") or "error").partition(":")[0] if failed else None,
        )
        yield visit_span
        mine = [
            call for call in calls if (call["role"], call["visit"], call.get("attempt", 1)) == (role, visit, attempt)
        ]
        yield from _of_calls(mine or _unreported(span, exchanges), visit_span, exchanges, texts, content)


def _unreported(operation: Span, exchanges: Mapping[str, Span]) -> list[Mapping[str, Any]]:
    """The model calls of a visit whose attempt reported no outcome, as far as its exchanges tell their times."""
    model, responses = str(operation.attributes.get("model")), map(str, operation.attributes.get(RESPONSE_IDS, ()))
    timed = {name for name, span in exchanges.items() if span.start_time is not None and span.end_time is not None}
    call = {"kind": "ModelCall", "model": model}
    return [{**call, "response_id": response} for response in responses if response in timed]


def _of_calls(
    calls: Sequence[Mapping[str, Any]],
    visit: GenAiSpan,
    exchanges: Mapping[str, Span],
    texts: Mapping[str, Attributes],
    content: bool,
) -> Iterator[GenAiSpan]:
    """The model calls and tool calls of a visit, in their order. A tool's calls follow the answer that asked for them:
    the trace has their duration and not their time."""
    now = visit.start
    for number, call in enumerate(calls):
        if call["kind"] == "ModelCall":
            exchange = exchanges.get(str(call.get("response_id")))
            yield (call_span := _chat(call, number, visit, exchange, texts, now))
        else:
            yield (call_span := _tool(call, number, visit, now, content))
        now = call_span.end


def _chat(
    call: Mapping[str, Any],
    number: int,
    visit: GenAiSpan,
    exchange: Span | None,
    texts: Mapping[str, Attributes],
    now: float,
) -> GenAiSpan:
    start = exchange.start_time if exchange is not None and exchange.start_time is not None else now
    end = exchange.end_time if exchange is not None and exchange.end_time is not None else start + call["seconds"]
    finish = call.get("finish_reason")
    attributes = {
        **_shared(visit, "chat"),
        "gen_ai.request.model": call["model"],
        "gen_ai.response.model": call.get("weights_version"),
        "gen_ai.response.id": call.get("response_id"),
        "gen_ai.response.finish_reasons": None if finish is None else [finish],
        "gen_ai.usage.input_tokens": call.get("prompt_tokens"),
        "gen_ai.usage.output_tokens": call.get("completion_tokens"),
        "chimera.repair": call.get("repair"),
        **texts.get(str(call.get("response_id")), {}),
    }
    span_id = exchange.span_id if exchange is not None else _id(f"{visit.span_id}/{number}", 16)
    error = "model_error" if call.get("error") else None
    return GenAiSpan(
        f"chat {call['model']}", visit.trace_id, span_id, visit.span_id, start, end, _known(attributes), error, True
    )


def _tool(call: Mapping[str, Any], number: int, visit: GenAiSpan, now: float, content: bool) -> GenAiSpan:
    attributes = {**_shared(visit, "execute_tool"), "gen_ai.tool.name": call["tool"], "gen_ai.tool.type": "function"}
    if content:
        attributes["gen_ai.tool.call.arguments"] = call.get("arguments")
        attributes["chimera.tool.results"] = [str(passage_id) for passage_id in call.get("results") or ()]
    error = None if call.get("ok") else "invalid_arguments" if not call.get("valid") else "tool_error"
    span_id = _id(f"{visit.span_id}/{number}", 16)
    end = now + (call.get("seconds") or 0.0)
    name = f"execute_tool {call['tool']}"
    return GenAiSpan(name, visit.trace_id, span_id, visit.span_id, now, end, _known(attributes), error)


def _shared(visit: GenAiSpan, operation: str) -> dict[str, Any]:
    """Attributes of everything that happens in a visit: also the role, so that calls can be grouped by it."""
    return {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": PROVIDER,
        "gen_ai.agent.name": visit.attributes["gen_ai.agent.name"],
        "gen_ai.conversation.id": visit.attributes["gen_ai.conversation.id"],
    }


def _texts(trace: Sequence[Span]) -> dict[str, Attributes]:
    """What each call read and wrote, by response id."""
    return {
        call.response_id: {
            "gen_ai.input.messages": json.dumps([_message(message) for message in call.messages], ensure_ascii=False),
            "gen_ai.output.messages": json.dumps([_message(call.choice["message"])], ensure_ascii=False),
        }
        for call in model_calls(trace)
    }


def _message(message: Mapping[str, Any]) -> dict[str, Any]:
    """A chat message in the form of the conventions."""
    parts: list[dict[str, Any]] = []
    if message.get("content"):
        parts.append({"type": "text", "content": message["content"]})
    for call in message.get("tool_calls") or ():
        function = call["function"]
        parts.append(
            {"type": "tool_call", "id": call.get("id"), "name": function["name"], "arguments": function["arguments"]}
        )
    return {"role": message["role"], "parts": parts}


def _content_of_rollout(record: RolloutRecord) -> dict[str, Any]:
    goal = record.outputs.get("research_goal")
    verdict = {"answer": record.answer, "decision": record.decision, "rationale": record.outputs.get("final_rationale")}
    return _known(
        {
            "gen_ai.input.messages": goal and json.dumps([_message({"role": "user", "content": goal})]),
            "gen_ai.output.messages": json.dumps([_message({"role": "assistant", "content": json.dumps(verdict)})]),
            "chimera.error": record.error,
        }
    )


def _known(attributes: Attributes) -> dict[str, Any]:
    return {name: value for name, value in attributes.items() if value is not None}


def _id(text: str, digits: int) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:digits]
