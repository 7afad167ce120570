"""The adapter on generated traces (every visit, try and attempt known beforehand), and on traces of real rollouts."""

import asyncio
import json
import math
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.policies.events import BanditEvent
from agents.roles import ROLES
from agents.visit.record import ModelCall, ToolUse
from chimera.config.roles import JUNIORS, RolesConfig
from chimera.config.sections.rollouts import RewardConfig
from chimera.core.errors import RunError
from chimera.core.types import ResearchTask, Section
from evaluation.records.rollouts import Made, Outcome, RolloutInput, RolloutRecord
from training.learning import traces
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


# --- a plan of a rollout, and its trace


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
    """Builds spans as runner and gateway send them, and keeps what each call was."""

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
        """The exchanges in the order in which they were asked; the runner's spans come when all is over."""
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


# --- what seniors did


@given(rollouts())
def test_every_senior_call_of_the_last_reported_attempt_comes_out_once_as_it_was_sampled(rollout):
    found = ADAPTER.adapt_for_ppo(rollout.spans, SENIORS)
    assert [asdict(replace(call, asked=None)) for call in found] == [
        {"rollout_id": "ro-1", "weights_version": "v1", "asked": None, **vars(call)}
        for call in rollout.calls
        if call.role in SENIORS
    ]
    assert all(call.asked.response_id == call.response_id for call in found)


@given(rollouts())
def test_any_role_can_be_asked_for(rollout):
    found = ADAPTER.adapt_for_ppo(rollout.spans, roles=JUNIORS)
    assert [call.response_id for call in found] == [call.response_id for call in rollout.calls if call.role in JUNIORS]


def test_the_failed_answer_keeps_its_tokens_and_its_own_reward():
    trace = Trace()
    steps = [Step(((True, True), (True, False))), Step("unreadable"), Step("repaired")]
    trace.visit(VisitPlan("HypothesisRefiner", 1, [Try([Step(((True, True),))], broken=True), Try(steps)]))
    calls = ADAPTER.adapt_for_ppo(trace.finish(range(4)).spans, SENIORS)
    assert [(call.attempt, call.step, call.outcome) for call in calls] == [
        (1, 1, False), (2, 1, True), (2, 2, False), (2, 3, True),
    ]  # fmt: skip
    assert [call.immediate for call in calls] == pytest.approx([0.23, 0.23 + 0.12, 0.0, 0.0])


def test_nothing_comes_out_of_a_trace_without_an_outcome():
    trace = Trace()
    trace.visit(VisitPlan("HypothesisRefiner", 1, [Try([Step("answer")])]))
    spans = trace.finish([0], outcome=False).spans
    assert ADAPTER.adapt_for_ppo(spans, SENIORS) == ADAPTER.adapt_for_sft(spans, JUNIORS) == []
    assert len(ADAPTER.adapt(spans)) == 1
    assert ADAPTER.adapt([]) == []


def test_missing_token_ids_are_an_error_that_says_what_to_do():
    trace = Trace(token_ids=False)
    trace.visit(VisitPlan("HypothesisRefiner", 1, [Try([Step("answer")])]))
    spans = trace.finish([0]).spans
    for adapt in (ADAPTER.adapt, partial(ADAPTER.adapt_for_ppo, roles=SENIORS)):
        with pytest.raises(RunError, match=r"ro-1: model 'a-model' answered HypothesisRefiner .* without token ids"):
            adapt(spans)
    assert ADAPTER.adapt_for_ppo(spans, roles=JUNIORS) == []


def test_a_missing_exchange_is_an_error_for_seniors_and_leaves_a_junior_out():
    trace = Trace()
    trace.visit(VisitPlan("Geneticist", 1, [Try([Step("answer")])]))
    trace.visit(VisitPlan("HypothesisRefiner", 1, [Try([Step("answer")])]))
    spans = [span for span in trace.finish([0, 1]).spans if span.name != traces.EXCHANGE]
    with pytest.raises(RunError, match=r"the answer 'at-1-HypothesisRefiner-1-1-1' .* no exchange of its own"):
        ADAPTER.adapt_for_ppo(spans, SENIORS)
    assert ADAPTER.adapt_for_sft(spans, JUNIORS) == []


