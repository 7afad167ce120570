"""The seam's proof: a user's own algorithm by its class, in one small run by YAML alone."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from ask_kit import printed_by

from chimera.run.directory import Run
from chimera.run.policies import live

pytestmark = pytest.mark.whole

REPOSITORY = Path(__file__).parents[2]
PIPELINE = """
data: {size: 60}
rollouts: {concurrency: 2, timeout_s: 6000}
gate: {tasks: 2}
wandb: {mode: disabled}
pipeline:
  gather: {tasks: 4}
  mine: {algorithm: "examples.my_algorithm:Mine", roles: juniors, min_examples: 1, epochs: 1, batch_size: 8}
"""


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """A run whose pipeline is the YAML above, and what it printed."""
    folder = tmp_path_factory.mktemp("runs")
    file = folder / "mine.yaml"
    file.write_text(PIPELINE)
    printed = printed_by("chimera.train", "--config", file, "--name", "mine", f"runs_dir={folder}")
    return SimpleNamespace(run=Run(folder / "mine"), output=printed)


def test_the_example_runs_to_its_end_and_leaves_a_policy_of_its_slot(ran):
    events = list(ran.run.events())
    finished = {event["phase"]: event.get("kept") for event in events if event["event"] == "phase_finished"}
    assert list(finished) == ["gather", "mine"]
    (policy,) = [event["policy"] for event in events if event["event"] == "phase_learned"]
    assert policy["version"] == "junior@mine"
    assert (ran.run.path / policy["folder"] / "model.safetensors").is_file()
    assert set(live(events)) == ({("weights", "junior")} if finished["mine"] else set())


def test_the_example_learns_from_the_best_rollout_of_each_task(ran):
    rewards = {record["task_id"]: record["reward"] for record in ran.run.rollouts("gather")}
    rows = [json.loads(line) for line in (ran.run.path / "phases/mine/examples.jsonl").open()]
    assert rows
    assert all(row["reward"] == rewards[row["task_id"]] for row in rows)
    assert "0 by other weights" in ran.output


def test_the_example_fits_a_page():
    assert len((REPOSITORY / "examples/my_algorithm.py").read_text().splitlines()) <= 40
