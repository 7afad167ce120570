"""`python -m chimera.eval` on a run whose models are endpoints: what is missing is made, and nothing twice."""

import io
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections import Counter
from contextlib import redirect_stdout

import pytest
from lab_kit import choice_goes_live
from message_kit import refused

from chimera.core.errors import ConfigError, ModelError, RunError
from chimera.data.tasks import load
from chimera.eval import main
from chimera.run.directory import Run
from chimera.run.seals import seal
from evaluation.records.rollouts import RolloutRecord
from evaluation.traces import calls as traced_calls
from evaluation.traces import spans

pytestmark = pytest.mark.whole

STACK = ("agentlightning", "verl", "trl", "torch", "transformers", "wandb", "litellm", "datasets", "peft", "ray")


@pytest.fixture
def server(scripted_openai):
    return scripted_openai


def with_choice(run):
    with run.own() as own:
        choice_goes_live(own)
    return run


@pytest.fixture
def trained(scripted_run, server):
    """A run with endpoints for models and a bandit that went live: stages base and bandit, four held-out tasks."""
    server.hooks.append(server.justified)
    return with_choice(scripted_run)


@pytest.fixture(scope="module")
def evaluated(scripted_run_in, scripted_openai, tmp_path_factory):
    """Such a run whose stages were evaluated, and what the command printed."""
    run = with_choice(scripted_run_in(tmp_path_factory.mktemp("evaluated"), scripted_openai))
    scripted_openai.hooks[:] = [scripted_openai.justified]
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(io.StringIO()) as printed:
        patch.setenv("TEST_KEY", "sk-a-users-own-key-4242")
        assert evaluate(run) == 0
    return run, printed.getvalue()


def evaluate(run, *arguments):
    return main(
        ["--run", run.name, "--split", "val", f"runs_dir={run.path.parent}", "rollouts.concurrency=2", *arguments]
    )


def records(run, stage):
    return [RolloutRecord.load(data) for data in run.rollouts(f"eval-val-{stage}-at-0.3")]


def test_the_default_report_is_on_test_tasks_that_no_decision_used(trained, server):
    assert main(["--run", trained.name, f"runs_dir={trained.path.parent}", "--stages", "base"]) == 0
    report, data = report_of(trained), load(trained.config.data)
    assert report["plan"]["split"] == "test"
    assert {task["id"] for task in report["plan"]["tasks"]} == {task.id for task in data.test}
    assert any("No decision of training used these test tasks" in note for note in report["notes"])
    assert not (trained.path / "report" / "predictions.json").exists(), "these are no PubMedQA items"


def report_of(run):
    return json.loads((run.path / "report" / "report.json").read_text())


def test_every_stage_answers_the_same_tasks_with_the_same_seeds(evaluated):
    run, printed = evaluated
    base, bandit = records(run, "base"), records(run, "bandit")
    assert {(one.task_id, one.seed) for one in base} == {(one.task_id, one.seed) for one in bandit}
    assert len(base) == len(bandit) == 4
    assert {one.status for one in base + bandit} == {"succeeded"}
    assert {one.outputs["selection"]["policy"] for one in base} == {"supervisor"}
    assert {one.outputs["selection"]["policy"] for one in bandit} == {"Supervisor@bandit"}
    assert all(sum(one.parts.values()) == pytest.approx(one.reward) for one in base + bandit)
    assert base[0].tokens["junior"] == {"prompt": 18, "completion": 12}
    report = report_of(run)
    assert report["stages"]["base"]["reward"]["mean"] == pytest.approx(sum(one.reward for one in base) / 4)
    assert report["comparisons"]["base:bandit"]["alignment"]["n"] == 4
    assert {"majority", "tfidf", "single@base"} <= set(report["baselines"])
    assert set(report["written"]) == {"time", "commit", "modified_files"}
    assert report["written"]["time"][:16].replace("T", " ") in (run.path / "report" / "report.md").read_text()
    assert "8 to make" in printed
    for name in ("index.html", "report.md"):
        assert (run.path / "report" / name).stat().st_size > 1000


def test_each_rollout_has_a_trace_in_the_form_of_trainings(evaluated):
    run, _ = evaluated
    record = records(run, "base")[0]
    trace = spans.read(run.path / record.trace)
    calls = traced_calls.model_calls(trace)
    assert Counter(call.role for call in calls) == {
        **dict.fromkeys(("Geneticist", "Pharmacologist", "Neurologist"), 2),
        **dict.fromkeys(("HypothesisRefiner", "ProtocolDesigner"), 2),
        **dict.fromkeys(("Supervisor", "PeerReviewer", "SafetyOfficer", "PrincipalInvestigator", "Evaluation"), 1),
    }
    assert traced_calls.untraced(trace) == set()
    _, outcome = traced_calls.last_outcome(trace)
    assert outcome["reward"] == record.reward
    assert "sk-a-users-own-key" not in json.dumps([dict(span.attributes) for span in trace])


def test_a_second_evaluation_makes_nothing_again_and_what_the_gate_recorded_counts(
    evaluated, server, scripted_key, capsys, tmp_path
):
    before, _ = evaluated
    run = Run(shutil.copytree(before.path, tmp_path / before.name))
    server.requests.clear()
    evaluate(run)
    assert server.requests == []
    assert "8 recorded, 0 to make" in capsys.readouterr().out
    with run.own() as own:
        for record in records(run, "base"):
            own.append_rollout({**record.dump(), "phase": "gate-base"}, phase="gate-base")
    run.rollouts_file("eval-val-base-at-0.3").unlink()
    evaluate(run, "--stages", "base")
    assert server.requests == []
    assert not run.rollouts_file("eval-val-base-at-0.3").exists()


