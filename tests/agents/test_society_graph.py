import asyncio
import copy
import itertools
import json
from collections import defaultdict
from contextlib import contextmanager
from contextvars import ContextVar
from typing import get_type_hints

import pytest
from langgraph.errors import GraphRecursionError
from langgraph.runtime import Runtime
from message_kit import refused

import agents.society as society_module
from agents.context import RunContext, SupervisorChoice
from agents.graph import step_limit
from agents.nodes import NODES
from agents.roles import ROLES
from agents.society import Start
from agents.state import ResearchState
from agents.visit.prompting import payload_of
from agents.visit.record import no_observer, no_operation
from agents.visit.sources import sources_seen
from chimera.config.roles import JUNIORS, RolesConfig
from chimera.config.sections.society import SocietyConfig
from chimera.core.errors import ModelError, RoleError
from chimera.core.types import Brief, ResearchTask, Section

MAJOR = {"issues": ["redo it"], "severity": "MAJOR", "verdict": "REVISE"}
CRITICAL = {"issues": ["unsafe"], "severity": "CRITICAL", "verdict": "REVISE"}
SEARCH = "literature_search"

COMMON = {"messages", "sender", "turn_count"}
OWN_FIELDS = {
    **{junior: {"initial_hypotheses"} for junior in JUNIORS},
    "Supervisor": {"selected_hypothesis", "supervisor_justification", "selection"},
    "HypothesisRefiner": {"refined_hypothesis", "unreviewed_hypothesis", "critical_revisions"},
    "ProtocolDesigner": {"experimental_protocol", "major_revisions"},
    "PeerReviewer": {"peer_review"},
    "SafetyOfficer": {"safety_review"},
    "PrincipalInvestigator": {"final_protocol", "final_answer", "final_decision", "final_veto", "final_rationale"},
}
WRITTEN = {**{role: COMMON | fields for role, fields in OWN_FIELDS.items()}, "Evaluation": {"final_evaluation"}}
"""The fields that each node writes."""


async def test_every_field_is_written_and_by_its_writer_only(society_kit):
    model = society_kit.Model(PeerReviewer=[CRITICAL], SafetyOfficer=[society_kit.approval, MAJOR])
    written = defaultdict(set)
    async for node, update in society_kit.make(model).stream(society_kit.brief):
        written[node] |= set(update)
    assert written == WRITTEN


async def test_a_run_without_revisions(society_kit):
    answers = society_kit.answers
    state = await society_kit.make(society_kit.Model()).run(society_kit.brief)
    absent = {"options", "confirmation", "advice", "debates", "searches", "choices"}
    assert set(state) == {"research_goal"}.union(*WRITTEN.values()) == set(get_type_hints(ResearchState)) - absent
    assert state["research_goal"] == society_kit.brief.goal
    assert state["initial_hypotheses"] == [{"author": name, **answers[name]} for name in JUNIORS]
    assert state["selected_hypothesis"] == {"author": "Pharmacologist", **answers["Pharmacologist"]}
    assert state["supervisor_justification"] == answers["Supervisor"]["justification"]
    assert state["refined_hypothesis"] == answers["HypothesisRefiner"]
    assert state["final_protocol"] == {**answers["ProtocolDesigner"], "amendments": ["report harms"]}
    assert (state["final_answer"], state["final_decision"], state["final_veto"]) == ("yes", "GO", None)
    assert state["final_rationale"] == "the evidence says so"
    assert (state["turn_count"], state["sender"]) == (9, "PrincipalInvestigator")
    assert (state["critical_revisions"], state["major_revisions"]) == (0, 0)
    assert "final_rationale" in state["final_evaluation"]["fields"]
    json.dumps(state)


