"""Records of rollouts for tests that need their results and no traces."""

from chimera.core.types import DECISION_OF_LABEL
from evaluation.records.rollouts import RolloutRecord


def answered(rollout_id, task_id, answer="yes", reward=1.0, /, **changes):
    """A rollout of a task whose label is yes; it failed if `answer` is None."""
    failed = answer is None
    fields = {
        "rollout_id": rollout_id,
        "task_id": task_id,
        "source": "generated",
        "level": 1,
        "phase": "gather",
        "repeat": 0,
        "seed": 0,
        "status": "failed" if failed else "succeeded",
        "error": "no JSON" if failed else None,
        "label": "yes",
        "answer": answer,
        "decision": None if failed else DECISION_OF_LABEL[answer],
        "reward": None if failed else reward,
    }
    return RolloutRecord(**(fields | changes))


def scored(rollout_id, task_id, reward, **changes):
    """A rollout that answered yes for `reward`, or failed without one."""
    return answered(rollout_id, task_id, None if reward is None else "yes", reward, **changes)
