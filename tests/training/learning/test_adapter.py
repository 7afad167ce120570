"""The adapter on generated traces (every visit, try and attempt known beforehand), and on traces of real rollouts."""

import asyncio
import json
from dataclasses import asdict, replace
from functools import partial
from types import SimpleNamespace

import agl_traces as traces
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lab_kit import collect, config_for, open_lab, task
from trace_kit import ADAPTER, HYPOTHESIS, SENIORS, WEIGHTS, Step, Trace, Try, VisitPlan, linear_plan, rollouts

from agents.findings import search_cues
from agents.policies.events import BanditEvent
from agents.roles import ROLES
from chimera.config.roles import JUNIORS
from chimera.config.sections.society import SocietyConfig
from chimera.core.errors import RunError
from chimera.core.types import ResearchTask, Section
from evaluation.records.rollouts import Outcome, RolloutInput, RolloutRecord
from training.learning.adapter import HierarchicalTraceAdapter

# isort: split
import agentlightning as agl  # after training, which keeps LiteLLM from asking the network
from message_kit import refused


@given(rollouts())
def test_every_call_of_any_roles_in_the_last_reported_attempt_comes_out_once_as_it_was_sampled(rollout):
    for roles in (SENIORS, JUNIORS):
        found = ADAPTER.adapt_for_ppo(rollout.spans, roles=roles)
        assert [asdict(replace(call, asked=None)) for call in found] == [
            {"rollout_id": "ro-1", "weights_version": "v1", "asked": None, **vars(call)}
            for call in rollout.calls
            if call.role in roles
        ]
        assert all(call.asked.response_id == call.response_id for call in found)


def test_the_failed_answer_keeps_its_tokens_and_its_own_reward():
    trace = Trace()
    steps = [Step(((True, True), (True, False))), Step("unreadable"), Step("repaired")]
    trace.visit(VisitPlan("HypothesisRefiner", 1, [Try([Step(((True, True),))], broken=True), Try(steps)]))
    calls = ADAPTER.adapt_for_ppo(trace.finish(range(4)).spans, SENIORS)
    assert [(call.attempt, call.step, call.outcome) for call in calls] == [
        (1, 1, False), (2, 1, True), (2, 2, False), (2, 3, True),
    ]  # fmt: skip
    assert [call.immediate for call in calls] == pytest.approx([0.23, 0.23 + 0.12, 0.0, 0.0])


def test_what_a_second_model_answered_is_nobody_s_action_and_needs_no_token_ids():
    trace = Trace()
    steps = [Step("unreadable"), Step("unreadable"), Step("repaired")]
    trace.visit(VisitPlan("HypothesisRefiner", 1, [Try(steps)]))
    trace.records[-1]["model"] = "strong"
    name, messages, message, _ = trace.exchanges[-1]
    trace.exchanges[-1] = name, messages, message, (None, None)
    calls = ADAPTER.adapt_for_ppo(trace.finish(range(3)).spans, SENIORS)
    assert [(call.step, call.outcome) for call in calls] == [(1, False), (2, False)]
    (conversation,) = ADAPTER.adapt_for_sft(trace.spans, SENIORS)
    assert len(conversation.messages) == 7


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
        with refused(RunError, "ro-1", "'a-model'", "HypothesisRefiner", "kind 'embedded'", "return_token_ids"):
            adapt(spans)
    assert ADAPTER.adapt_for_ppo(spans, roles=JUNIORS) == []


def test_a_missing_exchange_is_an_error_for_seniors_and_leaves_a_junior_out():
    trace = Trace()
    trace.visit(VisitPlan("Geneticist", 1, [Try([Step("answer")])]))
    trace.visit(VisitPlan("HypothesisRefiner", 1, [Try([Step("answer")])]))
    spans = [span for span in trace.finish([0, 1]).spans if span.name != traces.EXCHANGE]
    with refused(RunError, "ro-1", "'at-1-HypothesisRefiner-1-1-1'", "HypothesisRefiner", "'refiner'"):
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
    with refused(RunError, "ro-1", "'the-same'", "Geneticist", "'junior'"):
        ADAPTER.adapt_for_ppo(trace.spans, roles=JUNIORS)


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
    return RolloutRecord.of(RolloutInput.of(task, "gather", 0, 0), outcome, "ro-1", {})


