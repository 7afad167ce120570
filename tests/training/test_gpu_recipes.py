"""The recipes for real models, played to their end with the bundled model in the models' place and few tasks."""

from pathlib import Path

import pytest
from ask_kit import printed_by

from chimera.run.directory import Run
from chimera.run.jsonl import read_lines

pytestmark = pytest.mark.whole

ROOT = Path(__file__).parents[2]
IN_PLACE = ["data.path=generated", "models.junior.kind=embedded", "models.junior.path=nano"]
"""What docs/models.md says."""
SMALL = [
    *("data.size=60", "rollouts.concurrency=2", "gate.tasks=0", "gather.tasks=8", "bandit.tasks=2"),
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
    config = ROOT / "configs" / f"{name}.yaml"
    here = ("--config", config, "--name", name, f"runs_dir={tmp_path}")
    printed_by("chimera.train", *here, *IN_PLACE, *SMALL, *settings)
    run = Run(tmp_path / name)
    events = list(run.events())
    figures = {event["phase"]: event["figures"] for event in events if event["event"] == "phase_finished"}
    assert list(figures) == ["gather", "sft", "ppo", "bandit"]
    branches = [call for call in read_lines(run.path / "phases/sft/calls.jsonl") if call["kind"] == "branch"]
    used = sum(call["response"]["usage"]["prompt_tokens"] for call in branches)
    assert (figures["sft"]["branch_requests"], figures["sft"]["branch_prompt_tokens"]) == (len(branches), used)
    assert {value for name, value in figures["sft"].items() if name.endswith("branches/stale")} == {0}
    assert [(event["ranks"], event["shards"]) for event in events if event["event"] == "ranks_started"] == ranks
    (step,) = [line for line in read_lines(run.path / "metrics.jsonl") if line["phase"] == "ppo" and line["step"]]
    assert step["step/skipped"] == 0
