"""`python -m chimera.train`: the trial of `--quick`, and phases that nobody has made rollouts for."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from config_kit import unread_data, written
from message_kit import refused

from chimera.core.errors import ConfigError
from chimera.data.tasks import load
from chimera.run.directory import TRIAL
from chimera.train import main
from training.configuration import load_config
from training.phases import check_rollouts, choose_names, make_phases

ROOT = Path(__file__).parents[2]
SMALLER = ("data.size=60", "rollouts.concurrency=2", "wandb.mode=disabled")


def train(*arguments):
    """The command as a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "chimera.train", *arguments],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        check=False,
    )


def test_a_trial_has_the_default_phases_in_smaller_and_the_command_line_wins():
    usual, quick = load_config(), load_config(None, ["sft.epochs=2", "gate.tasks=7"], trial=True)
    assert list(quick.pipeline) == list(usual.pipeline)
    assert (quick.pipeline["sft"].epochs, quick.gate.tasks) == (2, 7)
    for name, phase in quick.pipeline.items():
        assert (phase.algorithm, phase.roles) == (usual.pipeline[name].algorithm, usual.pipeline[name].roles)
        assert phase != usual.pipeline[name]
    data = load(quick.data)
    assert make_phases(choose_names(None, quick), quick, data)
    assert len(data.validation) >= load_config(trial=True).gate.tasks


def test_a_trial_is_not_resumed_as_another(capsys):
    with refused(ConfigError, "--resume", "leave --quick out"):
        main(["--quick", "--resume"])
    assert capsys.readouterr().out == ""


def test_a_trial_of_any_configuration_fits_a_small_file(tmp_path, capsys):
    """quick.yaml's tasks are more than 30 rows have; the lowered sizes are said in one line."""
    rows = [f"Does drug {number} work?,{('yes', 'no', 'maybe')[number % 3]}" for number in range(30)]
    (tmp_path / "few.csv").write_text("\n".join(["question,label", *rows]) + "\n")
    file = written(tmp_path, f"data: {{path: {tmp_path}/few.csv}}\nsociety: {{evidence: given}}\n")
    trial = ["--quick", "--config", str(file), "--check"]
    assert main(trial) == 0
    said = capsys.readouterr().out
    assert "the trial takes no more tasks than there are: gate.tasks=6 gather.tasks=18" in said
    with refused(ConfigError, "gather.tasks=20", "18 training tasks"):
        main([*trial, "gather.tasks=20"])


@pytest.mark.whole
def test_a_trial_says_that_it_is_one_and_may_go_on_with_any_phase(tmp_path):
    of_run = ("--name", "trial", f"runs_dir={tmp_path}", *SMALLER, "gate.tasks=0")
    ended = train("--quick", *of_run, "--phases", "gather", "gather.tasks=4")
    assert ended.returncode == 0, ended.stderr
    lines = ended.stdout.splitlines()
    assert ended.stdout.count(TRIAL) == 2
    assert lines[2] == TRIAL
    assert next(line for line in lines if line.startswith(f"{TRIAL};")) in lines[-4:]
    continued = train("--resume", "--phases", "sft", *of_run, "sft.min_examples=1", "sft.epochs=1")
    assert continued.returncode == 0, continued.stderr
    assert continued.stdout.count(TRIAL) == 2
    assert "sft: " in continued.stdout
    lines = continued.stdout.splitlines()
    own = next(line for line in lines if line.startswith("its own settings, which are not today's"))
    assert "data.size=60 (1000), gate.tasks=0 (100), pipeline.bandit.tasks=8 (40), and" in own
    assert str(tmp_path) not in own


@pytest.mark.whole
@pytest.mark.long
@pytest.mark.timeout(1800)
def test_a_trial_runs_all_phases(tmp_path):
    ended = train("--quick", "--name", "trial", f"runs_dir={tmp_path}")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    events = [json.loads(line) for line in (tmp_path / "trial" / "ledger.jsonl").read_text().splitlines()]
    assert [event["phase"] for event in events if event["event"] == "phase_finished"] == list(load_config().pipeline)


def test_the_bundled_model_with_data_that_it_cannot_read_is_a_warning_before_anything_starts(tmp_path, capsys):
    assert main(["--check", f"data.path={unread_data(tmp_path)}", "gather.tasks=4", "--phases", "gather"]) == 0
    (warning,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("warning: ")]
    assert "the bundled model plays junior, supervisor, senior, refiner: a toy" in warning
    assert "models.junior.path=FOLDER" in warning
    main(["--check", "--phases", "gather"])
    assert "warning" not in capsys.readouterr().out


def test_a_phase_without_rollouts_is_refused_before_anything_starts(tmp_path, capsys):
    with refused(ConfigError, "sft learns from rollouts", "--phases gather,sft"):
        main(["--phases", "sft", "--name", "lonely", f"runs_dir={tmp_path}"])
    assert "starting" not in capsys.readouterr().out
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("first", "settings", "needs_rollouts"),
    [
        ("gather", [], False),
        ("sft", [], True),
        ("sft", ["sft.tasks=4"], False),
        ("sft", ["sft.algorithm=sft"], True),
        ("ppo", [], True),
        ("ppo", ["ppo.states=0"], False),
        ("bandit", [], True),
        ("dpo", ["pipeline.dpo.roles=[HypothesisRefiner]"], True),
        ("star", ["pipeline.star.roles=[HypothesisRefiner]"], True),
        ("distil", ["pipeline.distil.roles=juniors", "sft.shared=true"], True),
        ("distil", ["pipeline.distil.roles=juniors", "pipeline.distil.tasks=4"], False),
    ],
)
def test_which_phases_cannot_come_first(first, settings, needs_rollouts):
    config = load_config(None, settings)
    phases = make_phases([first, *(["gather"] if first != "gather" else [])], config, load(config.data))
    check_rollouts(phases, recorded=True)
    if needs_rollouts:
        with refused(ConfigError, first, "learns from rollouts"):
            check_rollouts(phases, recorded=False)
    else:
        check_rollouts(phases, recorded=False)
