"""States, groups of answers and what they are worth, on the fake bench."""

import json
from dataclasses import replace

import pytest
from branch_kit import MISREAD, READ, REFINER, TASKS, Answers, answer, record, reworded
from hypothesis import given
from hypothesis import strategies as st
from message_kit import refused

from chimera.config.sections.graph import GraphConfig
from chimera.config.sections.rollouts import RewardConfig
from chimera.core.errors import ConfigError
from chimera.core.types import ResearchTask, Section
from chimera.core.weighing import Vote
from chimera.data.tasks import Dataset, load
from training.configuration import load_config
from training.learning.base import PhasePlan
from training.learning.groups import BranchSettings, group_figures, grow
from training.learning.states import collect_states, states_of
from training.learning.values import Values, earned, how_valued, role_after
from training.phases import make_phases

PLAN = PhasePlan("refine", "ppo", (REFINER,), ("refiner",))
PROTOCOL = {
    "design": "randomised double-blind parallel-group trial", "population": "adults with falls",
    "intervention": "balance training", "comparator": "usual care", "outcome": "rate of falls at 24 weeks",
    "sample_size": 200, "analysis": "analysis of covariance at the 5% level",
    "safeguards": "informed consent, adverse event monitoring and a stopping rule", "expected": "yes",
}  # fmt: skip
SAME = {"says": "falls", "asked": "falls", "same": True}
FINDING = {
    "retracted": False, "design": "trial", "size": 200, "answer": "yes",
    "group": SAME, "condition": SAME, "outcome": SAME,
}  # fmt: skip


async def grown(bench, weights, how="direct", k=8):
    states = await collect_states(PLAN, 0, bench)
    return await grow(bench, Values(weights, how, bench), states, k, seed=0, version="nano@0")


async def test_a_state_is_a_role_s_first_visit_in_a_rollout_with_a_reward(tmp_path):
    bench = Answers(tmp_path)
    bench.earlier[0] = record(bench.run, 0, reward=None, status="failed")
    found = await collect_states(PLAN, 0, bench)
    assert [state.name for state in found] == [f"{REFINER}/gather/t{number}/0/1" for number in range(1, TASKS)]
    assert states_of(bench.episode(bench.earlier[2]), ["Neurologist"]) == []


async def test_a_role_that_has_found_one_of_several_studies_is_right_by_that_study(tmp_path):
    """The prompts of `Answers` hold the passage "a": tasks that say what follows from it alone."""
    studies = tuple((id_, (Section("", id_),)) for id_ in "ab")
    votes = (Vote("a", "no", 1), Vote("b", "yes", 2))
    tasks = tuple(
        ResearchTask(f"t{number}", "Is it so?", (), "yes", "generated", studies=studies, votes=votes)
        for number in range(TASKS - 1)
    )
    bench = Answers(tmp_path, dataset=Dataset(tasks, (), (), "generated", "test"))
    groups = await grown(bench, {"alignment": 1.0})
    assert [group.state.label for group in groups] == ["no"] * len(tasks) + ["yes"]
    for group in groups:
        for valued in group.answers:
            assert valued.worth.value == (valued.call.answer.stance == group.state.label)


@pytest.mark.parametrize(("retracted", "label"), [(False, "no"), (True, "yes")])
async def test_a_refiner_is_right_by_the_findings_that_it_was_handed(tmp_path, retracted, label):
    """One finding says yes and a heavier one no, if that counts: the task's label, maybe, does not follow."""
    heavier = {"size": 900, "answer": "no", "retracted": retracted}
    findings = [{**FINDING, "study": "a"}, {**FINDING, "study": "b", **heavier}]
    votes = (Vote("a", "yes", 1), Vote("b", "maybe", 2))
    task = ResearchTask("t0", "Is it so?", (), "maybe", "generated", studies=(("a", ()), ("b", ())), votes=votes)
    bench = Answers(tmp_path, dataset=Dataset((task,), (), (), "generated", "test"))
    outputs = {**bench.earlier[0].outputs, "initial_hypotheses": [{"author": "Geneticist", "findings": findings}]}
    bench.earlier[:] = [record(bench.run, 0, sources=(), outputs=outputs)]
    [group] = await grown(bench, {"alignment": 1.0})
    assert {valued.call.answer.stance for valued in group.answers if valued.worth.value} == {label}