def test_two_answers_with_one_id_are_never_mixed_up():
    trace = Trace()
    trace.visit(VisitPlan("Geneticist", 1, [Try([Step("answer")])]))
    trace.visit(VisitPlan("Neurologist", 1, [Try([Step("answer")])]))
    for span in trace.finish([0, 1]).spans:
        for key, value in span.attributes.items():
            if key.endswith("response_ids"):
                span.attributes[key] = ["the-same"]
            elif key.endswith(".id"):
                span.attributes[key] = "the-same"
            elif isinstance(value, str):
                span.attributes[key] = value.replace("at-1-Geneticist-1-1-1", "the-same")
    assert ADAPTER.adapt_for_sft(trace.spans, JUNIORS) == []
    with pytest.raises(RunError, match="an id of its own"):
        ADAPTER.adapt_for_ppo(trace.spans, roles=JUNIORS)


# --- Agent Lightning's own adapter


def as_theirs(spans, **options):
    return agl.TracerTraceToTriplet(**options).adapt(traces.as_instrumented(spans))


@given(rollouts(roles=SENIORS))
def test_triplets_of_a_senior_only_trace_equal_agent_lightnings(rollout):
    attempt = rollout.calls[0].response_id.split("-")[1]
    spans = sorted(
        (span for span in rollout.spans if span.attempt_id == f"at-{attempt}"), key=lambda span: span.sequence_id
    )
    ours, theirs = ADAPTER.adapt(spans), as_theirs(spans, agent_match="|".join(SENIORS))
    assert sorted(ours, key=triplet_id) == sorted(theirs, key=triplet_id)
    assert [triplet_id(triplet) for triplet in ours] == [call.response_id for call in rollout.calls]
    assert [triplet.prompt["token_ids"] for triplet in ours] == [list(call.prompt_ids) for call in rollout.calls]
    assert [triplet.reward for triplet in ours] == [None] * (len(ours) - 1) + [1.5]


@given(st.integers(1, 4), st.lists(st.integers(0, 40), max_size=6))
def test_rewards_between_calls_are_matched_as_agent_lightning_matches_them(times, places):
    """Each to the last call before it that has none: a reward with no call left to take it is lost."""
    spans = linear_plan(SENIORS, times).spans
    for span in spans:
        span.sequence_id *= 10
        if span.name == traces.EXCHANGE:
            span.start_time, span.end_time = span.sequence_id, span.sequence_id + 4.0
        elif span.name != "agentlightning.operation":
            span.start_time = span.end_time = span.sequence_id
    for number, place in enumerate(places):
        attributes = {"agentlightning.reward.0.name": "reward", "agentlightning.reward.0.value": number + 2.0}
        at = place * 10 + 5 + sum(earlier == place for earlier in places[:number]) / 10
        spans.append(
            agl.Span.from_attributes(
                name="agentlightning.annotation", attributes=attributes, rollout_id="ro-1", attempt_id="at-1",
                span_id=f"reward-{number}", trace_id="a-trace", sequence_id=place * 10 + 5, start_time=at,
                end_time=at,
            )
        )  # fmt: skip
    ours = {triplet_id(triplet): triplet.reward for triplet in ADAPTER.adapt(spans)}
    assert ours == {triplet_id(one): one.reward for one in as_theirs(spans, agent_match="|".join(SENIORS))}


def triplet_id(triplet):
    return triplet.metadata["response_id"]


# --- what juniors said


@given(rollouts())
def test_conversations_are_the_last_tries_of_the_juniors_visits(rollout):
    found = ADAPTER.adapt_for_sft(rollout.spans, JUNIORS)
    expected = {(call.role, call.visit): call for call in rollout.calls if call.role in JUNIORS}
    assert {(one.role, one.visit) for one in found} == expected.keys()
    assert len(found) == len(expected)
    for one in found:
        call = expected[one.role, one.visit]
        turns = [message for message in one.messages if message["role"] == "assistant"]
        assert (
            one.messages[-1]
            == turns[-1]
            == {"role": "assistant", "content": json.dumps(HYPOTHESIS, ensure_ascii=False)}
        )
        assert len(turns) == call.step
        assert one.answer == HYPOTHESIS
        assert one.parsed == (call.immediate == WEIGHTS.parsed)
        assert (one.stance, one.quotes) == ("yes", tuple(HYPOTHESIS["evidence"]))
        assert one.weights_version == "v1"
        assert one.messages[0]["content"] == ROLES[one.role].prompt
        assert [tool["function"]["name"] for tool in one.tools] == ["search"]


