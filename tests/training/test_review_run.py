"""configs/review.yaml as recorded: each study's visit is a state to learn from, and a trace replays to its record."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from chimera.data.tasks import load
from chimera.run.directory import Run
from evaluation.traces.calls import last_outcome, model_calls
from evaluation.verify.replay import Replay
from training.lab.records import Records
from training.learning.states import findings_in, states_of

pytestmark = pytest.mark.whole
REPOSITORY = Path(__file__).parents[2]
JUNIORS = ("Geneticist", "Pharmacologist")
SETTINGS = ["gather.tasks=2", "gate.tasks=0", "wandb.mode=disabled", "data.levels=[3]"]


@pytest.fixture(scope="module")
def gathered(tmp_path_factory):
    """The run's folder, its configuration, and its episodes with their tasks."""
    folder = tmp_path_factory.mktemp("runs")
    options = ["--config", "configs/review.yaml", "--phases", "gather", "--name", "review"]
    command = [sys.executable, "-m", "chimera.train", *options, f"runs_dir={folder}", *SETTINGS]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=REPOSITORY)
    assert done.returncode == 0, done.stderr
    run = Run(folder / "review")
    config = run.config
    tasks = {task.id: task for task in load(config.data).tasks}
    records = Records(run, config.reward)
    episodes = [(records.episode(record), tasks[record.task_id]) for record in records.of("gather").values()]
    assert [episode.record.status for episode, _ in episodes] == ["succeeded"] * 2
    return SimpleNamespace(folder=run.path, config=config, episodes=episodes)


def test_every_finding_is_a_state_that_is_right_or_wrong_by_its_study(gathered):
    for episode, task in gathered.episodes:
        states = states_of(episode, JUNIORS, task)
        studies = [[finding["study"] for finding in state.conversation.answer["findings"]] for state in states]
        assert all(len(of_visit) == 1 for of_visit in studies)
        read = {study for of_visit in studies for study in of_visit}
        assert read == {finding["study"] for finding in findings_in(episode.record)}
        assert [[vote.study for vote in state.votes] for state in states] == studies
        assert len({state.name for state in states}) == len(states) > 4


async def test_a_rollout_whose_studies_are_read_apart_replays_from_its_trace(gathered):
    replay = Replay(gathered.config, gathered.folder)
    for episode, task in gathered.episodes:
        trace, record = episode.trace(), episode.record
        _, outcome = last_outcome(trace) or ("", {})
        again = await replay.run(record, model_calls(trace), outcome["calls"], task)
        assert (again.outputs, again.reward) == (record.outputs, record.reward)