def test_a_policy_that_was_exchanged_is_named_and_not_evaluated(trained, server):
    with trained.own() as run:
        seal(run)
    before, file = len(server.requests), trained.path / "models/Supervisor/bandit/policy.json"
    file.write_text(file.read_text().replace('"events": 0', '"events": 9'))
    with refused(RunError, "bandit/policy.json", "hash"):
        evaluate(trained, "--stages", "bandit")
    assert len(server.requests) == before


def test_busy_servers_are_waited_for(trained, server):
    refused = []

    def busy(request):
        if len(refused) < 3:
            refused.append(request)
            return 429, "slow down"
        return None

    server.hooks.append(busy)
    evaluate(trained, "--stages", "base", "--limit", "2")
    assert {record.status for record in records(trained, "base")} == {"succeeded"}
    assert len(refused) == 3


def test_failures_are_counted_and_resume_makes_them_again(trained, server):
    unlucky = []

    def broken(request):
        goal = server.goal(request)
        if not unlucky:
            unlucky.append(goal)
        return (400, "I cannot") if goal == unlucky[0] and server.role(request) == "Supervisor" else None

    server.hooks.append(broken)
    evaluate(trained, "--stages", "base")
    assert Counter(one.status for one in records(trained, "base")) == {"succeeded": 3, "failed": 1}
    success = report_of(trained)["stages"]["base"]["success"]
    assert (success["mean"], success["n"]) == (0.75, 4)
    server.hooks.pop()
    evaluate(trained, "--stages", "base")
    assert len(records(trained, "base")) == 4
    evaluate(trained, "--stages", "base", "--resume")
    assert [one.status for one in records(trained, "base")][-1] == "succeeded"
    assert len(records(trained, "base")) == 5
    assert report_of(trained)["stages"]["base"]["success"]["mean"] == 1.0
    assert any("1 of 4 rollouts of base failed at first" in note for note in report_of(trained)["notes"])


def test_a_server_that_is_gone_ends_the_evaluation_and_what_was_made_stays(trained, server):
    evaluate(trained, "--stages", "base", "--limit", "1")
    config = trained.path / "config.yaml"
    text = config.read_text()
    config.write_text(text.replace(server.url, "http://127.0.0.1:9/v1"))
    with pytest.raises(ModelError, match="cannot be reached"):
        evaluate(trained, "--stages", "base", "rollouts.retries=0")
    config.write_text(text)
    assert len(records(trained, "base")) == 1
    evaluate(trained, "--stages", "base")
    assert len(records(trained, "base")) == 4


def test_models_other_than_the_runs_are_refused(trained):
    config = trained.path / "config.yaml"
    config.write_text(config.read_text().replace("scripted-senior", "another-model"))
    with refused(RunError, "senior=scripted-senior", "another-model"):
        evaluate(trained)


def test_a_second_judge_of_the_command_line_is_sent_no_key_of_the_run_s_own(trained, server):
    config = trained.path / "config.yaml"
    own = "kind: endpoint, base_url: http://127.0.0.1:9/v1, model: own, api_key_env: KEY_THAT_IS_NOT_SET"
    config.write_text(config.read_text().replace("auditor:\n    kind: checklist", f"auditor: {{{own}}}"))
    evaluate(trained, "--stages", "base", "--limit", "1", "--judge", f"@x/other@{server.url}")
    assert report_of(trained)["judges"]["auditor"] == "@x/other"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["models.junior.temperature=0"], "models.junior.temperature"),
        (["--judge", "rubric"], ("checklist", "none", "MODEL@URL")),
        (["--limit", "9"], ("--limit 9", "8 tasks", "val split")),
    ],
)
def test_wrong_arguments_are_refused_before_anything_is_asked(trained, server, arguments, message):
    with refused(ConfigError, message):
        evaluate(trained, *arguments)
    assert server.requests == []


BLOCK = f"""
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {STACK!r}:
            raise ModuleNotFoundError(f"no module named {{name!r}}", name=name)
sys.meta_path.insert(0, Block())
from chimera.eval import main
from chimera.core.cli import run_command
from training.algorithms.bandit import BanditSettings
run_command(main)
"""


def started(run, *arguments, **options):
    where = ["--run", run.name, "--split", "val", f"runs_dir={run.path.parent}"]
    command = [sys.executable, "-c", BLOCK, *where, *arguments]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ, **options
    )


def test_without_the_training_stack_and_through_an_interruption(trained, server):
    """Ctrl-C while the third task is answered: two are kept; the second run makes only what is left."""
    arrived, goals = threading.Event(), []

    async def slow(request):
        goal = server.goal(request)
        if goal not in goals:
            goals.append(goal)
        if goals.index(goal) == 2:
            arrived.set()
            await server.never()
        return None

    server.hooks.append(slow)
    process = started(trained, "--stages", "base", "rollouts.concurrency=1")
    arrived.wait()
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate()
    assert (process.returncode, errors.split()[-1]) == (130, "interrupted")
    kept = records(trained, "base")
    assert len(kept) == 2
    server.hooks.clear()
    process = started(trained, "--stages", "base")
    output, errors = process.communicate()
    assert process.returncode == 0, errors
    assert "2 recorded, 2 to make" in output
    assert [one.rollout_id for one in records(trained, "base")][:2] == [one.rollout_id for one in kept]
