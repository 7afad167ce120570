"""Records of rollouts for tests that need their results and no traces."""

from evaluation.records.rollouts import RolloutRecord


def scored(rollout_id, task_id, reward, **changes):
    """A rollout of a task whose label is yes: answered so for `reward`, or failed without one."""
    fields = {
        "rollout_id": rollout_id,
        "task_id": task_id,
        "source": "generated",
        "level": 1,
        "phase": "gather",
        "repeat": 0,
        "seed": 0,
        "attempt": 1,
        "status": "failed" if reward is None else "succeeded",
        "error": "no JSON" if reward is None else None,
        "label": "yes",
        "answer": None if reward is None else "yes",
        "decision": None if reward is None else "GO",
        "reward": reward,
    }
    return RolloutRecord(**(fields | changes))