async def test_direct_values_are_the_weighted_parts_of_the_answer_itself(tmp_path):
    bench = Answers(tmp_path)
    groups = await grown(bench, {"alignment": 1.0, "unverifiable_quote": -0.25})
    worth = {one.call.asked.choice["message"]["content"]: one.worth for group in groups for one in group.answers}
    for text, found in worth.items():
        said = json.loads(text)
        right, false = said["answer"] == "yes", said["evidence"] != [READ]
        assert found.value == right - 0.25 * false
        assert found.parts == {"alignment": float(right), "unverifiable_quote": -0.25 * false}
        assert found.how == "direct"
    assert {found.value for found in worth.values()} == {1.0, 0.75, 0.0}


async def test_groups_of_one_value_do_not_inform_and_are_counted(tmp_path):
    bench = Answers(tmp_path)
    usual = bench.say
    same = bench.earlier[0].task_id

    def say(call, random_):
        return reworded(call, answer()) if call.rollout_id == bench.earlier[0].rollout_id else usual(call, random_)

    bench.say = say
    groups = await grown(bench, {"alignment": 1.0})
    dull = [group for group in groups if not group.informs]
    assert same in {group.state.episode.record.task_id for group in dull}
    figures = group_figures(groups)
    assert figures["branches/informative"] == TASKS - len(dull) < figures["branches/states"] == TASKS
    assert figures["branches/how/direct"] == figures["branches/answers"] == 8 * TASKS
    assert figures["branches/value"] == pytest.approx(figures["branches/parts/alignment"])


async def test_answers_of_other_weights_and_requests_for_tools_have_no_worth_and_are_counted(tmp_path):
    bench = Answers(tmp_path)
    usual, asked = bench.say, {"content": None, "tool_calls": [{"id": "1", "type": "function", "function": {}}]}
    turn = iter(range(10**6))

    def say(call, random_):
        said, number = usual(call, random_), next(turn)
        if number % 8 == 0:
            return replace(said, weights_version="newer@1")
        choice = {**said.asked.choice, "message": {"role": "assistant", **asked}}
        return replace(said, asked=replace(said.asked, choice=choice)) if number % 8 == 1 else said

    bench.say = say
    figures = group_figures(await grown(bench, {"alignment": 1.0}))
    assert (figures["branches/stale"], figures["branches/unvalued"]) == (TASKS, TASKS)
    assert figures["branches/answers"] == 6 * TASKS


async def test_an_answer_that_cannot_be_read_is_worth_nothing(tmp_path):
    bench = Answers(tmp_path)
    bench.say = lambda call, random_: reworded(call, "{")
    groups = await grown(bench, {"alignment": 1.0})
    assert {one.worth.value for group in groups for one in group.answers} == {0.0}
    assert {group.right for group in groups} == {0.0}


async def test_a_replay_begins_after_the_role_with_its_new_answer(tmp_path):
    bench = Answers(tmp_path)
    began = []

    def retell(episode, at, instead, policies):
        began.append((at, instead))
        right = instead["refined_hypothesis"]["answer"] == "yes"
        parts = {"alignment": 1.0 * right, "impact": 0.15, "novelty": None}
        return replace(episode.record, reward=1.15 if right else None, parts=parts)

    bench.retell = retell
    groups = await grown(bench, {"alignment": 2.0, "impact": 1.0}, "replay")
    assert {at for at, _ in began} == {"ProtocolDesigner"}
    assert all(instead["refined_hypothesis"] == instead["unreviewed_hypothesis"] for _, instead in began)
    (value,) = {one.worth.value for group in groups for one in group.answers}
    assert value == pytest.approx(2.0 + 0.15 / 0.3)
    wrong = sum(instead["refined_hypothesis"]["answer"] == "no" for _, instead in began)
    assert sum(group.left_out["unvalued"] for group in groups) >= wrong > 0
    whole = await grown(bench, {}, "replay")
    assert {one.worth.value for group in whole for one in group.answers} == {1.15}


async def test_the_deterministic_judge_scores_an_answer_in_the_recorded_work(tmp_path):
    bench = Answers(tmp_path)
    selection = {"author": "Geneticist", "sources": [{"id": "a", "text": READ}]}
    outputs = {
        "research_goal": "Does balance training lower the rate of falls in adults?", "selection": selection,
        "refined_hypothesis": json.loads(answer()), "final_protocol": {**PROTOCOL, "amendments": []},
        "final_answer": "yes", "final_decision": "GO", "final_rationale": "it is so",
    }  # fmt: skip
    bench.earlier = [replace(one, outputs=outputs) for one in bench.earlier]
    groups = await grown(bench, {"groundedness": 1.0})
    for one in (one for group in groups for one in group.answers):
        assert (one.worth.value > 0.1) == (MISREAD not in one.call.answer.quotes)


