"""The sizes of a trial, over defaults and files."""

from pathlib import Path

import pytest
from config_kit import written

from chimera.config.trial import too_large
from training.configuration import load_config

FILE = """
data: {path: mine.csv}
gate: {tasks: 5}
pipeline:
  gather: {tasks: 300, repeats: 2}
  first: {algorithm: dpo, roles: [juniors], epochs: 4}
  second: {algorithm: ppo, roles: [HypothesisRefiner], steps: 9, lr: 1e-5}
"""


def test_a_trial_lowers_the_sizes_of_a_file_and_nothing_else(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    file = written(tmp_path, FILE)
    trial = load_config(file, ["second.steps=3"], trial=True)
    gather, first, second = (trial.pipeline[name].model_dump() for name in trial.pipeline)
    assert (trial.gate.tasks, gather["tasks"], gather["repeats"]) == (5, 24, 2)
    assert (first["epochs"], first["answers"], first["min_examples"]) == (1, 4, 1)
    assert (second["steps"], second["lr"]) == (3, 1e-5)
    assert second["states"] == 0  # It learns from rollouts still, as its file says.
    assert capsys.readouterr().err == ""  # data.size has no effect on a file, and nobody set it.


def test_a_trial_without_a_file_has_the_sizes_of_the_defaults_lowered():
    trial = load_config(None, ["ppo.adv_estimator=gae"], trial=True)
    assert trial.pipeline["ppo"].model_dump()["critic_warmup"] == 0  # Its only step trains the actor too.
    assert (trial.data.size, trial.gate.tasks) == (250, 10)
    assert [phase.model_dump().get("steps") for phase in trial.pipeline.values()] == [None, None, 1, 1, None]


def test_sizes_that_the_data_cannot_fill_are_named_unless_they_were_asked_for():
    trial = load_config(None, ["bandit.tasks=8"], trial=True)
    assert too_large(trial, ["bandit.tasks=8"], train=6, validation=3) == {"gate.tasks": 3, "gather.tasks": 6}
    online = load_config(None, ["ppo.states=0", "ppo.verl.trainer.test_freq=1"], trial=True)
    limits = {"gather.tasks": 6, "bandit.tasks": 6, "ppo.tasks_per_step": 6, "ppo.test_tasks": 12}
    assert too_large(online, [], train=6, validation=12) == limits
    assert too_large(load_config(None, ["gate.tasks=0"]), [], train=1000, validation=3) == {}
