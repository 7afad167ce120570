"""Roles that have tools and never call one are named, with the setting."""

import pytest
from record_kit import model_call, scored, tool_use

from agents.visit.record import tool_calls
from chimera.config.roles import RolesConfig
from evaluation.rollout.silent_tools import ENOUGH, Watch, never_searched, silent_warnings
from training.configuration import load_config

JUNIORS = ("Geneticist", "Pharmacologist", "Neurologist")
ENDPOINT = ["models.junior.kind=endpoint", "models.junior.base_url=http://x/v1", "models.junior.model=big"]


def records(count=ENOUGH, phase="gather", **calls):
    searched = {**dict.fromkeys((*JUNIORS, "HypothesisRefiner", "ProtocolDesigner"), 0), **calls}
    return [scored(f"r{number}", f"t{number}", None, phase=phase, tool_calls=searched) for number in range(count)]


def config(*overrides):
    return load_config(None, overrides)


def test_an_endpoint_that_gets_a_schema_beside_tools_is_told_the_setting_for_each_model():
    junior, *others = silent_warnings(records(), config(*ENDPOINT, "models.junior.structured=always"))
    (refiner,) = [one for one in others if "HypothesisRefiner" in one]
    assert "Geneticist (10 rollouts), Pharmacologist (10 rollouts), Neurologist (10 rollouts) never called" in junior
    assert "set models.junior.structured=final" in junior
    assert "set models.refiner.structured=final" in refiner


def test_where_the_schema_is_not_in_the_way_only_the_juniors_must_search():
    (warning,) = silent_warnings(records(), config(*ENDPOINT))
    assert "--tool-call-parser" in warning
    (warning,) = silent_warnings(records(), config())
    assert "the weights of models.junior" in warning


@pytest.mark.parametrize(
    ("found", "overrides"),
    [
        (records(ENOUGH - 1), []),
        (records(**dict.fromkeys(JUNIORS, 1)), []),
        (records(), ["society.evidence=given"]),
        ([scored(f"r{number}", f"t{number}", None, tool_calls={}) for number in range(30)], []),
    ],
    ids=["too few", "they searched", "the abstract is in the prompt", "not recorded"],
)
def test_no_warning(found, overrides):
    assert silent_warnings(found, config(*overrides)) == []


def test_one_search_of_one_role_is_enough_for_that_role_only():
    (warning,) = silent_warnings([*records(20), *records(1, Geneticist=1)], config())
    assert warning.startswith("Pharmacologist (21 rollouts), Neurologist (21 rollouts) never called a tool")


def test_a_phase_is_warned_about_once_when_its_first_rollouts_have_ended():
    watch = Watch(config())
    told = [watch.add(one) for one in [*records(25), *records(12, phase="ppo"), *records(12, "bandit", Geneticist=1)]]
    said = {number: warnings for number, warnings in enumerate(told) if warnings}
    assert list(said) == [ENOUGH - 1, 25 + ENOUGH - 1, 37 + ENOUGH - 1]
    assert said[ENOUGH - 1][0].startswith("gather: Geneticist (10 rollouts)")
    assert said[46][0].startswith("bandit: Pharmacologist")


def test_a_single_question_is_warned_about_unless_the_abstract_is_in_the_prompts():
    assert "no role called a tool" in (never_searched(config()) or "")
    assert never_searched(config("society.evidence=given")) is None
    alone = ("models.mine.like=junior", "roles.Neurologist.model=mine", "society.graph.juniors=[Neurologist]")
    assert "(models.mine)" in (never_searched(config(*alone)) or "")


def test_calls_are_counted_by_role_with_zeros_and_only_for_roles_with_tools():
    use = tool_use("Neurologist", tool="nonsense", valid=False, ok=False, results=(), error="no")
    calls = [model_call("Geneticist"), model_call("Neurologist"), use, use, model_call("Supervisor")]
    found = tool_calls(calls, RolesConfig().tool_names())
    assert found == {"Geneticist": 0, "Neurologist": 2}
