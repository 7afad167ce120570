"""What of an earlier evaluation counts in a later one, and what is made again; models are endpoints."""

import json
import shutil
from collections import Counter
from dataclasses import replace
from operator import itemgetter

import pytest
from message_kit import refused

from chimera.core.errors import ConfigError, ModelError, RunError
from chimera.data.tasks import load
from chimera.eval import main
from chimera.run.directory import Run
from chimera.run.jsonl import append_line, read_lines
from chimera.run.policies import WENT_LIVE, Policy
from evaluation.conduct.conductor import Conductor
from evaluation.conduct.recorded_study import load_study
from evaluation.records.plan import choose_stages, choose_tasks
from evaluation.records.recorded import recorded
from evaluation.records.study import Plan, PlannedTask
from evaluation.verify.check import verify

pytestmark = pytest.mark.whole


@pytest.fixture
def server(scripted_openai):
    return scripted_openai


@pytest.fixture
def run(scripted_run):
    return scripted_run


@pytest.fixture(scope="module")
def evaluated_once(scripted_openai, scripted_run_in, tmp_path_factory):
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("TEST_KEY", "sk-a-users-own-key-4242")
        environment.delenv("TAVILY_API_KEY", raising=False)
        made = scripted_run_in(tmp_path_factory.mktemp("evaluated"), scripted_openai)
        evaluate(made)
    return made, list(scripted_openai.requests)


@pytest.fixture
def evaluated(evaluated_once, scripted_openai, scripted_key, tmp_path):
    """A copy of a run that was evaluated once with the defaults; the server remembers that evaluation's requests."""
    made, requests = evaluated_once
    scripted_openai.hooks.clear()
    scripted_openai.requests[:] = requests
    return Run(shutil.copytree(made.path, tmp_path / made.name))


def evaluate(run, *arguments):
    given = ["--run", run.name, "--split", "val", f"runs_dir={run.path.parent}", "rollouts.concurrency=2"]
    main([*given, *arguments])


def side(run, name):
    return run.path / "evaluation" / "val" / f"{name}.jsonl"


def report_of(run, folder="report"):
    return json.loads((run.path / folder / "report.json").read_text())


def plan_of(run, tasks=4):
    data = load(run.config.data)
    chosen = map(PlannedTask.of, choose_tasks(data, "val", run.config, tasks))
    stages = choose_stages(run, None, temperature=run.config.evaluation.temperature)
    return Plan("val", "generated", data.describe(), tuple(chosen), 1, stages)


def asked(server):
    return Counter(request["model"] for request in server.requests)


def test_canaries_that_an_interruption_left_out_are_made_later(evaluated, server):
    lines = side(evaluated, "canaries").read_text().splitlines(keepends=True)
    every = Counter((row["subject"], row["judge"]) for row in read_lines(side(evaluated, "canaries")))
    side(evaluated, "canaries").write_text("".join(lines[::3]))
    left = Counter(row["judge"] for row in read_lines(side(evaluated, "canaries")))
    server.requests.clear()
    evaluate(evaluated)
    assert Counter((row["subject"], row["judge"]) for row in read_lines(side(evaluated, "canaries"))) == every
    assert asked(server) == {"scripted-judge": sum(judge == "judge" for _, judge in every) - left["judge"]}


def test_another_second_judge_is_shown_the_canaries_and_training_s_judge_not_again(evaluated, server):
    server.requests.clear()
    evaluate(evaluated, "--judge", f"other@{server.url}")
    shown = len({row["subject"] for row in read_lines(side(evaluated, "canaries"))})
    assert asked(server) == {"other": 4 + shown}
    assert report_of(evaluated)["judges"]["auditor"] == "other"


def test_canaries_of_an_earlier_evaluation_do_not_count(evaluated):
    old = {row["subject"] for row in read_lines(side(evaluated, "canaries"))}
    evaluate(evaluated, "--fresh")
    new = {row["subject"] for row in read_lines(side(evaluated, "canaries"))} - old
    assert len(new) == len(old)
    for row in report_of(evaluated)["judges"]["canaries"]:
        assert row["n"] == sum(subject.split("/")[1] == row["canary"] for subject in new)


def test_what_failed_is_made_again_by_resume_alone(run, server):
    """A single agent's answer, the second judge's scores, and a canary's."""
    broken = ("scripted-junior", "other")

    def hook(request):
        alone = request["model"] == "scripted-junior" and "tools" not in request
        return (400, "I cannot") if alone or request["model"] == "other" else None

    server.hooks.append(hook)
    second = ("--judge", f"other@{server.url}", "evaluation.self_consistency=false")
    evaluate(run, *second)
    failed = {name: list(read_lines(side(run, name))) for name in ("baselines", "audit", "canaries")}
    server.hooks.clear()
    server.requests.clear()
    evaluate(run, *second)
    assert not set(asked(server)) & set(broken)
    evaluate(run, *second, "--resume")
    for name, rows in failed.items():
        refused = [row for row in rows if row["error"]]
        made = list(read_lines(side(run, name)))[len(rows) :]
        assert refused
        assert len(made) == len(refused)
        assert all(row["error"] is None for row in made)
    assert report_of(run)["judges"]["n"] == 4
    assert report_of(run)["baselines"]["single@base"]["answered"] == 4


