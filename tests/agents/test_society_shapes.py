"""The society as data: who works in which order, what each reads, and which graphs are refused."""

import json

import pytest
from message_kit import refused

from agents.context import LearnedSociety
from agents.visit.prompting import payload_of
from chimera.config.roles import JUNIORS
from chimera.config.sections.graph import GraphConfig
from chimera.core.errors import ConfigError
from chimera.data.tasks import load
from training.configuration import load_config
from training.phases import make_phases

BOARD = ["ProtocolDesigner", "PeerReviewer", "SafetyOfficer", "PrincipalInvestigator", "Evaluation"]
PLANNED = {"reviews": False, "waives": ("SafetyOfficer",)}
JUNIOR, PRINCIPAL = (
    [f"models.{slot}.{key}" for key in ("kind=endpoint", "base_url=http://127.0.0.1:1/v1", "model=m")]
    for slot in ("junior", "principal")
)


def proposes(kit, **answers):
    """A model whose juniors answer as given."""
    return kit.Model(**{name: [{**kit.answers[name], "answer": answer}] * 5 for name, answer in answers.items()})


def chooses(kit, author):
    """A model whose supervisor chooses `author`."""
    return kit.Model(Supervisor=[{**kit.answers["Supervisor"], "choice": author}] * 5)


async def nodes_of(society, kit, learned=None):
    extra = {} if learned is None else {"learned": learned}
    return [node async for node, _ in society.stream(kit.brief, **extra)]


@pytest.mark.parametrize(
    ("graph", "middle"),
    [
        ({}, ["Supervisor", "HypothesisRefiner", *BOARD]),
        ({"choose": "vote", "refine": False}, ["Supervisor", "HypothesisRefiner", *BOARD]),
        (PLANNED, ["Supervisor", "HypothesisRefiner", "ProtocolDesigner", "PrincipalInvestigator", "Evaluation"]),
        ({**PLANNED, "design": False}, ["Supervisor", "HypothesisRefiner", "PrincipalInvestigator", "Evaluation"]),
    ],
)
async def test_nodes_work_in_the_order_of_the_graph(society_kit, graph, middle):
    nodes = await nodes_of(society_kit.make(society_kit.Model(), graph=graph), society_kit)
    assert set(nodes[:3]) == set(JUNIORS)
    assert nodes[3:] == middle


async def test_a_graph_that_was_learned_works_in_place_of_the_configured_one(society_kit):
    society = society_kit.make(chooses(society_kit, "Neurologist"))
    learned = LearnedSociety(graph=GraphConfig(juniors=("Neurologist",)))
    assert (await nodes_of(society, society_kit, learned))[:2] == ["Neurologist", "Supervisor"]
    assert len(await nodes_of(society, society_kit)) == 10


async def test_a_vote_takes_the_first_hypothesis_of_the_majority_and_asks_no_model(society_kit):
    model = proposes(society_kit, Geneticist="no", Pharmacologist="yes", Neurologist="yes")
    state = await society_kit.make(model, graph={"choose": "vote"}).run(society_kit.brief)
    assert (state["selection"]["author"], state["selection"]["policy"]) == ("Pharmacologist", "vote")
    assert model.of("Supervisor") == []
    model = proposes(society_kit, Geneticist="no", Pharmacologist="yes", Neurologist="maybe")
    state = await society_kit.make(model, graph={"choose": "vote"}).run(society_kit.brief)
    assert state["selection"]["author"] == "Geneticist"


async def test_without_a_refiner_the_chosen_hypothesis_goes_on_unchanged(society_kit):
    model = society_kit.Model()
    state = await society_kit.make(model, graph={"refine": False}).run(society_kit.brief)
    selected = {name: value for name, value in state["selected_hypothesis"].items() if name != "author"}
    assert state["refined_hypothesis"] == state["unreviewed_hypothesis"] == selected
    assert model.of("HypothesisRefiner") == []


async def test_a_return_to_a_refiner_who_is_left_out_has_its_limit(society_kit):
    critical = {"issues": ["unsupported"], "severity": "CRITICAL", "verdict": "REVISE"}
    model = society_kit.Model(PeerReviewer=[critical] * 9)
    state = await society_kit.make(model, graph={"refine": False}, max_critical_revisions=2).run(society_kit.brief)
    assert (state["critical_revisions"], len(model.of("ProtocolDesigner"))) == (2, 3)
    assert state["final_veto"] is not None