parts = st.dictionaries(st.sampled_from(["alignment", "impact", "clarity"]), st.floats(-2, 2) | st.none())


@given(parts, st.dictionaries(st.sampled_from(["alignment", "impact"]), st.floats(-3, 3), min_size=1))
def test_a_phase_earns_its_own_parts_by_its_own_weights(found, weights):
    reward = RewardConfig()
    own = earned(found, weights, reward)
    assert set(own) == {name for name in weights if found.get(name) is not None}
    for name, value in own.items():
        assert value == pytest.approx(weights[name] * found[name] / getattr(reward, name))
    assert earned(found, {}, reward) == {name: value for name, value in found.items() if value is not None}


def plan(*roles):
    return PhasePlan("refine", "ppo", roles, ("refiner",))


@pytest.mark.parametrize(
    ("roles", "weights", "wanted", "how"),
    [
        ((REFINER,), {"alignment": 1.0}, "auto", "direct"),
        ((REFINER,), {"alignment": 1.0, "groundedness": 0.2}, "auto", "direct"),
        ((REFINER,), {"alignment": 1.0, "impact": 0.2}, "auto", "replay"),
        ((REFINER,), {"alignment": 1.0, "impact": 0.0}, "auto", "direct"),
        ((REFINER,), {"alignment": 1.0}, "replay", "replay"),
        ((REFINER,), {}, "auto", "replay"),
        (("ProtocolDesigner",), {"feasibility": 1.0}, "auto", "direct"),
        (("ProtocolDesigner",), {"alignment": 1.0}, "auto", "replay"),
    ],
)
def test_answers_are_valued_directly_where_their_parts_follow_from_them(roles, weights, wanted, how):
    assert how_valued(plan(*roles), BranchSettings(reward=weights).reward, wanted, load_config(None)) == how


def test_a_replay_begins_at_a_role_that_works_in_the_live_graph():
    graphs = [GraphConfig(waives=("SafetyOfficer",), **shape) for shape in ({}, {"reviews": False}, {"design": False})]
    assert [role_after("Neurologist", graph) for graph in graphs] == ["Supervisor"] * 3
    assert [role_after(REFINER, graph) for graph in graphs] == ["ProtocolDesigner"] * 2 + ["PrincipalInvestigator"]
    assert [role_after("ProtocolDesigner", graph) for graph in graphs[:2]] == ["PeerReviewer", "PrincipalInvestigator"]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["ppo.reward={praise: 1.0}"], ("ppo.reward", "'praise'", "novelty")),
        (["ppo.reward={impact: 0}"], ("pipeline.ppo.reward", "'impact': 0", "set {}")),
        (["ppo.reward={impact: 1.0}", "reward.impact=0"], ("ppo.reward.impact", "reward.impact=0", "leave it out")),
        (["ppo.reward={}", "ppo.value=direct"], ("ppo.value=direct", "ppo.reward", "set ppo.value=replay")),
        (["ppo.states=4", "ppo.tasks=100"], ("ppo.tasks=100", "24 training tasks")),
        (["ppo.states=4", "ppo.n=1"], ("ppo.n=1", "grpo", "set ppo.n")),
        (["ppo.states=4", "ppo.credit=broadcast"], ("pipeline.ppo.credit", "states is 4", "remove it")),
        (["ppo.states=0", "ppo.curriculum=level"], ("pipeline.ppo", "states is 0", "remove it")),
    ],
)
def test_what_cannot_be_valued_is_refused_before_anything_starts(overrides, message):
    def start():
        config = load_config(None, ["data.size=40", "ppo.tasks=8", *overrides])
        make_phases(["ppo"], config, load(config.data))

    with refused(ConfigError, message):
        start()


@pytest.mark.parametrize(("slot", "judges"), [("judge", "[]"), ("second", "[second]")])
def test_a_language_model_as_judge_cannot_be_asked_for_every_answer(slot, judges):
    model = "{kind: endpoint, base_url: 'http://127.0.0.1:1/v1', model: m}"
    config = load_config(None, [f"models.{slot}={model}", f"rollouts.judges={judges}"])
    assert how_valued(plan(REFINER), {"groundedness": 1.0}, "auto", config) == "replay"
    with refused(ConfigError, "refine.value=direct", "groundedness", "set refine.value=replay"):
        how_valued(plan(REFINER), {"groundedness": 1.0}, "direct", config)
