"""What is evaluated: stages from the ledger, tasks in the gate's order, and never a task that was learned from."""

from dataclasses import asdict
from types import SimpleNamespace

import pytest
from message_kit import refused

from chimera.core.errors import ConfigError, RunError
from chimera.data.tasks import load
from chimera.run.directory import Run
from chimera.run.jsonl import append_line
from chimera.run.policies import ROLLED_BACK, WENT_LIVE, Policy
from evaluation.conduct.recorded_study import baseline_answers
from evaluation.records.plan import check_unseen, choose_stages, choose_tasks, gate_tasks, rolled_back, stages_of
from evaluation.records.recorded import own_phase, phases_of, side_file
from evaluation.records.study import BaselineAnswer
from training.configuration import load_config

BEGAN = {"junior": "nano@0", "senior": "nano@0", "judge": "rubric", "selection": "supervisor's model"}


def policy(learner, phase):
    part = "choice" if learner == "Supervisor" else "weights"
    return Policy(part, learner, f"{learner}@{phase}", f"models/{learner}/{phase}")


@pytest.fixture
def trained(tmp_path):
    def make(*events, settings=()):
        with Run.create(None, load_config(None, [f"runs_dir={tmp_path}", *settings])) as run:
            run.ledger("phase_started", phase="gather", policy_versions=BEGAN)
            for event, phase, learner in events:
                run.ledger(event, phase=phase, policy=policy(learner, phase).dump())
            return run

    return make


def versions(stage):
    return {name: version for name, version in stage.versions.items() if BEGAN[name] != version}


def names(stages):
    return [stage.name for stage in stages]


SEQUENCE = ["base", "sft", "ppo", "bandit"]
AROUND = ["only-ppo", "only-bandit", "final-without-sft", "final-without-ppo"]


def test_stages_are_the_base_what_went_live_in_order_and_each_policy_alone_and_left_out(trained):
    run = trained((WENT_LIVE, "sft", "junior"), (WENT_LIVE, "ppo", "senior"), (WENT_LIVE, "bandit", "Supervisor"))
    stages = {stage.name: stage for stage in stages_of(run)}
    assert list(stages) == [*SEQUENCE, *AROUND]
    assert versions(stages["final-without-sft"]) == {"senior": "senior@ppo", "selection": "Supervisor@bandit"}
    assert names(choose_stages(run, None)) == SEQUENCE
    assert names(choose_stages(run, "all")) == [*SEQUENCE, *AROUND]
    assert versions(stages["base"]) == {}
    assert versions(stages["sft"]) == {"junior": "junior@sft"}
    assert versions(stages["ppo"]) == {"junior": "junior@sft", "senior": "senior@ppo"}
    assert versions(stages["bandit"]) == versions(stages["ppo"]) | {"selection": "Supervisor@bandit"}
    assert versions(stages["only-bandit"]) == {"selection": "Supervisor@bandit"}
    base, final = choose_stages(run, "final, base")
    assert (base.name, final.name, final.own_name) == ("base", "final", "bandit")
    assert final.versions == stages["bandit"].versions
    assert own_phase("val", final) == own_phase("val", stages["bandit"]) == "eval-val-bandit"
    assert [stage.name for stage in choose_stages(run, "bandit,final")] == ["bandit"]
    (cooler, _) = choose_stages(run, "bandit,base", temperature=0.3)
    assert phases_of(run, "val", cooler) == ["gate-base", "eval-val-base-at-0.3"]
    assert phases_of(run, "test", cooler) == ["eval-test-base-at-0.3"]
    assert phases_of(run, "val", stages["base"]) == ["eval-val-base"], "the gate of this run did not sample so"


def test_the_gate_of_a_run_that_says_no_temperature_sampled_at_each_slot_s_own(trained):
    """Ledgers of earlier versions say none either."""
    run = trained(settings=["evaluation.temperature=null"])
    (own,), (cooler,) = (choose_stages(run, "base", temperature=one) for one in (None, 0.3))
    assert phases_of(run, "val", own) == ["gate-base", "eval-val-base"]
    assert phases_of(run, "val", cooler) == ["eval-val-base-at-0.3"]


