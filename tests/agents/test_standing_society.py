"""The society as a graph of its own, as LangGraph Studio runs it: with nothing but a question."""

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command

from agents.person import PERSON
from agents.roles import ROLES
from chimera.config.roles import JUNIORS
from chimera.core.errors import ConfigError
from chimera.core.types import Brief, Option, Section

THREAD = {"configurable": {"thread_id": "one"}}


def standing(society_kit, model, **settings):
    """A graph with a saver, as a server gives it one."""
    known = {"q-1": society_kit.brief}

    def brief_of(asked):
        if asked not in known:
            raise ConfigError(f"no task {asked!r}")
        return known[asked]

    graph = society_kit.make(model, **settings).standing(brief_of)
    graph.checkpointer = InMemorySaver()
    return graph


def test_its_schema_asks_for_the_question_only_and_tells_every_field(society_kit):
    graph = standing(society_kit, society_kit.Model())
    assert list(graph.get_input_jsonschema()["properties"]) == ["research_goal"]
    assert {"messages", "refined_hypothesis", "final_answer"} <= set(graph.get_output_jsonschema()["properties"])
    assert {*ROLES, "Evaluation"} <= set(graph.get_graph().nodes)


async def test_it_works_on_the_brief_that_the_text_names(society_kit):
    model = society_kit.Model()
    graph = standing(society_kit, model)
    state = await graph.ainvoke({"research_goal": "q-1"}, THREAD)
    assert state["final_decision"] == "GO"
    assert society_kit.brief.goal in model.of("Geneticist")[0].messages[-1]["content"]
    with pytest.raises(ConfigError, match="no task 'other'"):
        await graph.ainvoke({"research_goal": "other"}, {"configurable": {"thread_id": "two"}})


async def test_one_can_stop_edit_and_go_on_or_go_back(society_kit):
    model = society_kit.Model()
    graph = standing(society_kit, model)
    await graph.ainvoke({"research_goal": "q-1"}, THREAD, interrupt_before=["ProtocolDesigner"])
    stopped = await graph.aget_state(THREAD)
    assert stopped.next == ("ProtocolDesigner",)
    edited = {**stopped.values["refined_hypothesis"], "claim": "edited by hand"}
    await graph.aupdate_state(THREAD, {"refined_hypothesis": edited}, as_node="HypothesisRefiner")
    state = await graph.ainvoke(None, THREAD)
    assert state["final_decision"] == "GO"
    assert "edited by hand" in model.of("ProtocolDesigner")[0].messages[-1]["content"]
    await graph.ainvoke(None, stopped.config)
    assert "edited by hand" not in model.of("ProtocolDesigner")[1].messages[-1]["content"]
    assert len(model.of("Geneticist")) == 1


async def test_a_person_confirms_there_too(society_kit):
    graph = standing(society_kit, society_kit.Model(), confirm=("GO",))
    await graph.ainvoke({"research_goal": "q-1"}, THREAD)
    assert (await graph.aget_state(THREAD)).next == (PERSON,)
    state = await graph.ainvoke(Command(resume={"action": "reject", "reason": "too small"}), THREAD)
    assert state["final_decision"] == "UNDECIDED"


async def test_options_of_the_task_reach_the_roles(society_kit):
    brief = Brief("m-1", "Which one?", (Section("", "Text."),), options=(Option("A", "this"), Option("B", "that")))
    fields = dict.fromkeys((*JUNIORS, "HypothesisRefiner", "PrincipalInvestigator"), "answer")
    fields["ProtocolDesigner"] = "expected"
    answers = {role: [{**society_kit.answers[role], field: "A"}] for role, field in fields.items()}
    model = society_kit.Model(**answers)
    state = await society_kit.make(model).standing(lambda _: brief).ainvoke({"research_goal": "m-1"})
    assert state["final_answer"] == "A"
    assert "this" in model.of("Geneticist")[0].messages[-1]["content"]
