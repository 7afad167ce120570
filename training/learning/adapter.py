"""Makes three data sets from a rollout: conversations to imitate, calls with token ids, and the logged choice.

A rollout may have several attempts. Only calls of the last attempt that reported an outcome count, and all of them are
kept. An unreadable answer that was repaired, and calls of a visit that was repeated after a server's failure, have an
immediate reward but no share in the rollout's reward.

Our operation spans name the roles, and calls are joined to them by response id. Each span is read a fixed number of
times, so the cost is linear in the number of spans.
"""

import math
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import agentlightning as agl

from agents.findings import COMBINED, SEARCH_AGAIN, Findings
from agents.policies.events import BanditEvent
from agents.roles import ROLES
from agents.supervisor import VOTE
from agents.visit.prompting import payload_of
from agents.visit.react import read_answer
from agents.visit.record import CallRecord, ModelCall, ToolUse
from chimera.config.sections.rollouts import RewardConfig
from chimera.core.errors import RunError
from chimera.serving.client import Completion
from evaluation.records.rollouts import RolloutRecord
from evaluation.scores.rewards import COUNTED_CALLS, call_reward, last_attempts
from evaluation.traces.calls import TracedCall, last_outcome, model_calls, visits
from evaluation.traces.spans import SpanLike
from training.learning.experience import Call, Conversation

_Visit = tuple[str, int]
_Step = tuple[str, int, int, int]