def test_a_second_judge_that_cannot_be_reached_ends_the_evaluation(run):
    with pytest.raises(ModelError, match="cannot be reached"):
        evaluate(run, "--judge", "other@http://127.0.0.1:9/v1", "rollouts.retries=0")
    assert list(read_lines(side(run, "audit"))) == []
    assert len(list(run.rollouts("eval-val-base-at-0.3"))) == 4


def test_a_report_stays_true_when_others_are_made_of_more_repeats_and_tasks(evaluated):
    evaluate(evaluated, "--seeds", "2", "--limit", "8", "--out", str(evaluated.path / "second"))
    assert report_of(evaluated, "second")["baselines"]["single@base"]["alignment"]["n"] == 8
    assert verify(evaluated.path / "report", evaluated).problems == []
    assert verify(evaluated.path / "second", evaluated).problems == []
    old = evaluated.path / "report" / "predictions.json"
    old.write_text("{}")
    evaluate(evaluated)
    assert report_of(evaluated)["baselines"]["single@base"]["answered"] == 4
    assert not old.exists(), "predictions of an earlier evaluation do not stand beside a report"


def test_answers_of_a_stage_that_is_not_evaluated_and_of_other_weights_are_no_baseline(evaluated):
    file, plan = side(evaluated, "baselines"), plan_of(evaluated)
    for task in plan.tasks:
        row = {"baseline": "single@sft", "task_id": task.id, "repeat": 0, "answer": "yes", "error": None}
        append_line(file, row)
    names = {one.baseline for one in load_study(evaluated, plan).baselines}
    assert {"single@base", "single@sft"} & names == {"single@base"}
    rows = [{**row, "models": "other@1"} if "@" in row["baseline"] else row for row in read_lines(file)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert "single@base" not in {one.baseline for one in load_study(evaluated, plan).baselines}


def lone(server):
    """The single agent's requests: how many answers each asked for, by temperature."""
    alone = [one for one in server.requests if one["model"] == "scripted-junior" and "tools" not in one]
    alone = [one for one in alone if len(one["messages"]) == 2]
    return Counter((one["temperature"], one.get("n", 1)) for one in alone)


def test_self_consistency_takes_as_many_calls_as_the_society_s_tokens_allow(evaluated, server):
    """Every call of the script uses 5 tokens, so one junior gets as many calls as the society makes."""
    report = report_of(evaluated)
    k = report["work"]["base"]["calls"]
    assert report["work"]["consistency@base"] == {"calls": k, "tokens": 5 * k}
    assert report["work"]["single@base"] == {"calls": 1, "tokens": 5}
    assert report["baselines"]["consistency@base"]["title"].startswith(
        f"majority of {k:g} sampled calls at temperature 0.3"
    )
    temperature = evaluated.config.evaluation.temperature
    requests = lone(server)
    assert requests[0.0, 1] == 4
    assert {n for heat, n in requests if heat == temperature} == set(range(1, int(k)))
    assert verify(evaluated.path / "report", evaluated).problems == []


def test_votes_that_an_interruption_left_out_are_made_later_and_no_vote_twice(evaluated, server):
    rows = list(read_lines(side(evaluated, "baselines")))
    last = max(row["sample"] for row in rows)
    side(evaluated, "baselines").unlink()
    for row in rows:
        if row["sample"] != last:
            append_line(side(evaluated, "baselines"), row)
    server.requests.clear()
    evaluate(evaluated)
    assert set(lone(server)) == {(evaluated.config.evaluation.temperature, 1)}
    key = itemgetter("baseline", "task_id", "sample")
    assert Counter(map(key, read_lines(side(evaluated, "baselines")))) == Counter(map(key, rows))
    server.requests.clear()
    evaluate(evaluated)
    assert server.requests == []


def test_votes_are_as_many_as_the_rollouts_that_resume_adds_allow(run, server):
    goal = plan_of(run).tasks[0].goal
    server.hooks.append(
        lambda request: (400, "no") if server.role(request) == "ProtocolDesigner" and goal in str(request) else None
    )
    evaluate(run)
    server.hooks.clear()
    evaluate(run, "--resume")
    assert report_of(run)["baselines"]["consistency@base"]["answered"] == 4


def test_canaries_are_shown_to_the_judge_of_the_first_stage(run, monkeypatch):
    served = []

    async def serve(self, live, stage):
        served.append(stage.name)

    monkeypatch.setattr(Conductor, "_serve", serve)
    with run.own() as owned:
        owned.ledger(WENT_LIVE, phase="sft", policy=Policy("weights", "judge", "judge@sft", "models/a").dump())
    evaluate(run, "evaluation.self_consistency=false")
    evaluate(run, "evaluation.self_consistency=false")
    assert served == ["base", "sft", "base"]


def test_without_self_consistency_the_junior_is_asked_twice_a_task(run, server):
    evaluate(run, "evaluation.self_consistency=false")
    assert "consistency@base" not in report_of(run)["baselines"]
    assert sum(lone(server).values()) == 8
    assert verify(run.path / "report", run).problems == []


def test_an_agent_with_all_tools_answers_each_task_once_and_as_often_as_the_society_s_tokens_allow(evaluated, server):
    evaluate(evaluated, "evaluation.agent_tool_calls=2")
    rows = [row for row in read_lines(side(evaluated, "baselines")) if row["baseline"] == "agent@base"]
    assert {row["task_id"] for row in rows if row["sample"] == 0} == {task.id for task in plan_of(evaluated).tasks}
    report = report_of(evaluated)
    assert report["work"]["agents@base"]["tokens"] <= report["work"]["base"]["tokens"]
    assert "agents@base:base" in report["comparisons"]
    assert {"agent@base", "agents@base"} <= set(report["standing"])
    server.requests.clear()
    evaluate(evaluated, "evaluation.agent_tool_calls=2")
    assert server.requests == []


def test_labels_alone_are_learned_by_weights_only(run):
    with refused(ConfigError, "evaluation.labels", "models.junior", "endpoint", "false"):
        evaluate(run, "evaluation.labels=true")


def test_baselines_that_learned_from_other_data_are_replaced(evaluated):
    (task, *_) = plan_of(evaluated).tasks
    right = next(row for row in read_lines(side(evaluated, "baselines")) if row["task_id"] == task.id)
    wrong = {**right, "answer": "maybe" if right["answer"] != "maybe" else "no"}
    append_line(side(evaluated, "baselines"), wrong)
    before = len(list(read_lines(side(evaluated, "baselines"))))
    evaluate(evaluated)
    *_, last = read_lines(side(evaluated, "baselines"))
    assert (last, len(list(read_lines(side(evaluated, "baselines"))))) == (right, before + 1)


def test_rollouts_of_other_tasks_with_the_same_ids_do_not_count(evaluated):
    plan = plan_of(evaluated)
    (base,) = plan.stages
    assert len(recorded(evaluated, plan, base)) == 4
    others = tuple(replace(task, goal=f"{task.goal} Or not?") for task in plan.tasks)
    assert recorded(evaluated, replace(plan, tasks=others), base) == {}
    assert recorded(evaluated, replace(plan, source="pubmedqa"), base) == {}
    labels = {"yes": "no", "no": "maybe", "maybe": "yes"}
    relabelled = tuple(replace(task, label=labels[task.label]) for task in plan.tasks)
    with refused(RunError, "data has changed"):
        recorded(evaluated, replace(plan, tasks=relabelled), base)


def test_rollouts_of_other_policies_and_of_further_repeats_do_not_count(evaluated):
    plan = plan_of(evaluated)
    (base,) = plan.stages
    other = replace(base, versions={**base.versions, "senior": "another"})
    assert recorded(evaluated, plan, other) == {}
    first = next(evaluated.rollouts("eval-val-base-at-0.3"))
    with evaluated.own() as owned:
        owned.append_rollout({**first, "repeat": 1, "reward": 9.0}, phase="eval-val-base-at-0.3")
    assert {record.reward for record, _ in recorded(evaluated, plan, base).values()} != {9.0}
    assert len(recorded(evaluated, plan, base)) == 4


def test_the_last_stage_is_the_sequences_or_what_was_asked_for_last(run):
    with run.own() as owned:
        owned.ledger(WENT_LIVE, phase="sft", policy=Policy("weights", "junior", "junior@sft", "models/a").dump())
        owned.ledger(WENT_LIVE, phase="ppo", policy=Policy("weights", "senior", "senior@ppo", "models/b").dump())
    plan = plan_of(run)
    assert (plan.final.name, [stage.name for stage in plan.alone]) == ("ppo", ["base", "ppo"])
    alone = replace(plan, stages=choose_stages(run, "base,only-ppo"))
    assert (alone.final.name, [stage.name for stage in alone.alone]) == ("only-ppo", ["base"])
    assert replace(plan, stages=choose_stages(run, "base")).final.name == "base"
    combining = replace(alone, combining_slot="senior")
    assert [stage.name for stage in combining.alone] == ["base", "only-ppo"]
    assert combining.alone_of(combining.final) == combining.final


def test_a_report_at_another_temperature_has_rollouts_of_its_own_and_the_judge_stays_as_in_training(evaluated, server):
    usual = {file.name for file in (evaluated.path / "rollouts").iterdir()}
    server.requests.clear()
    evaluate(evaluated, "evaluation.temperature=0.25", "--out", str(evaluated.path / "cooler"))
    made = {file.name for file in (evaluated.path / "rollouts").iterdir()} - usual
    assert made == {"eval-val-base-at-0.25.jsonl"}
    sampled = {(one["model"] == "scripted-judge", one["temperature"]) for one in server.requests}
    assert sampled == {(False, 0.25), (True, 1.0)}
    evaluate(evaluated, "--verify", str(evaluated.path / "cooler"))
    server.requests.clear()
    evaluate(evaluated)
    assert server.requests == []