# --- what the supervisor chose


SOURCES = [{"id": "17", "text": "It fell."}]


def choice(propensities):
    return {
        "research_goal": "Does it?",
        "initial_hypotheses": [{"author": name, **HYPOTHESIS} for name in JUNIORS],
        "selection": {
            "author": "Neurologist",
            "preferred": "Geneticist",
            "policy": "p1",
            "propensities": propensities,
            "sources": SOURCES,
        },
    }


def record_of(outputs, reward):
    """The record of a rollout that came to `outputs`."""
    context = (Section("RESULTS", "It fell."),)
    task = ResearchTask("t1", "Does it?", context, "yes", "generated", "", 1)
    outcome = Outcome(None, outputs, reward, {}, {}, {}, {}, {}, {}, [], 0.5)
    return RolloutRecord.of(RolloutInput.of(task, "gather", 0, 0), outcome, Made("ro-1", {}))


@pytest.mark.parametrize("propensities", [None, {"Geneticist": 0.6, "Pharmacologist": 0.1, "Neurologist": 0.3}])
def test_a_choice_is_an_event_with_its_context_action_propensities_and_reward(propensities):
    outputs = choice(propensities)
    assert ADAPTER.adapt_for_bandit(record_of(outputs, 0.7)) == BanditEvent(
        "Does it?", outputs["initial_hypotheses"], "Neurologist", "Geneticist", propensities, "p1", 0.7, SOURCES, "t1"
    )


def test_in_hindsight_each_hypothesis_earns_the_alignment_of_its_own_answer():
    """Chosen and right: 0.2 of other parts and 1.5 for the answer; the other right one the same, the wrong one 0.2."""
    outputs = choice(None)
    answers = {"Geneticist": "yes", "Pharmacologist": "no", "Neurologist": "yes"}
    outputs["initial_hypotheses"] = [{"author": name, **HYPOTHESIS, "answer": said} for name, said in answers.items()]
    adapter = HierarchicalTraceAdapter(WEIGHTS.model_copy(update={"alignment": 1.5}), SENIORS)
    record = replace(record_of(outputs, 1.7), parts={"alignment": 1.5, "impact": 0.2})
    found = adapter.adapt_for_bandit(record).hindsight
    assert found == pytest.approx({"Geneticist": 1.7, "Pharmacologist": 0.2, "Neurologist": 1.7})
    wrong = replace(record, label="no", reward=0.2, parts={"alignment": 0.0, "impact": 0.2})
    assert adapter.adapt_for_bandit(wrong).hindsight == pytest.approx(
        {"Geneticist": 0.2, "Pharmacologist": 1.7, "Neurologist": 0.2}
    )


def test_no_reward_or_no_choice_is_no_event():
    assert ADAPTER.adapt_for_bandit(record_of(choice(None), None)) is None
    assert ADAPTER.adapt_for_bandit(record_of({}, 0.7)) is None


# --- cost


class CountedSpan(agl.Span):
    """A span that counts how often anything of it is read."""

    def __getattribute__(self, name):
        if name in ("name", "attributes", "attempt_id", "sequence_id", "rollout_id"):
            COUNT[0] += 1
        return super().__getattribute__(name)


COUNT = [0]


@pytest.mark.parametrize("method", ["adapt", "adapt_for_sft", "adapt_for_ppo"])
def test_reads_grow_linearly_with_spans(method):
    per_span = []
    for times in (4, 16, 64):
        spans = [CountedSpan(**dict(span)) for span in linear_plan(tuple(ROLES), times).spans]
        COUNT[0] = 0
        getattr(ADAPTER, method)(spans, *(() if method == "adapt" else (SENIORS,)))
        per_span.append(COUNT[0] / len(spans))
    assert max(per_span) <= 1.05 * min(per_span)


# --- a real rollout