class HierarchicalTraceAdapter(agl.TraceAdapter[list[agl.Triplet]]):
    """Reads the traces of any number of rollouts. The caller names the roles whose calls it wants.

    Args:
        roles: The roles for `adapt`, which Agent Lightning calls with only a trace.
    """

    def __init__(self, reward: RewardConfig, roles: Collection[str] = ()) -> None:
        self._reward = reward
        self._roles = tuple(roles)

    def adapt(self, source: Sequence[agl.Span], /) -> list[agl.Triplet]:
        """The calls of the adapter's roles as Agent Lightning's triplets, in the order of the calls.

        As in Agent Lightning, each emitted reward belongs to the last call before it that has no reward yet. So a
        rollout's only reward belongs to the last of these calls.

        Raises:
            RunError: A call has no token ids.
        """
        attempt_id = _last_attempt(source)
        calls = _token_calls(source, self._roles, attempt_id) if attempt_id else []
        rewards = _reward_per_call(calls, source, attempt_id)
        return [_triplet(call, rewards.get(call.response_id)) for call in calls]

    def adapt_for_sft(self, spans: Sequence[SpanLike], roles: Collection[str]) -> list[Conversation]:
        """The conversations of `roles`, one for each visit with a readable answer.

        The last attempt of a visit counts. A visit whose answer is not in the trace is left out.
        """
        reported = last_outcome(spans)
        if reported is None:
            return []
        attempt_id, outcome = reported
        records, _ = _records(outcome)
        tries: dict[_Visit, list[TracedCall]] = {}
        last = {record.response_id for record in last_attempts([*records.values()])}
        for call in model_calls(spans, roles=roles, attempt_id=attempt_id):
            if call.response_id in last:
                tries.setdefault((call.role, call.visit), []).append(call)
        return [
            _conversation(calls, record)
            for calls in tries.values()
            if (record := records.get(calls[-1].response_id)) is not None and record.parsed
        ]

    def adapt_for_ppo(self, spans: Sequence[SpanLike], roles: Collection[str]) -> list[Call]:
        """The calls of `roles` as token-exact actions with their immediate rewards, in the order of the calls.

        An answer earns `parsed` if it was readable at the first attempt. A request for tools earns
        `rewards.call_reward` of each of its tool calls (of the first three). What a role's second model answered
        (`society.fallback`) is left out.

        Raises:
            RunError: A call has no token ids, or its exchange is not in the trace.
        """
        reported = last_outcome(spans)
        if reported is None:
            return []
        attempt_id, outcome = reported
        records, uses = _records(outcome)
        last = {record.response_id for record in last_attempts([*records.values()])}
        calls: list[Call] = []
        players = {str(span.attributes["role"]): span.attributes.get("model") for span, _ in visits(spans)}
        others = {name for name, record in records.items() if record.model != players.get(record.role, record.model)}
        for call in _token_calls(spans, roles, attempt_id, others):
            if (record := records.get(call.response_id)) is None:
                raise RunError(
                    f"rollout {spans[0].rollout_id}: its outcome does not mention the answer "
                    f"{call.response_id!r} to {call.role}, so its reward is not known: leave this rollout out"
                )
            finished = call.response_id in last
            calls.append(
                Call(
                    rollout_id=spans[0].rollout_id,
                    role=call.role,
                    visit=call.visit,
                    attempt=call.attempt,
                    step=record.step,
                    response_id=call.response_id,
                    prompt_ids=tuple(call.prompt_ids or ()),
                    response_ids=tuple(call.response_ids or ()),
                    weights_version=call.weights_version,
                    immediate=self._immediate(record, uses[_step(record)]),
                    outcome=finished and record.parsed is not False,
                    handed=_handed(call.messages),
                    asked=call,
                )
            )
        return calls

    def adapt_for_bandit(self, record: RolloutRecord) -> list[BanditEvent]:
        """The choices with their reward: one among hypotheses, or those whether juniors search once more."""
        if record.reward is None or "selection" not in record.outputs:
            return []
        selection = record.outputs["selection"]
        goal, task_id = record.outputs["research_goal"], record.task_id
        common: dict[str, Any] = {"goal": goal, "task_id": task_id, "reward": record.reward}
        if selection["policy"] == COMBINED:
            choices = record.outputs.get("choices", ())
            return [BanditEvent(hypotheses=SEARCH_AGAIN, sources=(), **common, **choice) for choice in choices]
        if selection["policy"] == VOTE:
            return []
        aligned = record.parts.get("alignment")
        hindsight = None
        if aligned is not None:
            rest, weight = record.reward - aligned, self._reward.alignment
            hindsight = {
                hypothesis["author"]: rest + weight * (hypothesis["answer"] == record.label)
                for hypothesis in record.outputs["initial_hypotheses"]
            } | {selection["author"]: record.reward}
        common |= {name: selection[name] for name in ("author", "preferred", "propensities", "policy", "sources")}
        return [BanditEvent(hypotheses=record.outputs["initial_hypotheses"], hindsight=hindsight, **common)]

    def _immediate(self, record: ModelCall, uses: Sequence[ToolUse]) -> float:
        if record.parsed is None:
            return math.fsum(call_reward(use, self._reward) for use in uses[:COUNTED_CALLS])
        return self._reward.parsed if record.parsed and not record.repair else 0.0


def _records(outcome: Mapping[str, Any]) -> tuple[dict[str, ModelCall], dict[_Step, list[ToolUse]]]:
    """The outcome's records: model calls by response id, tool calls by the model call that asked for them."""
    calls: dict[str, ModelCall] = {}
    uses: dict[_Step, list[ToolUse]] = defaultdict(list)
    for data in outcome["calls"]:
        fields = {key: value for key, value in data.items() if key != "kind"}
        if data["kind"] == ModelCall.__name__:
            record = ModelCall(**fields)
            calls[record.response_id] = record
        else:
            use = ToolUse(**fields)
            uses[_step(use)].append(use)
    return calls, uses


def _step(record: CallRecord) -> _Step:
    return record.role, record.visit, record.attempt, record.step


def _number(span: SpanLike, name: str) -> int:
    value = span.attributes.get(name, 1)
    assert isinstance(value, int)
    return value


def _last_attempt(spans: Sequence[SpanLike]) -> str | None:
    """The last attempt with an outcome. In a trace without outcomes, such as another program's: the last attempt."""
    reported = last_outcome(spans)
    if reported is not None:
        return reported[0]
    last = max(spans, key=lambda span: span.sequence_id, default=None)
    return None if last is None else last.attempt_id