async def test_there_is_no_state_before_one_of_those_who_debate(society_kit):
    society = society_kit.make(society_kit.Model(), graph={"debate": 1})
    with refused(ConfigError, "Neurologist", "society.graph.debate"):
        await society.before("Neurologist", society_kit.brief)
    assert (await society.before("Supervisor", society_kit.brief))["debates"] == 2


async def test_juniors_who_debate_read_what_all_proposed_and_answer_again(society_kit):
    model = chooses(society_kit, "Neurologist")
    graph = {"debate": 2, "juniors": ("Geneticist", "Neurologist")}
    nodes = await nodes_of(society_kit.make(model, graph=graph), society_kit)
    assert [sorted(nodes[at : at + 2]) for at in (0, 3, 6)] == [["Geneticist", "Neurologist"]] * 3
    assert (nodes[2], nodes[5], nodes[8], nodes[9]) == ("Debate", "Debate", "Debate", "Supervisor")
    first, second, _ = [
        payload_of(call.messages) for call in model.of("Geneticist") if call.messages[-1]["role"] == "user"
    ]
    assert "hypotheses" not in first
    assert [hypothesis["author"] for hypothesis in second["hypotheses"]] == ["you", "Neurologist"]
    (request,) = model.of("Supervisor")
    authors = [hypothesis["author"] for hypothesis in payload_of(request.messages)["hypotheses"]]
    choice = request.response_format["json_schema"]["schema"]["properties"]["choice"]
    assert authors == choice["enum"] == ["Geneticist", "Neurologist"]


async def test_what_designs_nothing_is_not_judged(society_kit):
    async def judge(state, brief):
        raise AssertionError("it was judged")

    graph = {**PLANNED, "design": False}
    state = await society_kit.make(society_kit.Model(), graph=graph, evaluate=judge).run(society_kit.brief)
    assert state["final_protocol"] == {"amendments": state["final_protocol"]["amendments"]}
    assert "society.graph.design" in state["final_evaluation"]["error"]
    assert state["final_veto"] is None


@pytest.mark.parametrize(
    ("overrides", "pieces"),
    [
        (["society.graph.reviews=false"], ("SafetyOfficer", "waives=[SafetyOfficer]")),
        (["society.graph.design=false"], ("SafetyOfficer", "waives=[SafetyOfficer]")),
        (["society.graph.juniors=[Bob]"], ("'Bob'", "Geneticist")),
        (["society.graph.juniors=[Geneticist,Geneticist]"], ("twice", "Geneticist")),
        (["society.graph.juniors=[]"], ("society.graph.juniors",)),
        (["society.graph.juniors=[Geneticist]", "society.graph.debate=1"], ("debate=1", "two juniors")),
        (["society.graph.choose=combine", "society.graph.debate=1"], ("debate=1", "choose=combine", "0")),
        (["society.graph.searches=3"], ("society.graph.searches", "society.graph.choose", "combine")),
        (["society.graph.design=false", "society.graph.waives=[SafetyOfficer]"], ("models.principal.kind=rubric",)),
        (["society.graph.debat=1"], ("society.graph.debat", "society.graph.debate")),
        (["society.graph=none.yaml"], ("none.yaml", "does not exist")),
    ],
)
def test_a_graph_that_cannot_work_is_refused_before_it_runs(overrides, pieces):
    with refused(ConfigError, *pieces):
        load_config(None, overrides)


@pytest.mark.parametrize(
    ("graph", "role"), [("juniors=[Neurologist]", "Geneticist"), ("refine=false", "HypothesisRefiner")]
)
def test_a_role_that_does_not_work_cannot_learn(graph, role):
    config = load_config(None, [f"society.graph.{graph}", f"pipeline.gepa.roles=[{role}]", *JUNIOR])
    with refused(ConfigError, "pipeline.gepa.roles", role, "society.graph"):
        make_phases(["gepa"], config, load(config.data))


def test_a_file_holds_a_graph_and_the_command_line_goes_before_it(tmp_path):
    file = tmp_path / "duo.yaml"
    file.write_text("juniors: [Neurologist]\ndesign: false\nwaives: [SafetyOfficer]\n")
    graph = load_config(None, [*PRINCIPAL, f"society.graph={file}", "society.graph.refine=false"]).society.graph
    assert graph == GraphConfig(juniors=("Neurologist",), design=False, waives=("SafetyOfficer",), refine=False)
    file.write_text(json.dumps(graph.model_dump()))
    assert load_config(None, [*PRINCIPAL, f"society.graph={file}"]).society.graph == graph
