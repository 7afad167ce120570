"""Plans of rollouts, and the traces that they leave: every visit, try and attempt is known beforehand."""

import json
import math
from dataclasses import asdict, dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import strategies as st

from agents.roles import ROLES
from agents.visit.record import ModelCall, ToolUse
from chimera.config.roles import RolesConfig
from chimera.config.sections.rollouts import RewardConfig
from training.learning.adapter import HierarchicalTraceAdapter

# isort: split
import agentlightning as agl  # after training, which keeps LiteLLM from asking the network

WEIGHTS = RewardConfig(parsed=0.05, call_valid=0.07, tool_succeeded=0.11)
SLOT_OF = RolesConfig().slots()
SENIORS = ("HypothesisRefiner", "ProtocolDesigner")
ADAPTER = HierarchicalTraceAdapter(WEIGHTS, SENIORS)
ANSWERS = {
    "Supervisor": {"choice": "Neurologist", "justification": "it is about the outcome"},
    "ProtocolDesigner": {
        **dict.fromkeys(("design", "population", "intervention", "comparator", "outcome", "analysis"), "a phrase"),
        "sample_size": 12, "safeguards": "a board", "expected": "no",
    },
}  # fmt: skip
HYPOTHESIS = {"evidence": ['It\'s "lower" ü {x}'], "comparison": "lower", "claim": "It works", "answer": "yes"}


@dataclass(frozen=True)
class Step:
    """`kind`: answer, repaired (readable at the second attempt), unreadable, or the tool calls' (valid, ok)."""

    kind: Any


@dataclass(frozen=True)
class Try:
    steps: list[Step]
    broken: bool = False


@dataclass(frozen=True)
class VisitPlan:
    role: str
    number: int
    tries: list[Try]
    handed: str | None = None


@dataclass
class Trace:
    """Builds a rollout's spans, and keeps what each call was."""

    attempt_id: str = "at-1"
    token_ids: bool = True
    spans: list[agl.Span] = field(default_factory=list)
    calls: list[SimpleNamespace] = field(default_factory=list)
    exchanges: list[Any] = field(default_factory=list)
    records: list[dict[str, Any]] = field(default_factory=list)
    first: int = 1

    def span(self, name, attributes, sequence_id=None):
        number = self.first + len(self.spans)
        made = agl.Span.from_attributes(
            name=name,
            attributes=attributes,
            rollout_id="ro-1",
            trace_id="a-trace",
            span_id=f"{self.attempt_id}-{len(self.spans)}-{name}",
            attempt_id=self.attempt_id,
            sequence_id=number if sequence_id is None else sequence_id,
            start_time=float(number),
            end_time=number + 0.5,
        )
        self.spans.append(made)
        return made

    def visit(self, plan):
        for attempt, current in enumerate(plan.tries, 1):
            messages = opening(plan)
            ids = []
            for number, step in enumerate(current.steps, 1):
                ids.append(self.call(plan, attempt, number, step, messages, len(plan.tries) == attempt))
            if current.broken:
                self.record(plan, attempt, len(current.steps) + 1, "", None, False)
            attributes = {"role": plan.role, "model": SLOT_OF[plan.role], "visit": plan.number, "attempt": attempt}
            responses = {"agentlightning.operation.output.response_ids": ids} if ids else {}
            self.span("agentlightning.operation", attributes | responses)

    def call(self, plan, attempt, number, step, messages, last):
        name = f"{self.attempt_id}-{plan.role}-{plan.number}-{attempt}-{number}"
        answer = ANSWERS.get(plan.role, HYPOTHESIS)
        tools = step.kind if isinstance(step.kind, tuple) else None
        if tools is not None:
            calls = [{"id": f"{name}-{i}", "type": "function", "function": {"name": "search", "arguments": "{}"}}
                     for i in range(len(tools))]  # fmt: skip
            message = {"role": "assistant", "content": None, "tool_calls": calls}
        else:
            content = json.dumps(answer, ensure_ascii=False) if step.kind != "unreadable" else "no JSON, it's 'x'"
            message = {"role": "assistant", "content": content, "tool_calls": None}
        parsed = None if tools is not None else step.kind != "unreadable"
        self.record(plan, attempt, number, name, parsed, step.kind == "repaired")
        for valid, ok in tools or ():
            use = ToolUse(plan.role, plan.number, number, "search", "{}", valid, ok, (), None, 0.1, attempt)
            self.records.append({"kind": "ToolUse", **asdict(use)})
        tokens = [1000 + len(self.calls), 7], [2000 + len(self.calls)]
        self.exchanges.append((name, list(messages), message, tokens))
        immediate = {"answer": WEIGHTS.parsed}.get(step.kind, 0.0) if tools is None else math.fsum(
            WEIGHTS.parsed + WEIGHTS.call_valid * valid + WEIGHTS.tool_succeeded * ok for valid, ok in tools[:3]
        )  # fmt: skip
        self.calls.append(
            SimpleNamespace(
                role=plan.role, visit=plan.number, attempt=attempt, step=number, response_id=name,
                prompt_ids=tuple(tokens[0]), response_ids=tuple(tokens[1]), immediate=pytest.approx(immediate),
                outcome=last and step.kind != "unreadable", handed=plan.handed,
            )
        )  # fmt: skip
        messages.append({key: value for key, value in message.items() if value is not None})
        messages.append({"role": "tool" if tools else "user", "content": "{}"})
        return name

    def record(self, plan, attempt, number, name, parsed, repair):
        call = ModelCall(
            plan.role, SLOT_OF[plan.role], plan.number, number, name, "v1", "stop", 2, 1, 0.1, parsed, repair,
            None, attempt,
        )  # fmt: skip
        self.records.append({"kind": "ModelCall", **asdict(call)})

    def exchange(self, name, messages, message, tokens, sequence_id):
        """As LiteLLM writes it: nested values as Python literals."""
        raw = {
            "id": name,
            "model": "a-model",
            "weights_version": "v1",
            "messages": str(messages),
            "choices": str([{"index": 0, "message": message, "finish_reason": "stop",
                             "token_ids": tokens[1] if self.token_ids else None}]),
            "tools": str([{"type": "function", "function": {"name": "search", "parameters": {}}}]),
        }  # fmt: skip
        if self.token_ids:
            raw["prompt_token_ids"] = str(tokens[0])
        attributes = {f"llm.hosted_vllm.{key}": value for key, value in raw.items()}
        self.span("litellm_request", {"gen_ai.response.id": name}, sequence_id)
        self.span("raw_gen_ai_request", attributes, sequence_id)

    def finish(self, order, outcome=True, reward=1.5, outputs=None):
        """The exchanges in the order in which they were asked, then the visits."""
        own, self.spans = self.spans, []
        for position in order:
            self.exchange(*self.exchanges[position], self.first + len(self.spans))
        for span in own:
            span.sequence_id = self.first + len(self.spans)
            span.start_time, span.end_time = 0.0, self.first + len(self.spans) + 0.9
            self.spans.append(span)
        if outcome:
            if reward is not None:
                self.span("agentlightning.annotation", {
                    "agentlightning.reward.0.name": "reward", "agentlightning.reward.0.value": reward,
                    "agentlightning.reward.1.name": "impact", "agentlightning.reward.1.value": 0.25,
                })  # fmt: skip
            value = {"error": None, "outputs": outputs or {}, "reward": reward, "calls": self.records}
            self.span("agentlightning.object", {
                "agentlightning.object.type": "dict", "agentlightning.object.json": json.dumps(value),
            })  # fmt: skip
        return self