def _token_calls(
    spans: Sequence[SpanLike], roles: Collection[str], attempt_id: str, others: Collection[str] = ()
) -> list[TracedCall]:
    """All calls of `roles` in one attempt, without responses of `others`. Each must have token ids."""
    calls = [call for call in model_calls(spans, roles=roles, attempt_id=attempt_id) if call.response_id not in others]
    traced = {call.response_id for call in calls}
    for span, responses in visits(spans):
        if span.attempt_id == attempt_id and span.attributes["role"] in roles:
            for response in responses:
                if response not in traced and response not in others:
                    raise RunError(
                        f"rollout {span.rollout_id}: the answer {response!r} to {span.attributes['role']} has no "
                        "exchange of its own in the trace: leave this rollout out, and if there are many, look "
                        f"whether the server of model {span.attributes.get('model')!r} gives every answer one"
                    )
    for call in calls:
        if call.prompt_ids is None or call.response_ids is None:
            raise RunError(
                f"rollout {spans[0].rollout_id}: model {call.model!r} answered {call.role} ({call.response_id}) "
                "without token ids, and text must not be tokenised again: serve it with kind 'embedded', or with a "
                "server that returns token ids when asked (vLLM does, with return_token_ids)"
            )
    return calls


def _reward_per_call(
    calls: Sequence[TracedCall], spans: Sequence[agl.Span], attempt_id: str | None
) -> dict[str, float]:
    """Reward by call: each reward in turn belongs to the last call before it without one, by the store's numbering."""
    emitted = [
        (span.sequence_id, value)
        for span in spans
        if span.attempt_id == attempt_id
        and span.name.startswith("agentlightning.")
        and (value := agl.get_reward_value(span)) is not None
    ]
    rewards: dict[str, float] = {}
    without: list[str] = []
    remaining = iter(calls)
    following = next(remaining, None)
    for number, value in sorted(emitted):
        while following is not None and following.sequence_id < number:
            without.append(following.response_id)
            following = next(remaining, None)
        if without:
            rewards[without.pop()] = value
    return rewards


def _triplet(call: TracedCall, reward: float | None) -> agl.Triplet:
    answer = without_nothing({**call.choice["message"], "finish_reason": call.choice.get("finish_reason")})
    return agl.Triplet(
        prompt={
            "token_ids": call.prompt_ids,
            "raw_content": [without_nothing(message) for message in call.messages],
            "image_urls": [],
        },
        response={"token_ids": call.response_ids, "raw_content": [answer]},
        reward=reward,
        metadata={
            "request": {"model": call.model},
            "response": {"id": call.response_id},
            "response_id": call.response_id,
            "agent_name": call.role,
        },
    )


def _conversation(calls: Sequence[TracedCall], record: ModelCall) -> Conversation:
    """The conversation that ended with the last of `calls`, whose answer was readable according to `record`."""
    last = calls[-1]
    content = last.choice["message"].get("content") or ""
    answer = {"role": "assistant", "content": content}
    completion = Completion(answer, content, (), record.finish_reason, 0, 0, last.response_id, last.weights_version)
    read = read_answer(ROLES[last.role], completion, last.messages)
    return Conversation(
        role=last.role,
        visit=last.visit,
        messages=[*last.messages, answer],
        tools=calls[0].tools,
        answer=read.model_dump(),
        parsed=not record.repair,
        weights_version=last.weights_version,
        stance=None if isinstance(read, Findings) else read.stance,  # A finding says nothing to the question.
        quotes=read.quotes,
    )


def _handed(messages: Sequence[dict[str, Any]]) -> str | None:
    """The answer of the hypothesis in a prompt's first message; None without one, or if the prompt is not ours."""
    try:
        hypothesis = payload_of(messages).get("hypothesis", {})
    except (ValueError, AttributeError):
        return None
    return hypothesis.get("answer")


def without_nothing(value: Any) -> Any:
    """`value` without None, empty lists and empty objects, which span attributes cannot hold."""
    if isinstance(value, dict):
        entries = {key: without_nothing(item) for key, item in value.items()}
        return {key: item for key, item in entries.items() if item not in (None, [], {})}
    return [without_nothing(item) for item in value] if isinstance(value, list) else value