@pytest.mark.parametrize("contributions", ["around", "shapley"])
def test_contributions_add_the_stages_that_they_need(trained, contributions):
    """Of three phases those around the sequence are all coalitions."""
    run = trained((WENT_LIVE, "sft", "junior"), (WENT_LIVE, "ppo", "senior"), (WENT_LIVE, "bandit", "Supervisor"))
    assert names(choose_stages(run, None, contributions)) == [*SEQUENCE, *AROUND]
    assert names(choose_stages(run, "base,final", contributions)) == ["base", "sft", "ppo", "final", *AROUND]


def test_shapley_makes_each_society_of_four_phases_once(trained):
    """again learns for sft's slot: a coalition with again is the same with and without sft, so 12 of 16 remain."""
    went = [("sft", "junior"), ("ppo", "senior"), ("bandit", "Supervisor"), ("again", "junior")]
    run = trained(*((WENT_LIVE, *one) for one in went))
    around, every = (choose_stages(run, None, one) for one in ("around", "shapley"))
    assert names(every)[: len(around)] == names(around)
    assert names(every)[len(around) :] == ["only-sft-bandit"]
    assert len({tuple(sorted(stage.versions.items())) for stage in every}) == len(every) == 12
    assert not {"final-without-sft", "final-without-again"} & set(names(every)), "they are again and bandit"


def test_too_many_phases_for_all_their_coalitions_are_refused(trained):
    run = trained(*((WENT_LIVE, f"phase{number}", "junior") for number in range(6)))
    with refused(
        ConfigError, "evaluation.contributions=shapley", "6 phases", "64 stages", "evaluation.contributions=around"
    ):
        choose_stages(run, None, "shapley")
    assert len(choose_stages(run, None, "around")) == 7


def test_roles_puts_each_trained_place_back_at_base_and_makes_no_society_twice(trained):
    went = [("sft", "junior"), ("ppo", "senior"), ("bandit", "Supervisor"), ("again", "junior")]
    run = trained(*((WENT_LIVE, *one) for one in went))
    stages = {stage.name: stage for stage in choose_stages(run, "base", "roles")}
    assert list(stages) == ["base", "again", "final-without-ppo", "final-without-bandit", "final-with-junior-at-base"]
    assert {name: stage.kind for name, stage in stages.items()}["final-with-junior-at-base"] == "at base"
    back = stages["final-with-junior-at-base"]
    assert versions(back) == {"senior": "senior@ppo", "selection": "Supervisor@bandit"}
    assert set(names(choose_stages(run, None, "around"))) > set(stages) - {"base"}
    assert names(choose_stages(run, "final-with-selection-at-base")) == ["final-without-bandit"], "one society"


def test_the_records_of_a_stage_with_a_long_name_have_a_name_of_their_own(trained):
    phases = [f"{'a_very_long_phase_' * 2}{number}" for number in range(4)]
    run = trained(*((WENT_LIVE, phase, learner) for phase, learner in zip(phases, "abcd", strict=True)))
    found = [own_phase("test", stage) for stage in choose_stages(run, None, "shapley", 0.3)]
    assert len(set(found)) == len(found) == 16
    assert all(run.rollouts_file(phase).name == f"{phase}.jsonl" for phase in found)


@pytest.mark.parametrize(
    ("asked", "end"), [(None, "bandit"), ("base,sft", "sft"), ("only-ppo", "only-ppo"), ("base,only-ppo", "only-ppo")]
)
def test_the_society_whose_tools_fail_is_the_one_that_the_report_ends_with(trained, asked, end):
    run = trained((WENT_LIVE, "sft", "junior"), (WENT_LIVE, "ppo", "senior"), (WENT_LIVE, "bandit", "Supervisor"))
    *stages, failing = choose_stages(run, asked, faults=0.3)
    assert failing.kind == "faults"
    assert versions(failing) == versions(next(stage for stage in stages if stage.name == end))


