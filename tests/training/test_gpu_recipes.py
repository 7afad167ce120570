"""The recipes for real models, played to their end with the bundled model in the models' place and few tasks."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from chimera.run.directory import Run
from chimera.run.jsonl import read_lines

pytestmark = pytest.mark.whole

ROOT = Path(__file__).parents[2]
IN_PLACE = ["data.path=generated", "models.junior.kind=embedded", "models.junior.path=nano"]
"""What docs/models.md says."""
SMALL = [
    *(
        "data.size=60",
        "rollouts.concurrency=2",
        "gate.tasks=0",
        "gather.tasks=8",
        "bandit.tasks=2",
    ),
    *("sft.answers=4", "sft.min_examples=1", "sft.epochs=1", "ppo.steps=1", "ppo.n=4", "wandb.mode=disabled"),
]


@pytest.mark.parametrize(
    ("name", "settings", "ranks"),
    [
        ("one_gpu", ["ppo.states=8"], []),
        ("smollm2", ["ppo.states=8"], []),
        # All four ranks would take two cores a minute to start.
        ("eight_gpus", ["ppo.tasks_per_step=2", "ppo.ranks=2", "ppo.min_good_share=0.1"], [(2, "fsdp")]),
    ],
)
def test_every_phase_of_a_recipe_runs(name, settings, ranks, tmp_path):
    command = [sys.executable, "-m", "chimera.train", "--config", f"configs/{name}.yaml", "--name", name]
    done = subprocess.run(
        [*command, f"runs_dir={tmp_path}", *IN_PLACE, *SMALL, *settings],
        capture_output=True, text=True, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    run = Run(tmp_path / name)
    events = list(run.events())
    assert [event["phase"] for event in events if event["event"] == "phase_finished"] == [
        "gather",
        "sft",
        "ppo",
        "bandit",
    ]
    assert [(event["ranks"], event["shards"]) for event in events if event["event"] == "ranks_started"] == ranks
    (step,) = [line for line in read_lines(run.path / "metrics.jsonl") if line["phase"] == "ppo" and line["step"]]
    assert step["step/skipped"] == 0