@pytest.fixture(scope="module")
def real(scripted_openai, tmp_path_factory):
    """One rollout through runner, gateway and store: a repaired refiner, and a designer tried again after errors."""
    from rich.console import Console

    from chimera.config.tree import Config
    from chimera.data.tasks import Dataset
    from chimera.processes import forks
    from chimera.run.directory import Run
    from chimera.serving.process import serve
    from training.lab.lab import Lab
    from training.watch.metrics import Metrics
    from training.watch.view import make_view

    server, begun = scripted_openai, []

    def script(request):
        opening = request["messages"][-1]["role"] == "user"
        if server.role(request) == "HypothesisRefiner" and request["messages"][-1]["role"] == "tool":
            return 'no JSON yet, it\'s "{late}"'
        if server.role(request) == "ProtocolDesigner" and opening:
            begun.append(request)
        elif server.role(request) == "ProtocolDesigner" and len(begun) == 1:
            return 503, "overloaded"
        return None

    server.hooks[:] = [script]
    keys = ("junior", "supervisor", "senior", "refiner", "board", "principal", "judge")
    model = {"kind": "endpoint", "base_url": server.url, "model": "scripted"}
    folder = tmp_path_factory.mktemp("runs")
    config = Config.model_validate(
        {
            "runs_dir": folder,
            "models": dict.fromkeys(keys, model),
            "rollouts": {"runners": 1, "exploration": 0},
        }
    )
    context = (Section("RESULTS", "The rate of it was lower (p=0.01) in this group."),)
    task = ResearchTask("t1", "Does it lower the rate?", context, "yes", "generated", "", 1)
    dataset = Dataset((task,), (), (), "generated", "test")

    async def scenario():
        forks.prepare()
        with (
            Run.create("run", config) as run,
            serve(config.models, config.serving, {}, log_file=run.path / "models.log") as servers,
            (run.path / "view.txt").open("w") as output,
        ):
            view = make_view(Console(file=output), 1)
            async with Lab(run, config, dataset, servers, {}, view, Metrics(run)) as lab:
                (episode,) = [one async for one in lab.rollouts([RolloutInput.of(task, "ppo", 0, 0)])]
                record = episode.record
                return record, traces.read(run.path / record.trace)

    record, spans = asyncio.run(scenario())
    return SimpleNamespace(
        record=record, spans=spans, server=server, adapter=HierarchicalTraceAdapter(config.reward, SENIORS)
    )


def test_a_real_trace_gives_every_senior_call_with_the_servers_own_token_ids(real):
    assert (real.record.status, real.record.error) == ("succeeded", None)
    calls = real.adapter.adapt_for_ppo(real.spans, SENIORS)
    assert [(call.role, call.attempt, call.step, call.outcome, call.handed) for call in calls] == [
        ("HypothesisRefiner", 1, 1, True, "yes"),
        ("HypothesisRefiner", 1, 2, False, "yes"),
        ("HypothesisRefiner", 1, 3, True, "yes"),
        ("ProtocolDesigner", 1, 1, False, "yes"),
        ("ProtocolDesigner", 2, 1, True, "yes"),
        ("ProtocolDesigner", 2, 2, True, "yes"),
    ]
    assert [call.immediate for call in calls] == pytest.approx([0.15, 0.0, 0.0, 0.15, 0.15, 0.05])
    for call in calls:
        prompt_ids, response_ids = real.server.tokens[call.response_id]
        assert (call.prompt_ids, call.response_ids) == (tuple(prompt_ids), tuple(response_ids))


def test_a_real_traces_triplets_equal_agent_lightnings(real):
    triplets = real.adapter.adapt(real.spans)
    assert triplets == as_theirs(real.spans, agent_match="|".join(SENIORS))
    assert [triplet.reward for triplet in triplets] == [None] * 5 + [real.record.reward]


def test_a_real_trace_gives_the_juniors_conversations_and_the_choice(real):
    conversations = real.adapter.adapt_for_sft(real.spans, JUNIORS)
    assert {one.role for one in conversations} == set(JUNIORS)
    for one in conversations:
        assert [message["role"] for message in one.messages] == ["system", "user", "assistant", "tool", "assistant"]
        assert one.answer["answer"] in ("yes", "maybe")
        assert one.parsed
        assert one.tools[0]["function"]["name"] == "literature_search"
    event = real.adapter.adapt_for_bandit(real.record)
    assert (event.goal, event.author, event.reward) == ("Does it lower the rate?", "Pharmacologist", real.record.reward)