def opening(plan):
    payload = {"goal": "Does it's drug {lower} the rate?"}
    if plan.handed:
        payload = {"hypothesis": {**HYPOTHESIS, "answer": plan.handed}, **payload}
    return [{"role": "system", "content": ROLES[plan.role].prompt}, {"role": "user", "content": json.dumps(payload)}]


ENDINGS = [[Step("answer")], [Step("unreadable"), Step("repaired")]]
tool_steps = st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=5).map(
    lambda uses: Step(tuple((valid, valid and ok) for valid, ok in uses))
)


@st.composite
def visits_of(draw, roles):
    plans = []
    for role in draw(st.lists(st.sampled_from(roles), min_size=1, max_size=5)):
        tries = [Try(draw(st.lists(tool_steps, max_size=2)), broken=True) for _ in range(draw(st.integers(0, 1)))]
        tries.append(Try(draw(st.lists(tool_steps, max_size=2)) + draw(st.sampled_from(ENDINGS))))
        number = sum(plan.role == role for plan in plans) + 1
        plans.append(VisitPlan(role, number, tries, draw(st.sampled_from(["yes", "no", None]))))
    return plans


@st.composite
def interleavings(draw, trace):
    """Any order of the calls in which each visit's own stay in order: roles work in parallel."""
    groups = {}
    for position, call in enumerate(trace.calls):
        groups.setdefault((call.role, call.visit), []).append(position)
    turns = draw(st.permutations([key for key, positions in groups.items() for _ in positions]))
    return [groups[key].pop(0) for key in turns]


@st.composite
def rollouts(draw, roles=tuple(ROLES)):
    """Up to two attempts that failed before the last; only the last may go unreported."""
    spans, attempts = [], []
    for number in range(1, draw(st.integers(1, 3)) + 1):
        trace = Trace(f"at-{number}", first=len(spans) + 1)
        for plan in draw(visits_of(roles)):
            trace.visit(plan)
        order = draw(interleavings(trace))
        reported = number == 1 or draw(st.booleans())
        trace.finish(order, outcome=reported)
        trace.calls = [trace.calls[position] for position in order]
        spans += trace.spans
        attempts.append((reported, trace))
    last = [trace for reported, trace in attempts if reported][-1]
    return SimpleNamespace(spans=draw(st.permutations(spans)), calls=last.calls)


def linear_plan(roles, times):
    trace = Trace()
    for number in range(1, times + 1):
        for role in roles:
            trace.visit(VisitPlan(role, number, [Try([Step(((True, True),)), Step("answer")])], "yes"))
    return trace.finish(range(len(trace.calls)))