@pytest.mark.parametrize("propensities", [None, {"Geneticist": 0.6, "Pharmacologist": 0.1, "Neurologist": 0.3}])
def test_a_choice_is_an_event_with_its_context_action_propensities_and_reward(propensities):
    outputs = choice(propensities)
    hypotheses = outputs["initial_hypotheses"]
    assert ADAPTER.adapt_for_bandit(record_of(outputs, 0.7)) == [
        BanditEvent("Does it?", hypotheses, "Neurologist", "Geneticist", propensities, "p1", 0.7, SOURCES, "t1")
    ]


def test_each_choice_whether_juniors_search_once_more_is_an_event_with_the_rollouts_reward():
    cues = search_cues([], 1, 2)
    fields = {"preferred": "again", "policy": "supervisor", "propensities": {"again": 0.75, "combined": 0.25}}
    chosen = [{"author": author, **fields, "cues": cues} for author in ("again", "combined")]
    outputs = {**choice(None), "choices": chosen}
    outputs["selection"] = {**outputs["selection"], "author": "combined", "policy": "combined"}
    events = ADAPTER.adapt_for_bandit(record_of(outputs, 0.7))
    assert [(event.author, event.reward, event.cues) for event in events] == [
        ("again", 0.7, cues),
        ("combined", 0.7, cues),
    ]
    assert [event.less(0.2).reward for event in events] == pytest.approx([0.5, 0.5])
    del outputs["choices"]
    assert ADAPTER.adapt_for_bandit(record_of(outputs, 0.7)) == []


def test_in_hindsight_each_hypothesis_earns_the_alignment_of_its_own_answer():
    """Chosen and right: 0.2 of other parts and 1.5 for the answer; the other right one the same, the wrong one 0.2."""
    outputs = choice(None)
    answers = {"Geneticist": "yes", "Pharmacologist": "no", "Neurologist": "yes"}
    outputs["initial_hypotheses"] = [{"author": name, **HYPOTHESIS, "answer": said} for name, said in answers.items()]
    adapter = HierarchicalTraceAdapter(WEIGHTS.model_copy(update={"alignment": 1.5}), SENIORS)
    record = replace(record_of(outputs, 1.7), parts={"alignment": 1.5, "impact": 0.2})
    (event,) = adapter.adapt_for_bandit(record)
    assert event.hindsight == pytest.approx({"Geneticist": 1.7, "Pharmacologist": 0.2, "Neurologist": 1.7})
    assert event.less(0.2).hindsight == pytest.approx({"Geneticist": 1.5, "Pharmacologist": 0.0, "Neurologist": 1.5})
    wrong = replace(record, label="no", reward=0.2, parts={"alignment": 0.0, "impact": 0.2})
    (event,) = adapter.adapt_for_bandit(wrong)
    assert event.hindsight == pytest.approx({"Geneticist": 0.2, "Pharmacologist": 1.7, "Neurologist": 0.2})


def test_no_reward_or_no_choice_is_no_event():
    assert ADAPTER.adapt_for_bandit(record_of(choice(None), None)) == []
    assert ADAPTER.adapt_for_bandit(record_of({}, 0.7)) == []
    voted = choice(None)
    voted["selection"] = {**voted["selection"], "policy": "vote"}
    assert ADAPTER.adapt_for_bandit(record_of(voted, 0.7)) == []


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
    for times in (4, 32):
        spans = [CountedSpan(**dict(span)) for span in linear_plan(tuple(ROLES), times).spans]
        COUNT[0] = 0
        getattr(ADAPTER, method)(spans, *(() if method == "adapt" else (SENIORS,)))
        per_span.append(COUNT[0] / len(spans))
    assert max(per_span) <= 1.05 * min(per_span)


@pytest.fixture(scope="module")
def real(scripted_openai, tmp_path_factory):
    """One rollout of a lab: a repaired refiner, and a designer that is tried again after an error."""
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
    folder = tmp_path_factory.mktemp("runs")
    config = config_for(server.url, folder, concurrency=1, retries=0).model_copy(update={"society": SocietyConfig()})

    async def scenario():
        async with open_lab(server.url, folder, [task("it")], config=config) as lab:
            record = (await collect(lab, [task("it")], "ppo"))["it"]
        return record, traces.read(lab.run.path / record.trace)

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
        prompt_ids, response_ids = real.server.tokens_of(call.response_id)
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
    (event,) = real.adapter.adapt_for_bandit(real.record)
    assert (event.goal, event.author, event.reward) == ("Does it lower the rate?", "Pharmacologist", real.record.reward)