@pytest.mark.parametrize("calls", list(itertools.product((0, 1, 3), repeat=3)))
async def test_the_supervisor_joins_once_whatever_the_juniors_tool_calls(society_kit, calls):
    """With an edge from each junior, or one tool node for all, it would run once per arrival or orphan tool calls."""
    script = {
        name: [[(SEARCH, {"query": f"{name}{number}"})] for number in range(count)]
        for name, count in zip(JUNIORS, calls, strict=True)
    }
    model = society_kit.Model(**script)
    toolbox = society_kit.Toolbox()
    society = society_kit.make(model, toolbox, max_tool_calls=3)
    nodes = [node async for node, _ in society.stream(society_kit.brief)]
    assert sorted(nodes[:3]) == sorted(JUNIORS)
    assert nodes[3:] == [*list(ROLES)[3:], "Evaluation"]
    assert len(toolbox.calls) == sum(calls)
    (request,) = model.of("Supervisor")
    assert [h["author"] for h in payload_of(request.messages)["hypotheses"]] == list(JUNIORS)
    for name, count in zip(JUNIORS, calls, strict=True):
        last = model.of(name)[-1].messages
        answered = [message["tool_call_id"] for message in last if message["role"] == "tool"]
        assert answered == [call["id"] for message in last for call in message.get("tool_calls", ())]
        assert len(answered) == count


async def test_juniors_work_at_the_same_time(society_kit):
    arrived, all_here = [], asyncio.Event()

    async def wait_for_the_others():
        arrived.append(None)
        if len(arrived) == 3:
            all_here.set()
        await all_here.wait()
        return society_kit.answers["Geneticist"]

    model = society_kit.Model(**{name: [wait_for_the_others] for name in JUNIORS})
    state = await society_kit.make(model, timeout_s=6000).run(society_kit.brief)
    assert len(state["initial_hypotheses"]) == 3


async def test_messages_are_private_to_each_role(society_kit):
    model = society_kit.Model(**{name: [[(SEARCH, {"query": "shared"})], f"secret of {name}"] for name in JUNIORS})
    state = await society_kit.make(model).run(society_kit.brief)
    assert set(state["messages"]) == set(ROLES)
    for name in JUNIORS:
        holders = {role for role, channel in state["messages"].items() if f"secret of {name}" in json.dumps(channel)}
        readers = {request.role for request in model.requests if f"secret of {name}" in json.dumps(request.messages)}
        assert holders == readers == {name}
        kinds = " ".join(message["role"] for message in state["messages"][name])
        assert kinds == "system user assistant tool assistant user assistant"


@pytest.mark.parametrize("evidence", ["retrieved", "given"])
async def test_what_each_role_is_told(society_kit, evidence):
    model = society_kit.Model(
        Geneticist=[[(SEARCH, {"query": "a"})]],
        Neurologist=[[(SEARCH, {"query": "a"}), (SEARCH, {"query": "b"})]],
        PeerReviewer=[CRITICAL],
    )
    await society_kit.make(model, evidence=evidence).run(society_kit.brief)
    given = ["sources"] if evidence == "given" else []
    payloads = {role: [payload_of(r.messages) for r in model.of(role)] for role in ROLES}
    keys = {role: [list(payload) for payload in visits] for role, visits in payloads.items()}
    assert keys["Geneticist"] == [[*given, "goal"]] * 2
    assert keys["Supervisor"] == [["hypotheses", "goal"]]
    assert keys["HypothesisRefiner"] == [
        [*given, "hypothesis", "justification", "goal"],
        [*given, "hypothesis", "justification", "feedback", "goal"],
    ]
    assert keys["ProtocolDesigner"] == [["hypothesis", "goal"], ["hypothesis", "feedback", "goal"]]
    assert keys["PeerReviewer"] == [["sources", "hypothesis", "protocol", "goal"]] * 2
    assert keys["SafetyOfficer"] == [["protocol", "hypothesis", "peer_review", "goal"]] * 2
    assert keys["PrincipalInvestigator"] == [
        ["hypothesis", "protocol", "peer_review", "safety_review", "revisions", "goal"]
    ]
    assert list(payloads["HypothesisRefiner"][0]["hypothesis"]) == ["evidence", "comparison", "claim", "answer"]
    assert payloads["HypothesisRefiner"][1]["feedback"] == {"peer_review": CRITICAL}
    assert payloads["HypothesisRefiner"][1]["hypothesis"] == society_kit.answers["HypothesisRefiner"]
    assert payloads["PrincipalInvestigator"][0]["revisions"] == {"used": 1, "allowed": 2}
    abstract = {"id": "17", "text": "METHODS: A trial. RESULTS: It fell."}
    if evidence == "given":
        assert payloads["Geneticist"][0]["sources"] == [abstract]
    seen = {source["id"] for source in payloads["PeerReviewer"][0]["sources"]}
    assert seen == ({"17", "a", "b"} if evidence == "given" else {"a", "b"})
    assert len(payloads["PeerReviewer"][0]["sources"]) == len(seen)


