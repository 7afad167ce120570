"""Other pipelines than the usual one, by YAML alone: each runs to its end, and its phases are stages of its report."""

import json
import subprocess
import sys

import pytest

from chimera.run.directory import Run
from chimera.run.policies import live

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]

SMALL = """
data: {size: 60}
rollouts: {concurrency: 2}
gate: {tasks: 0}
wandb: {mode: disabled}
evaluation: {resamples: 200, self_consistency: false}
"""
SFT = "min_examples: 1, epochs: 1, batch_size: 8, micro_batch_size: 8"
PPO = "start: null, states: 0, reward: {}, steps: 1, tasks_per_step: 2, n: 2, min_good_share: 0.1"
ANSWERS = "tasks: 4, states: 4, n: 4, steps: 2"
SHARED = "roles:\n  HypothesisRefiner: {model: senior}\n"
BANDIT = "{roles: [Supervisor], tasks: 3}"
PIPELINES = {
    "fine-tuned seniors, then the bandit": (
        f"{SHARED}pipeline:\n  gather: {{tasks: 8}}\n  sft: {{algorithm: sft, roles: seniors, {SFT}}}\n"
        f"  bandit: {BANDIT}\n",
        {"sft": "senior@sft", "bandit": "Supervisor@bandit"},
    ),
    "PPO on the juniors": (
        f"pipeline:\n  gather: {{tasks: 6}}\n  ppo: {{roles: juniors, {PPO}}}\n",
        {"ppo": "junior@ppo-1"},
    ),
    "two PPO phases, refiner and designer with weights of their own": (
        f"pipeline:\n  refine: {{algorithm: ppo, roles: [HypothesisRefiner], {PPO}}}\n"
        f"  design: {{algorithm: ppo, roles: [ProtocolDesigner], {PPO}}}\n",
        {"refine": "refiner@refine-1", "design": "senior@design-1"},
    ),
    "a teacher's answers, answers that are right, and pairs of answers": (
        "pipeline:\n  gather: {tasks: 12}\n"
        f"  distil: {{roles: juniors, answers: 4, {SFT}}}\n"
        f"  star: {{roles: [HypothesisRefiner], answers: 3, hints: 2, {SFT}}}\n"
        f"  dpo: {{roles: [ProtocolDesigner], answers: 4, reward: {{feasibility: 1.0, impact: 1.0}}, {SFT}}}\n",
        {"distil": "junior@distil", "star": "refiner@star-2", "dpo": "senior@dpo"},
    ),
    "the default phases, all on branches": (
        f"pipeline:\n  gather: {{tasks: 6}}\n  sft: {{{SFT}}}\n  ppo: {{{ANSWERS}}}\n  design: {{{ANSWERS}}}\n"
        f"  bandit: {BANDIT}\n",
        {"sft": "junior@sft", "ppo": "refiner@ppo-", "design": "senior@design-", "bandit": "Supervisor@bandit"},
    ),
}


def command(module, *arguments):
    done = subprocess.run([sys.executable, "-m", module, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize(("settings", "learned"), PIPELINES.values(), ids=PIPELINES)
def test_a_pipeline_by_yaml_alone_runs_to_its_end_and_into_its_report(tmp_path, settings, learned):
    file = tmp_path / "mine.yaml"
    file.write_text(f"runs_dir: {tmp_path}\n{SMALL}{settings}")
    command("chimera.train", "--config", str(file), "--name", "mine")
    run = Run.open("mine", tmp_path)
    went_live = {policy.version for policy in live(run.events()).values()}
    # How many steps of PPO found something to learn from depends on what the models said.
    learned = {phase: next(one for one in went_live if one.startswith(name)) for phase, name in learned.items()}
    assert went_live == set(learned.values())
    command("chimera.eval", "--run", "mine", f"runs_dir={tmp_path}", "--stages", "all", "--limit", "3")
    report = json.loads((run.path / "report" / "report.json").read_text())
    stages = {stage["name"]: stage["versions"] for stage in report["plan"]["stages"]}
    assert {"base", *learned} <= set(stages)
    for phase, version in learned.items():
        assert version in stages[phase].values()
        assert version not in stages["base"].values()
    assert command("chimera.eval", "--verify", str(run.path / "report"), f"runs_dir={tmp_path}")
