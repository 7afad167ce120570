"""Tasks and records of rollouts for the tests of PPO."""

from dataclasses import replace

from chimera.core.types import ResearchTask
from evaluation.records.rollouts import RolloutInput, RolloutRecord

TASKS = [ResearchTask(f"t{number}", "Does it?", (), "yes", "generated") for number in range(7)]
FLAWS = {
    "failed": {"status": "failed", "reward": None},
    "unscored": {"reward": None},
    "untraced": {"untraced_calls": 1},
}


def record(given=None, version="v1", **changes):
    given = given or RolloutInput.of(TASKS[0], "ppo", 0, 0)
    made = RolloutRecord(
        f"ro-{given.task.id}-{given.repeat}", given.task.id, "generated", 1, "ppo", given.repeat, given.seed, 1,
        "succeeded", None, "yes", "yes", "GO", 1.0, parts={"alignment": 1.0}, weights_versions={"senior": [version]},
    )  # fmt: skip
    return replace(made, **changes)
