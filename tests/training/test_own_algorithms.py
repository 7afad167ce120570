"""The seam's proof: an algorithm in one short file, and a user's own by its class, in one small run by YAML alone."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from chimera.run.directory import Run
from chimera.run.jsonl import read_lines
from chimera.run.policies import live

pytestmark = pytest.mark.whole

REPOSITORY = Path(__file__).parents[2]
PIPELINE = """
data: {size: 60}
models: {refiner: {like: senior}}
roles: {HypothesisRefiner: {model: refiner}}
rollouts: {concurrency: 2, timeout_s: 6000}
gate: {tasks: 2}
wandb: {mode: disabled}
pipeline:
  gather: {tasks: 4}
  rejection: {roles: [HypothesisRefiner], answers: 4, min_examples: 1, epochs: 1, batch_size: 8}
  mine: {algorithm: "examples.my_algorithm:Mine", roles: juniors, min_examples: 1, epochs: 1, batch_size: 8}
"""


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """A run whose pipeline is the YAML above, in a process of its own; the repository is where it is started."""
    folder = tmp_path_factory.mktemp("runs")
    file = folder / "mine.yaml"
    file.write_text(PIPELINE)
    command = [sys.executable, "-m", "chimera.train", "--config", str(file), "--name", "mine", f"runs_dir={folder}"]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    run = Run(folder / "mine")
    finished = {event["phase"]: event for event in run.events() if event["event"] == "phase_finished"}
    return SimpleNamespace(run=run, output=done.stdout, finished=finished)


def test_each_algorithm_runs_to_its_end_and_leaves_a_policy_of_its_slot(ran):
    assert list(ran.finished) == ["gather", "rejection", "mine"]
    learned = {event["phase"]: event["policy"] for event in ran.run.events() if event["event"] == "phase_learned"}
    assert {phase: policy["version"] for phase, policy in learned.items()} == {
        "rejection": "refiner@rejection",
        "mine": "junior@mine",
    }
    for policy in learned.values():
        assert (ran.run.path / policy["folder"] / "model.safetensors").is_file()
    assert set(live(ran.run.events())) == {
        ("weights", policy["target"]) for phase, policy in learned.items() if ran.finished[phase]["kept"]
    }


def test_rejection_learns_from_branches_that_are_recorded_and_counted(ran):
    figures = ran.finished["rejection"]["figures"]
    calls = list(read_lines(ran.run.path / "phases/rejection/calls.jsonl"))
    assert {call["slot"] for call in calls} == {"refiner"}
    assert figures["branch_requests"] == len(calls) == figures["branches/states"]
    assert figures["branch_answers"] == 4 * figures["branches/states"]
    assert figures["branches/answers"] == figures["branch_answers"] - figures["branches/unvalued"]
    assert figures["branch_prompt_tokens"] == sum(call["response"]["usage"]["prompt_tokens"] for call in calls)
    assert figures["branches/stale"] == 0
    rows = [json.loads(line) for line in (ran.run.path / "phases/rejection/examples.jsonl").open()]
    assert {row["role"] for row in rows} == {"HypothesisRefiner"}


def test_the_example_learns_from_the_best_rollout_of_each_task(ran):
    rewards = {record["task_id"]: record["reward"] for record in ran.run.rollouts("gather")}
    rows = [json.loads(line) for line in (ran.run.path / "phases/mine/examples.jsonl").open()]
    assert rows
    assert all(row["reward"] == rewards[row["task_id"]] for row in rows)
    assert "0 by other weights" in ran.output


def test_the_example_fits_a_page():
    assert len((REPOSITORY / "examples/my_algorithm.py").read_text().splitlines()) <= 40