def test_answers_to_another_question_or_with_other_tool_calls_are_not_those_of_the_plan(trained):
    run = trained()
    final = SimpleNamespace(temperature=None)
    plan = SimpleNamespace(
        tasks=[SimpleNamespace(id="t1", goal="Now?")], alone=[], repeats=1, split="test", final=final
    )
    for number, (goal, tool_calls) in enumerate([("Now?", 6), ("", None), ("Then?", 6), ("Now?", 12)]):
        answer = BaselineAnswer("agent@base", "t1", 0, "yes", sample=number, goal=goal, tool_calls=tool_calls)
        append_line(run.path / side_file("test", "baselines"), asdict(answer))
    assert [answer.sample for answer in baseline_answers(run, plan, 6)] == [0, 1]


def test_what_was_rolled_back_is_no_stage(trained):
    run = trained((WENT_LIVE, "sft", "junior"), (ROLLED_BACK, "ppo", "senior"))
    assert [stage.name for stage in stages_of(run)] == ["base", "sft"]
    assert rolled_back(run) == ["ppo"]
    with refused(ConfigError, "--stages=base,ppo", "base, sft"):
        choose_stages(run, "base,ppo")


@pytest.mark.parametrize(("asked", "message"), [("bse", ("'bse'", "'base'")), (" , ", ("--stages", "base"))])
def test_a_wrong_stage_is_refused(trained, asked, message):
    with refused(ConfigError, message):
        choose_stages(trained(), asked)


def test_a_run_that_never_started_has_no_stages(tmp_path):
    with (
        Run.create("new", load_config(None, [f"runs_dir={tmp_path}"])) as run,
        pytest.raises(RunError, match="has started no phase"),
    ):
        stages_of(run)


def test_tasks_are_the_gates_first_then_the_other_held_out_ones():
    config = load_config(None, ["data.size=100", "gate.tasks=8"])
    dataset = load(config.data)
    gate = gate_tasks(dataset, config)
    assert choose_tasks(dataset, "val", config, None) == gate
    assert choose_tasks(dataset, "val", config, 3) == gate[:3]
    every = choose_tasks(dataset, "val", config, 20)
    assert every[:8] == gate
    assert {task.id for task in every} == {task.id for task in dataset.validation}
    with refused(ConfigError, "--limit 21", "20 tasks", "val split"):
        choose_tasks(dataset, "val", config, 21)


def test_without_a_gate_all_held_out_tasks_are_taken():
    config = load_config(None, ["data.size=50", "gate.tasks=0"])
    assert len(choose_tasks(load(config.data), "val", config, None)) == 10


def test_the_test_split_holds_tasks_that_no_decision_used():
    config = load_config(None, ["data.size=50", "gate.tasks=8"])
    dataset = load(config.data)
    chosen = choose_tasks(dataset, "test", config, None)
    assert {task.id for task in chosen} == {task.id for task in dataset.test}
    assert choose_tasks(dataset, "test", config, 4) == chosen[:4]
    check_unseen(chosen, dataset, "test")
    assert not set(chosen) & set(gate_tasks(dataset, config))
    with refused(ConfigError, "--limit 11", "10 tasks", "test split"):
        choose_tasks(dataset, "test", config, 11)


def test_tasks_that_were_trained_on_are_refused():
    dataset = load(load_config(None, ["data.size=50"]).data)
    check_unseen(dataset.validation, dataset, "val")
    with refused(ConfigError, "1 of 2 val tasks", dataset.train[0].id):
        check_unseen([dataset.validation[0], dataset.train[0]], dataset, "val")
    # A test task must not have chosen what went live either.
    with pytest.raises(ConfigError, match="10 of 10 test tasks"):
        check_unseen(dataset.validation, dataset, "test")
