"""`python -m chimera.study`: real child processes make what is missing, once; what is broken stops it in words."""

import json
import os
import re
import signal
import subprocess
import sys
import threading

import psutil
import pytest
from lab_kit import choice_goes_live
from message_kit import refused

from chimera.core.errors import ConfigError, RunError
from chimera.processes.study_children import run_child
from chimera.run.directory import Run
from chimera.run.jsonl import read_lines
from chimera.study import main

LONG = 200
"""Seconds: far beyond what anything here takes, on a busy machine too."""
pytestmark = [pytest.mark.whole, pytest.mark.timeout(4 * LONG)]


@pytest.fixture
def trained(scripted_run, scripted_openai, tmp_path):
    """A study's folder with two finished runs, whose models are endpoints: `data0-seed0` and `data0-seed1`."""
    scripted_openai.hooks.append(scripted_openai.justified)
    folder = tmp_path / "mine"
    began = next(event["policy_versions"] for event in scripted_run.events() if event["event"] == "phase_started")
    for seed in (0, 1):
        own = scripted_run.config
        one = {"rollouts": own.rollouts.model_copy(update={"concurrency": 1})}
        config = own.model_copy(update={"seed": seed, "runs_dir": folder, **one})
        with Run.create(f"data0-seed{seed}", config) as run:
            run.ledger("phase_started", phase="bandit", policy_versions=began)
            choice_goes_live(run, seed)
            run.ledger("phase_finished", phase="bandit")
    return folder


def command(folder, *arguments):
    return ["--name", folder.name, "--phases", "bandit", "--seeds", "2", f"runs_dir={folder.parent}", *arguments]


def events(folder):
    return [event["event"] for event in read_lines(folder / "study.jsonl")]


def study_of(folder):
    return json.loads((folder / "study.json").read_text())


def test_finished_runs_are_evaluated_once_and_reported_together(trained, scripted_openai, capsys):
    main(command(trained))
    assert events(trained) == ["created", *["evaluation started", "evaluation finished", "evaluated"] * 2]
    study = study_of(trained)
    assert study["same_tasks"]
    assert study["counts"]["runs"] == study["counts"]["training_seeds"] == 2
    whole = study["comparisons"][0]
    assert (whole["before"], whole["after"], whole["runs"]) == ("base", "final", ["data0-seed0", "data0-seed1"])
    for place, name in enumerate(whole["runs"]):
        report = json.loads((trained / name / "report" / "report.json").read_text())
        assert any(note.startswith("This report is about one training seed") for note in report["notes"])
        for metric in ("reward", "alignment", "macro_f1", "decision_alignment"):
            own = report["comparisons"]["base:bandit"][metric]
            found = whole["metrics"][metric]["per_run"][place]
            assert found["mean"] == pytest.approx(own["difference"])
            assert (found["before"], found["n"]) == (pytest.approx(own["before"]), own["n"])
            if metric != "macro_f1":
                assert (found["low"], found["high"]) == (pytest.approx(own["low"]), pytest.approx(own["high"]))
    output = capsys.readouterr().out
    assert "2/2 data0-seed1: evaluation took" in output
    assert "2 runs: 2 training seeds on each of 1 data seed" in output
    assert "data0-seed1" in (trained / "study.md").read_text()

    scripted_openai.requests.clear()
    before = (trained / "study.md").read_text()
    main(command(trained))
    assert scripted_openai.requests == []
    assert "2/2 data0-seed1: finished before" in capsys.readouterr().out
    assert (trained / "study.md").read_text() == before


def test_wrong_arguments_are_refused_before_anything_is_made(tmp_path):
    with refused(ConfigError, "--data-seeds 2", "generated tasks"):
        main(["--data-seeds", "2", "data.path=hub", f"runs_dir={tmp_path}"])
    with refused(ConfigError, "'pppo'"):
        main(["--phases", "pppo", f"runs_dir={tmp_path}"])
    with pytest.raises(RunError, match="cannot name a run"):
        main(["--name", "../x", f"runs_dir={tmp_path}"])
    assert list(tmp_path.iterdir()) == []


def test_the_name_of_a_run_is_refused(scripted_run):
    with refused(RunError, "--name"):
        main(["--name", scripted_run.name, f"runs_dir={scripted_run.path.parent}"])


def test_a_run_that_fails_stops_the_study_in_one_sentence_and_the_study_keeps_its_settings(tmp_path):
    """A real training, whose model is not there."""
    arguments = ["--name", "mine", f"runs_dir={tmp_path}", "models.junior.path=/nowhere/model"]
    with pytest.raises(RunError) as error:
        main(arguments)
    message = str(error.value)
    assert re.search(r"training of run data0-seed0 \(process \d+\) ended with exit code 2: ", message)
    assert "/nowhere/model" in message
    assert str(tmp_path / "mine" / "logs" / "data0-seed0.training.log") in message
    assert not (tmp_path / "mine" / "data0-seed1").exists()
    assert events(tmp_path / "mine") == ["created", "training started"]
    with refused(RunError, "pipeline.bandit.tasks=40", "7", "keep it"):
        main([*arguments, "bandit.tasks=7"])
    with refused(RunError, "phases=['gather', 'sft', 'ppo', 'design', 'bandit']", "['gather']"):
        main([*arguments, "--phases", "gather"])


def test_a_child_that_is_killed_is_named(tmp_path, monkeypatch):
    text = "import os\ndef main(argv):\n    print('about to go', flush=True)\n    os.kill(os.getpid(), 9)\n"
    (tmp_path / "doomed.py").write_text(text)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    with refused(RunError, "run x", "SIGKILL", "about to go", lines=None):
        run_child("doomed", [], tmp_path / "log", what="training of run x")


def started(folder, *arguments):
    return subprocess.Popen(
        [sys.executable, "-m", "chimera.study", *command(folder, *arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.fixture
def waiting(scripted_openai):
    """The scripted server lets the third task wait; the event tells that it was asked."""
    arrived, goals = threading.Event(), []

    async def slow(request):
        goal = scripted_openai.goal(request)
        if goal not in goals:
            goals.append(goal)
        if goals.index(goal) >= 2:
            arrived.set()
            return 503, "wait"
        return None

    scripted_openai.hooks.append(slow)
    return arrived


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_study_leaves_nothing_running_and_goes_on(trained, scripted_openai, waiting, number):
    process = started(trained, "--seeds", "1")
    assert waiting.wait(LONG), process.communicate()
    family = psutil.Process(process.pid).children(recursive=True)
    assert family
    process.send_signal(number)
    output, errors = process.communicate(timeout=LONG)
    if number is signal.SIGKILL:
        assert process.returncode == -signal.SIGKILL
    else:
        assert (process.returncode, errors.strip().splitlines()[-1]) == (130, "interrupted"), output
    assert psutil.wait_procs(family, timeout=LONG)[1] == []
    assert events(trained) == ["created", "evaluation started"]
    assert len(list(Run.open("data0-seed0", trained).rollouts("eval-test-base-at-0.3"))) == 2
    scripted_openai.hooks.pop()
    process = started(trained, "--seeds", "1")
    output, errors = process.communicate(timeout=2 * LONG)
    assert process.returncode == 0, errors
    assert study_of(trained)["counts"]["runs"] == 1
    log = (trained / "logs" / "data0-seed0.evaluation.log").read_text()
    assert ": 2 recorded, " in log