def test_sources_are_unique_but_two_excerpts_of_one_article_are_two():
    def tool(*passages):
        return {"role": "tool", "content": json.dumps({"results": [{"id": i, "text": t} for i, t in passages]})}

    messages = {
        "Geneticist": [tool(("1", "first half"), ("2", "other")), {"role": "assistant", "content": '{"sources": [1]}'}],
        "Neurologist": [tool(("1", "second half"), ("2", "other")), {"role": "tool", "content": '{"error": "late"}'}],
    }
    assert [tuple(source.values()) for source in sources_seen(messages)] == [
        ("1", "first half"),
        ("2", "other"),
        ("1", "second half"),
    ]


async def test_a_brief_without_an_abstract_gives_no_sources(society_kit):
    model = society_kit.Model()
    state = await society_kit.make(model, evidence="given").run(Brief("1", "Why?", ()))
    assert list(payload_of(model.of("Geneticist")[0].messages)) == ["goal"]
    assert sources_seen(state["messages"]) == []


async def test_the_answer_key_is_in_no_prompt(society_kit):
    task = ResearchTask("1", "Why?", (Section("RESULTS", "It fell."),), "maybe", "pubmedqa", "CONCLUSION-OF-THE-PAPER")
    model = society_kit.Model()
    state = await society_kit.make(model, evidence="given").run(task.brief())
    assert "CONCLUSION" not in json.dumps([request.messages for request in model.requests])
    assert "CONCLUSION" not in json.dumps(state)
    assert '"label"' not in json.dumps([payload_of(request.messages) for request in model.requests])


async def test_a_revision_starts_from_a_fresh_prompt_and_the_channel_keeps_both(society_kit):
    records = []
    model = society_kit.Model(ProtocolDesigner=[[(SEARCH, {"query": "a"})]], SafetyOfficer=[MAJOR])
    state = await society_kit.make(model, observe=records.append).run(society_kit.brief)
    first, answered, revision = model.of("ProtocolDesigner")
    assert len(revision.messages) == len(first.messages) == 2
    assert payload_of(revision.messages)["feedback"] == {"safety_review": MAJOR}
    assert state["messages"]["ProtocolDesigner"][: len(answered.messages)] == answered.messages
    assert state["messages"]["ProtocolDesigner"][5:7] == revision.messages
    visits = [record.visit for record in records if record.role == "ProtocolDesigner"]
    assert visits == [1, 1, 1, 2]
    assert state["major_revisions"] == 1
    assert state["turn_count"] == 12


async def test_revisions_stop_at_the_caps_and_the_run_fits_the_step_limit(society_kit, monkeypatch):
    caps = {"max_critical_revisions": 2, "max_major_revisions": 0}
    model = society_kit.Model(SafetyOfficer=[CRITICAL] * 99)
    state = await society_kit.make(model, **caps).run(society_kit.brief)
    assert state["critical_revisions"] == 2
    assert state["turn_count"] == 9 + 2 * 4
    assert step_limit(SocietyConfig(**caps)) == 17
    # The limit is tight: a graph that took one step more than its caps allow would be stopped.
    monkeypatch.setattr(society_module, "step_limit", lambda config: step_limit(config) - 1)
    with pytest.raises(GraphRecursionError):
        await society_kit.make(society_kit.Model(SafetyOfficer=[CRITICAL] * 99), **caps).run(society_kit.brief)


@pytest.mark.parametrize("major", [2, 0])
async def test_major_revisions_stop_at_their_cap(society_kit, major):
    model = society_kit.Model(PeerReviewer=[MAJOR] * 99)
    caps = {"max_critical_revisions": 9, "max_major_revisions": major}
    state = await society_kit.make(model, **caps).run(society_kit.brief)
    assert (state["major_revisions"], state["critical_revisions"]) == (major, 0)
    assert state["turn_count"] == 9 + 3 * major
    assert state["final_decision"] == "GO", "only CRITICAL is a veto"


