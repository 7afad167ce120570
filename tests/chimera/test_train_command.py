"""`python -m chimera.train`: the trial of `--quick`, and phases that nobody has made rollouts for."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from message_kit import refused

from chimera.core.errors import ConfigError
from chimera.data.tasks import load
from chimera.run.directory import TRIAL
from training.configuration import load_config
from training.phases import check_rollouts, choose_names, make_phases

pytestmark = pytest.mark.whole

ROOT = Path(__file__).parents[2]
SMALLER = ("data.size=60", "rollouts.concurrency=2", "wandb.mode=disabled")


def train(*arguments):
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


def test_a_trial_is_not_resumed_as_another():
    ended = train("--quick", "--resume")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "--resume goes on with the run's own settings: leave --quick out" in ended.stderr


def test_a_trial_of_any_configuration_fits_a_small_file(tmp_path):
    """quick.yaml's tasks are more than 30 rows have; the lowered sizes are said in one line."""
    rows = [f"Does drug {number} work?,{('yes', 'no', 'maybe')[number % 3]}" for number in range(30)]
    (tmp_path / "few.csv").write_text("\n".join(["question,label", *rows]) + "\n")
    (tmp_path / "mine.yaml").write_text(f"data: {{path: {tmp_path}/few.csv}}\nsociety: {{evidence: given}}\n")
    ended = train("--quick", "--config", str(tmp_path / "mine.yaml"), "--check")
    assert ended.returncode == 0, ended.stderr
    assert "the trial takes no more tasks than there are: gate.tasks=6 gather.tasks=18" in ended.stdout
    asked = train("--quick", "--config", str(tmp_path / "mine.yaml"), "--check", "gather.tasks=20")
    assert (asked.returncode, "gather.tasks=20, but there are 18 training tasks" in asked.stderr) == (2, True)


def test_a_trial_says_at_its_start_and_end_that_it_is_one_also_when_it_is_continued(tmp_path):
    of_run = ("--name", "trial", f"runs_dir={tmp_path}")
    ended = train("--quick", *of_run, "--phases", "gather", *SMALLER, "gather.tasks=2")
    assert ended.returncode == 0, ended.stderr
    lines = ended.stdout.splitlines()
    assert ended.stdout.count(TRIAL) == 2
    assert lines[2] == TRIAL
    assert next(line for line in lines if line.startswith(f"{TRIAL};")) in lines[-4:]
    continued = train("--resume", *of_run)
    assert continued.returncode == 0, continued.stderr
    assert continued.stdout.count(TRIAL) == 2


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_a_trial_runs_all_phases(tmp_path):
    ended = train("--quick", "--name", "trial", f"runs_dir={tmp_path}")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    events = [json.loads(line) for line in (tmp_path / "trial" / "ledger.jsonl").read_text().splitlines()]
    assert [event["phase"] for event in events if event["event"] == "phase_finished"] == list(load_config().pipeline)


def test_the_bundled_model_with_data_that_it_cannot_read_is_a_warning_before_anything_starts(tmp_path):
    rows = [
        f"Does drug {number} help?,Drug {number} helped {number}.,{'yes' if number % 2 else 'no'}"
        for number in range(40)
    ]
    (tmp_path / "mine.csv").write_text("\n".join(["question,context,label", *rows]))
    ended = train("--check", f"data.path={tmp_path / 'mine.csv'}", "gather.tasks=4", "--phases", "gather")
    assert ended.returncode == 0, ended.stderr
    (warning,) = [line for line in ended.stdout.splitlines() if line.startswith("warning: ")]
    assert "the bundled model plays junior, supervisor, senior, refiner: a toy" in warning
    assert "models.junior.path=FOLDER" in warning
    assert "warning" not in train("--check", "--phases", "gather").stdout


def test_a_phase_without_rollouts_is_refused_before_anything_starts(tmp_path):
    ended = train("--phases", "sft", "--name", "lonely", f"runs_dir={tmp_path}")
    assert ended.returncode == 2
    assert "starting" not in ended.stdout
    assert ended.stderr.startswith("error: sft learns from rollouts, and none are made before it")
    assert "--phases gather,sft" in ended.stderr
    assert not list(tmp_path.iterdir())


def test_a_continued_run_with_rollouts_may_go_on_with_any_phase(tmp_path):
    of_run = ("--name", "later", f"runs_dir={tmp_path}", *SMALLER, "gate.tasks=0")
    assert train("--phases", "gather", *of_run, "gather.tasks=4").returncode == 0
    ended = train("--resume", "--phases", "sft", *of_run, "sft.min_examples=1", "sft.epochs=1")
    assert ended.returncode == 0, ended.stderr
    assert "sft: " in ended.stdout
    own = next(line for line in ended.stdout.splitlines() if line.startswith("its own settings, which are not today's"))
    assert "data.size=60 (1000), gate.tasks=0 (100), pipeline.gather.tasks=4 (120), and 4 more" in own
    assert str(tmp_path) not in own


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
