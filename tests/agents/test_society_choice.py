"""Who chooses among the hypotheses: the supervisor's model, or a policy."""

import pytest
from message_kit import refused

from agents.context import Candidates, Choice
from agents.visit.prompting import payload_of
from chimera.core.errors import RoleError

POLICY = "epsilon-greedy"
PROPENSITIES = {"Geneticist": 0.8, "Pharmacologist": 0.1, "Neurologist": 0.1}
SOURCES = [{"id": "17", "text": "METHODS: A trial. RESULTS: It fell."}]


def selection(preferred):
    return {
        "author": "Geneticist",
        "preferred": preferred,
        "policy": POLICY,
        "propensities": PROPENSITIES,
        "sources": SOURCES,
    }


def candidates_of(state):
    return Candidates(state["research_goal"], state["initial_hypotheses"], SOURCES)


class Corrects:
    """Has the last word after the supervisor's model."""

    def __init__(self, author):
        self.author = author
        self.asked = []

    def propose(self, candidates, seed):
        return None

    def select(self, candidates, preferred, seed):
        self.asked.append((candidates, preferred, seed))
        return Choice(self.author, POLICY, PROPENSITIES)


class Decides:
    """Chooses before the supervisor's model is asked."""

    def __init__(self, author):
        self.author = author
        self.asked = []

    def propose(self, candidates, seed):
        self.asked.append((candidates, seed))
        return Choice(self.author, POLICY, PROPENSITIES)

    def select(self, candidates, preferred, seed):
        raise AssertionError("what was proposed is not asked for again")


async def test_a_policy_may_overrule_the_supervisor_who_then_justifies_its_choice(society_kit):
    policy = Corrects("Geneticist")
    prefers = society_kit.answers["Supervisor"]
    model = society_kit.Model(Supervisor=[prefers, {"choice": "Geneticist", "justification": "genes decide"}])
    records = []
    society = society_kit.make(model, observe=records.append, evidence="given")
    state = await society.run(society_kit.brief, 7, select=policy)
    assert policy.asked == [(candidates_of(state), "Pharmacologist", 7)]
    first, second = [payload_of(request.messages) for request in model.of("Supervisor")]
    assert first == {"hypotheses": state["initial_hypotheses"], "goal": society_kit.brief.goal}
    assert second == {**first, "chosen": "Geneticist"}
    assert state["selected_hypothesis"]["author"] == "Geneticist"
    assert state["selection"] == selection("Pharmacologist")
    told = payload_of(model.of("HypothesisRefiner")[0].messages)
    assert told["hypothesis"]["claim"] == "genes"
    assert told["justification"] == "genes decide"
    assert state["turn_count"] == 10
    assert [(call.visit, call.step) for call in records if call.role == "Supervisor"] == [(1, 1), (2, 1)]
    seeds = [request.seed for request in model.of("Supervisor")]
    assert seeds[0] != seeds[1]


async def test_a_policy_that_agrees_with_the_supervisor_costs_no_second_call(society_kit):
    model = society_kit.Model()
    state = await society_kit.make(model).run(society_kit.brief, select=Corrects("Pharmacologist"))
    assert len(model.of("Supervisor")) == 1
    assert state["supervisor_justification"] == society_kit.answers["Supervisor"]["justification"]


async def test_a_policy_may_choose_first_and_the_supervisor_then_only_justifies(society_kit):
    policy = Decides("Geneticist")
    model = society_kit.Model(Supervisor=[{"choice": "Geneticist", "justification": "genes decide"}])
    state = await society_kit.make(model, evidence="given").run(society_kit.brief, 7, select=policy)
    assert policy.asked == [(candidates_of(state), 7)]
    (request,) = model.of("Supervisor")
    assert list(payload_of(request.messages)) == ["hypotheses", "chosen", "goal"]
    assert payload_of(request.messages)["chosen"] == "Geneticist"
    form = request.response_format["json_schema"]
    assert form["name"] == "Selection", "graders know by the name who is asking"
    assert form["schema"]["properties"]["choice"]["const"] == "Geneticist"
    assert form["schema"]["required"] == ["choice", "justification"]
    assert state["selection"] == selection(None)
    assert state["selected_hypothesis"]["claim"] == "genes"
    assert state["supervisor_justification"] == "genes decide"


async def test_a_supervisor_that_names_another_author_than_the_policy_is_asked_again(society_kit):
    other = {"choice": "Neurologist", "justification": "nerves decide"}
    model = society_kit.Model(Supervisor=[other, {"choice": "Geneticist", "justification": "genes decide"}])
    state = await society_kit.make(model).run(society_kit.brief, select=Decides("Geneticist"))
    assert state["supervisor_justification"] == "genes decide"
    assert "choice: Input should be 'Geneticist'" in model.of("Supervisor")[1].messages[-1]["content"]


async def test_a_runs_selector_does_not_outlive_the_run_and_without_one_no_propensity_is_invented(society_kit):
    society = society_kit.make(society_kit.Model(Supervisor=[{"choice": "Geneticist", "justification": "x"}]))
    first = await society.run(society_kit.brief, select=Decides("Geneticist"))
    second = await society.run(society_kit.brief)
    assert first["selection"]["policy"] == POLICY
    chosen = dict.fromkeys(("author", "preferred"), "Pharmacologist")
    assert second["selection"] == {**chosen, "policy": "supervisor", "propensities": None, "sources": []}


@pytest.mark.parametrize("policy", [Corrects, Decides])
async def test_a_policy_that_chooses_nobody_is_the_supervisors_error(society_kit, policy):
    with refused(RoleError, "Supervisor", "'epsilon-greedy'", "'Surgeon'", "Geneticist, Pharmacologist, Neurologist"):
        await society_kit.make(society_kit.Model()).run(society_kit.brief, select=policy("Surgeon"))
