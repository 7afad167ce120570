"""Estimates a bandit policy's reward from logged choices before the policy goes live.

Each choice is evaluated by a policy that learned only from choices on other tasks (cross-fitting), so that learning and
estimating from the same rewards does not bias the estimate upwards.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from agents.policies.bandit import BanditPolicy, LoggedExample, Settings, folds
from agents.policies.models import Array
from evaluation.measures import off_policy


def estimate(settings: Settings, examples: Sequence[LoggedExample]) -> Mapping[str, float | None]:
    """Estimates for the greedy policy that is learned with `settings` from `examples`.

    `logged` is the mean reward of the logged choices. `ips`, `snips` and `dr` estimate the policy's mean reward. `gain`
    is its advantage over the choices of the supervisor's model (doubly robust, paired). Each comes with `_low` and
    `_high` of its 95 % interval. `ess` is the effective sample size. `as_supervisor` is the share of choices in which
    policy and supervisor's model agree. A value that the log does not allow is None.
    Choices among another number of hypotheses than the last are left out: they were made in another society.
    """
    size = len(examples[-1].rows) if examples else 0
    eligible = [each for each in examples if each.event.propensities is not None and len(each.rows) == size]
    if len({example.event.task_id for example in eligible}) < 2:
        return {"ess": 0.0}
    judged: list[LoggedExample] = []
    outcomes: list[Array] = []
    for fold, others in folds(eligible):
        policy = BanditPolicy(settings)
        policy.learn(others)
        judged += fold
        outcomes += [policy.expected(example.rows) for example in fold]
    return _figures(judged, np.array(outcomes))


def _figures(examples: Sequence[LoggedExample], outcomes: Array) -> dict[str, float | None]:
    target = np.eye(outcomes.shape[1])[outcomes.argmax(axis=1)]
    log = _log(examples)
    weights = log.weights(target)
    figures: dict[str, float | None] = {"ess": off_policy.effective_sample_size(weights)}
    figures |= _flat("logged", off_policy.on_policy(log))
    figures |= _flat("ips", off_policy.ips(log, target))
    figures |= _flat("snips", off_policy.snips(log, target) if weights.any() else None)
    figures |= _flat("dr", off_policy.doubly_robust(log, target, outcomes))
    places = [number for number, example in enumerate(examples) if example.event.preferred is not None]
    if len({examples[number].event.task_id for number in places}) < 2:
        return figures | _flat("gain", None) | {"as_supervisor": None}
    preferred = np.array([_one_hot(examples[number]) for number in places])
    gain = off_policy.doubly_robust_gain(
        _log([examples[number] for number in places]), target[places], preferred, outcomes[places]
    )
    return figures | _flat("gain", gain) | {"as_supervisor": float((target[places] * preferred).sum(axis=1).mean())}


def _log(examples: Sequence[LoggedExample]) -> off_policy.Log:
    return off_policy.Log.of(
        [example.action for example in examples],
        [(example.event.propensities or {})[example.event.author] for example in examples],
        [example.event.reward for example in examples],
        [str(example.event.task_id) for example in examples],
    )


def _one_hot(example: LoggedExample) -> list[float]:
    return [float(hypothesis["author"] == example.event.preferred) for hypothesis in example.event.hypotheses]


def _flat(name: str, estimate: off_policy.Estimate | None) -> dict[str, float | None]:
    if estimate is None:
        return {name: None, f"{name}_low": None, f"{name}_high": None}
    return {name: estimate.value, f"{name}_low": estimate.low, f"{name}_high": estimate.high}