@pytest.mark.parametrize("reviewer", ["PeerReviewer", "SafetyOfficer"])
@pytest.mark.parametrize("decision", ["GO", "NO-GO", "UNDECIDED"])
async def test_an_unresolved_critical_review_never_gets_go(society_kit, reviewer, decision):
    principal = {**society_kit.answers["PrincipalInvestigator"], "decision": decision}
    model = society_kit.Model(**{reviewer: [CRITICAL] * 9}, PrincipalInvestigator=[principal])
    state = await society_kit.make(model).run(society_kit.brief)
    assert state["final_answer"] == "yes", "a veto is not the answer no"
    name = {"PeerReviewer": "peer review", "SafetyOfficer": "safety review"}[reviewer]
    assert state["final_veto"] == f"{name}: {CRITICAL['issues'][0]}"
    if decision == "GO":
        assert state["final_decision"] == "NO-GO"
        assert state["final_rationale"].startswith("GO was overridden: a CRITICAL review is unresolved")
        assert principal["rationale"] in state["final_rationale"]
    else:
        assert (state["final_decision"], state["final_rationale"]) == (decision, principal["rationale"])


async def test_a_resolved_critical_review_may_get_go(society_kit):
    state = await society_kit.make(society_kit.Model(SafetyOfficer=[CRITICAL])).run(society_kit.brief)
    assert (state["final_decision"], state["final_veto"], state["critical_revisions"]) == ("GO", None, 1)


async def test_an_approved_critical_review_counts_by_its_severity(society_kit):
    review = {**CRITICAL, "verdict": "APPROVE"}
    state = await society_kit.make(society_kit.Model(SafetyOfficer=[review] * 9)).run(society_kit.brief)
    assert (state["final_decision"], state["critical_revisions"]) == ("NO-GO", 1)


async def test_an_unreadable_safety_review_blocks(society_kit):
    records = []
    model = society_kit.Model(SafetyOfficer=["It is safe, go ahead."] * 9)
    state = await society_kit.make(model, observe=records.append).run(society_kit.brief)
    assert state["safety_review"]["severity"] == "CRITICAL"
    assert state["safety_review"]["verdict"] == "REVISE"
    assert state["safety_review"]["issues"][0].startswith("the safety review could not be read: ")
    assert state["critical_revisions"] == 1
    assert state["final_decision"] == "NO-GO"
    calls = [record for record in records if record.role == "SafetyOfficer"]
    assert [(call.visit, call.parsed, call.repair) for call in calls] == [
        (1, False, False),
        (1, False, True),
        (2, False, False),
        (2, False, True),
    ]


async def test_an_evaluator_that_fails_is_named(society_kit):
    async def fail(state, brief):
        raise ModelError("the judge is away")

    with refused(RoleError, "Evaluation", "the judge is away"):
        await society_kit.make(society_kit.Model(), evaluate=fail).run(society_kit.brief)


async def test_no_node_changes_the_state_it_was_given(society_kit):
    """LangGraph drops changes in place, so a node that made one would seem to work in a test of its own."""
    model = society_kit.Model(PeerReviewer=[CRITICAL], SafetyOfficer=[society_kit.approval, MAJOR])
    state = await society_kit.make(model).run(society_kit.brief)
    context = RunContext(
        brief=society_kit.brief,
        seed=1,
        config=SocietyConfig(),
        slots=RolesConfig().slots(),
        tools=RolesConfig().tool_names(),
        model=society_kit.Model(Geneticist=[[(SEARCH, {"query": "a"})]], Supervisor=["?"]),
        toolbox=society_kit.Toolbox(),
        evaluate=society_kit.evaluate,
        select=SupervisorChoice(),
        operation=no_operation,
        observe=no_observer,
        guidance={},
    )
    for name, node in NODES.items():
        given = copy.deepcopy(state)
        update = await node(given, Runtime(context=context))
        assert given == state, name
        assert list(update["messages"]) == [name]
        assert update["messages"][name][0]["role"] == "system", "an update holds the new messages only"


