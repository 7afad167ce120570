"""The examples with your own data and with reviews, as a user runs them: train, evaluate, verify, export.

Of reviews also what is recorded: each study's visit is a state to learn from, and a trace replays to its record.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from ask_kit import printed_by

from chimera.data.tasks import load
from chimera.run.directory import Run
from chimera.run.policies import live
from evaluation.rollout.replay import Replay
from evaluation.traces.calls import last_outcome, model_calls
from training.lab.records import Records
from training.learning.states import findings_in, states_of

REPOSITORY = Path(__file__).parents[2]
SMALLER = ["rollouts.concurrency=2", "wandb.mode=disabled", "gate.tasks=0"]
TASKS = {"own_csv": "T002", "medqa": "row-43fe492c4b13", "review": "review-0-5"}
QUICK = ["evaluation.resamples=20", "evaluation.self_consistency=false"]


def command(module, *arguments):
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments], capture_output=True, text=True, check=False, cwd=REPOSITORY
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", ["own_csv", "medqa", "review"])
def test_an_example_trains_evaluates_and_is_exported(name, tmp_path):
    config = tmp_path / "config.yaml"
    lines = (REPOSITORY / "configs" / f"{name}.yaml").read_text().splitlines(keepends=True)
    config.write_text("".join(line for line in lines if not line.startswith("gate:")))
    here = f"runs_dir={tmp_path}"
    sizes = ["--quick"] if name == "review" else []  # the others are as small
    command("chimera.train", "--config", str(config), "--name", name, *sizes, here, *SMALLER)
    run = Run(tmp_path / name)
    assert {policy.target for policy in live(run.events()).values()} == {"junior", "refiner", "senior", "Supervisor"}
    command("chimera.eval", "--run", name, "--stages", "base,final", "--limit", "8", here, *QUICK)
    report = json.loads((run.path / "report" / "report.json").read_text())
    labels = ["A", "B", "C", "D", "E"] if name == "medqa" else ["yes", "no", "maybe"]
    assert report["plan"]["labels"] == labels
    for stage in ("base", "final"):
        outcome = report["outcomes"][stage]
        assert (outcome["failed"], list(outcome["confusion"])) == (0, labels)
        assert ("decision_alignment" in report["stages"][stage]) == (name != "medqa")
    cautions = str([*report["notes"], *report["cautions"]])
    assert ("bundled model" in cautions) == (name != "review")  # it knows generated tasks
    assert "and is the same" in command("chimera.eval", "--verify", str(run.path / "report"))
    command("chimera.export", str(run.path), "--role", "HypothesisRefiner", "--out", str(tmp_path / "refiner"))
    assert "the whole run, beside base" in (tmp_path / "refiner" / "README.md").read_text()
    exported = f"models.junior.path={tmp_path / 'refiner'}"
    asked = command("chimera.ask", "--task", TASKS[name], "--config", str(config), exported)
    assert "option A" in asked or name != "medqa"


@pytest.fixture
def gathered(tmp_path):
    """A run with two reviews."""
    config = REPOSITORY / "configs" / "review.yaml"
    options = ["--config", config, "--phases", "gather", "--name", "review", f"runs_dir={tmp_path}"]
    printed_by("chimera.train", *options, *SMALLER, "gather.tasks=2", "data.levels=[3]")
    return Run(tmp_path / "review")


@pytest.mark.whole
async def test_every_study_s_visit_is_a_state_and_a_rollout_replays_from_its_trace(gathered):
    run = gathered
    tasks = {task.id: task for task in load(run.config.data).tasks}
    records, replay = Records(run, run.config.reward), Replay(run.config, run.path)
    for record in records.of("gather").values():
        episode, task = records.episode(record), tasks[record.task_id]
        states = states_of(episode, ["Geneticist", "Pharmacologist"], task)
        studies = [[finding["study"] for finding in state.conversation.answer["findings"]] for state in states]
        assert all(len(of_visit) == 1 for of_visit in studies)
        assert {state.conversation.stance for state in states} == {None}
        assert {study for (study,) in studies} == {finding["study"] for finding in findings_in(record)}
        assert [[vote.study for vote in state.votes] for state in states] == studies
        assert len({state.name for state in states}) == len(states) > 4
        _, outcome = last_outcome(trace := episode.trace()) or ("", {})
        again = await replay.run(record, model_calls(trace), outcome["calls"], task)
        assert (again.outputs, again.reward) == (record.outputs, record.reward)
