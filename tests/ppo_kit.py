"""Tasks and records of rollouts for the tests of PPO, and its stops and weights."""

import hashlib
import threading

from record_kit import answered

from chimera.core.types import ResearchTask
from evaluation.records.rollouts import RolloutInput

TASKS = [ResearchTask(f"t{number}", "Does it?", (), "yes", "generated") for number in range(7)]
FLAWS = {"failed": {"status": "failed", "reward": None}, "unscored": {"reward": None}}


def record(given=None, version="v1", **changes):
    given = given or RolloutInput.of(TASKS[0], "ppo", 0, 0)
    fields = {"phase": "ppo", "repeat": given.repeat, "seed": given.seed, "parts": {"alignment": 1.0}}
    name, changes = f"ro-{given.task.id}-{given.repeat}", fields | {"weights_versions": {"senior": [version]}} | changes
    return answered(name, given.task.id, **changes)


class Stop(Exception):
    """Stands for the end of the process."""


def wait_for_engines():
    """A stop waits only a moment for the engine; a process has one at a time."""
    for thread in threading.enumerate():
        if thread.name.endswith("-engine"):
            thread.join()


def digest(folder):
    """The hash of a model's weights."""
    return hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
