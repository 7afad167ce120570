"""Credit: what each call of the phase's roles earns of its rollout's reward. It becomes the reward of a `Sample`.

The parts `AUTOMATIC` of the reward are computed for each call too: a call's own share of them is its immediate reward.
Advantages are made of credit later, in `training.ppo.engine.advantages`.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from agents.schemas import ExperimentProtocol, Hypothesis
from agents.visit.quoting import texts_read
from chimera.config.sections.rollouts import RewardConfig
from chimera.core.quotes import missing_quotes
from evaluation.records.rollouts import RolloutRecord
from training.learning.experience import Call
from training.learning.values import earned
from training.ppo.verl.settings import PpoSettings

AUTOMATIC = ("parsed", "call_valid", "tool_succeeded")
"""Parts of a rollout's reward that are also computed for each call."""


@dataclass(frozen=True, slots=True)
class Credited:
    """One call with its credit r_c, the reward in the policy gradient."""

    call: Call
    reward: float


@dataclass(frozen=True, slots=True)
class RewardedCalls:
    """The calls of one rollout, and what they share.

    Attributes:
        whole: The reward that the roles earn, all parts.
        rest: The same without the automatic parts, or all of it if the phase's roles earn chosen parts.
        rest_of_first: counterfactual: `rest` of the replay with the phase's first weights.
    """

    calls: Sequence[Call]
    settings: PpoSettings
    whole: float
    rest: float
    rest_of_first: float = 0.0

    def own(self, call: Call) -> float:
        """The call's immediate reward; nothing if the phase's roles earn chosen parts."""
        return 0.0 if self.settings.reward else call.immediate


class Credit(Protocol):
    """One way to give credit: a key of the phase's `credit`."""

    def __call__(self, rollout: RewardedCalls, place: int) -> float:
        """What the call at `place` earns; it earns the rollout's reward (`Call.outcome`)."""
        ...


def broadcast(rollout: RewardedCalls, place: int) -> float:
    """The rollout's whole reward."""
    return rollout.whole


def by_call(rollout: RewardedCalls, place: int) -> float:
    """Its own automatic parts, and the rest of the rollout's reward."""
    return rollout.own(rollout.calls[place]) + rollout.rest


def return_to_go(rollout: RewardedCalls, place: int) -> float:
    """The automatic parts of it and its role's later calls, and the rest."""
    role = rollout.calls[place].role
    later = [rollout.own(call) for call in rollout.calls[place:] if call.role == role and call.outcome]
    return math.fsum(later) + rollout.rest


def sub_goals(rollout: RewardedCalls, place: int) -> float:
    """Its own parts, some for its answer's sub-goals, and the rest, discounted by gamma for each later call."""
    call, settings = rollout.calls[place], rollout.settings
    amount = rollout.own(call) + settings.sub_goal_weight * share_reached(call)
    later = sum(other.outcome for other in rollout.calls[place + 1 :])
    return amount + settings.verl_values.algorithm.gamma**later * rollout.rest


def counterfactual(rollout: RewardedCalls, place: int) -> float:
    """Its own parts, and the rest less that of a replay with the weights that the phase began with."""
    return rollout.own(rollout.calls[place]) + (rollout.rest - rollout.rest_of_first)


CREDITS: Mapping[str, Credit] = {
    "broadcast": broadcast,
    "calls": by_call,
    "return_to_go": return_to_go,
    "sub_goals": sub_goals,
    "counterfactual": counterfactual,
}


def credit(
    calls: Sequence[Call],
    record: RolloutRecord,
    config: PpoSettings,
    reward: RewardConfig,
    *,
    without: RolloutRecord | None = None,
) -> list[Credited]:
    """The credit of each call of a rollout. A call that does not earn the rollout's reward gets its own parts alone.

    With `role_baseline`, each has subtracted what the hypothesis that it was handed would have earned unchanged.

    Args:
        record: The rollout. If it failed or has no reward, the result is empty.
        without: counterfactual: the replay with the first weights. If it has no reward, the result is empty.
    """
    compared = config.credit == "counterfactual"
    if not _has_reward(record) or (compared and (without is None or not _has_reward(without))):
        return []
    whole, rest = _shares(record, config, reward)
    first = _shares(without, config, reward)[1] if compared and without is not None else 0.0
    rollout = RewardedCalls(calls, config, whole, rest, first)
    weight = config.reward.get("alignment", 0.0) if config.reward else reward.alignment
    credited: list[Credited] = []
    for place, call in enumerate(calls):
        amount = CREDITS[config.credit](rollout, place) if call.outcome else rollout.own(call)
        base = weight * (call.handed == record.label) if config.role_baseline and not compared else 0.0
        credited.append(Credited(call, amount - base))
    return credited


def _has_reward(record: RolloutRecord) -> bool:
    return record.status != "failed" and record.reward is not None


def _shares(record: RolloutRecord, config: PpoSettings, reward: RewardConfig) -> tuple[float, float]:
    """The reward that the roles earn, and the same without the automatic parts, unless its parts are chosen."""
    parts = earned(record.parts, config.reward, reward)
    if config.reward:
        whole = math.fsum(parts.values())
        return whole, whole
    whole = record.reward
    assert whole is not None
    return whole, math.fsum((whole, *(-parts.get(name, 0.0) for name in AUTOMATIC)))


def reached(call: Call) -> dict[str, bool]:
    """Each sub-goal of the call's answer, and whether it is reached; empty for a request for tools.

    A sub-goal is what a good answer of a role has, whatever becomes of the rollout. Each is read from the call alone.

    readable   the answer fits the role's schema
    quotes     a hypothesis quotes something
    verbatim   all its quotes stand word for word in what the role has read
    expects    a protocol expects the answer of the hypothesis that it is to test
    """
    if call.asked is not None and call.asked.choice["message"].get("tool_calls"):
        return {}
    answer = call.answer
    goals = {"readable": answer is not None}
    if isinstance(answer, Hypothesis) and call.asked is not None:
        goals["quotes"] = bool(answer.quotes)
        goals["verbatim"] = not missing_quotes(answer.quotes, texts_read(call.asked.messages))
    if isinstance(answer, ExperimentProtocol) and call.handed is not None:
        goals["expects"] = answer.expected == call.handed
    return goals


def share_reached(call: Call) -> float:
    """The share of the call's sub-goals that are reached; 0 if it has none."""
    goals = reached(call)
    return sum(goals.values()) / len(goals) if goals else 0.0