async def test_each_visit_is_one_operation(society_kit):
    opened, closed = [], []

    @contextmanager
    def operation(name, attributes):
        opened.append((name, attributes))
        try:
            yield
        finally:
            closed.append(name)

    model = society_kit.Model(
        SafetyOfficer=[MAJOR], PeerReviewer=[ModelError("the server answered 503", retriable=True)]
    )
    await society_kit.make(model, operation=operation).run(society_kit.brief)
    assert sorted(name for name, _ in opened[:3]) == sorted(JUNIORS)
    assert [(name, a["visit"], a["attempt"]) for name, a in opened[3:]] == [
        ("Supervisor", 1, 1),
        ("HypothesisRefiner", 1, 1),
        ("ProtocolDesigner", 1, 1),
        ("PeerReviewer", 1, 1),
        ("PeerReviewer", 1, 2),
        ("SafetyOfficer", 1, 1),
        ("ProtocolDesigner", 2, 1),
        ("PeerReviewer", 2, 1),
        ("SafetyOfficer", 2, 1),
        ("PrincipalInvestigator", 1, 1),
        ("Evaluation", 1, 1),
    ]
    assert all(attributes["role"] == name for name, attributes in opened)
    assert {name: a["model"] for name, a in opened} == {
        **{role: slot for role, slot in RolesConfig().slots().items() if role in ROLES},
        "Evaluation": "judge",
    }
    assert sorted(closed) == sorted(name for name, _ in opened)


async def test_spans_nest_run_then_operation_then_model_call(society_kit):
    """OpenTelemetry keeps the current span in a context variable: it must reach the nodes and their model calls."""
    current = ContextVar("span", default="none")
    parents, callers = [], []

    @contextmanager
    def operation(name, attributes):
        parents.append(current.get())
        token = current.set(name)
        yield
        current.reset(token)

    class Watched(society_kit.Model):
        async def complete(self, key, messages, **options):
            completion = await super().complete(key, messages, **options)
            callers.append((current.get(), self.requests[-1].role))
            return completion

    current.set("rollout")
    await society_kit.make(Watched(), operation=operation).run(society_kit.brief)
    assert parents == ["rollout"] * 10
    assert len(callers) == 9
    assert all(span == role for span, role in callers)
    assert current.get() == "rollout"


async def test_runs_at_the_same_time_do_not_mix(society_kit):
    model = society_kit.Model()
    society = society_kit.make(model)
    briefs = [Brief(str(number), f"Question {number}?", ()) for number in range(8)]
    states = await asyncio.gather(*(society.run(brief, seed) for seed, brief in enumerate(briefs)))
    for brief, state in zip(briefs, states, strict=True):
        goals = {payload_of(channel)["goal"] for channel in state["messages"].values()}
        assert goals == {brief.goal}
        assert state["turn_count"] == 9


@pytest.mark.parametrize("role", ROLES)
async def test_the_rest_of_the_graph_goes_on_from_the_state_before_a_role(society_kit, role):
    """Two revisions, and so fields that several visits write, are on the way."""
    scripts = {"PeerReviewer": [CRITICAL], "SafetyOfficer": [society_kit.approval, MAJOR]}
    whole = await society_kit.make(society_kit.Model(**scripts)).run(society_kit.brief, 1)
    model = society_kit.Model(**scripts)
    society = society_kit.make(model)
    before = await society.before(role, society_kit.brief, 1)
    model.requests.clear()
    assert await society.run(society_kit.brief, 1, start=Start(role, before, ())) == whole
    order = list(ROLES)
    untouched = JUNIORS if role in JUNIORS else order[: order.index(role)]
    first = {request.role: request for request in reversed(model.requests)}
    assert model.requests[0].role == role
    assert not {one for one in untouched if one in JUNIORS and one != role} & set(first)
    opening = [request for request in model.requests if len(request.messages) == 2]
    assert sum(request.role == role for request in opening) == sum(
        message["role"] == "system" for message in whole["messages"][role]
    )


async def test_the_state_before_a_junior_holds_what_the_others_have_done(society_kit):
    before = await society_kit.make(society_kit.Model()).before("Pharmacologist", society_kit.brief, 1)
    assert [one["author"] for one in before["initial_hypotheses"]] == ["Geneticist", "Neurologist"]
    assert set(before["messages"]) == {"Geneticist", "Neurologist"}
    assert before["turn_count"] == 2
