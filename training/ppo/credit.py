"""Credit: the share of a rollout's reward that each senior call gets.

    broadcast      r_c = R                                 LightningRL: each call is one action with the whole reward
    calls          r_c = r_t + (R - R_auto)                its immediate reward plus the rest of the rollout's reward
    return_to_go   r_c = sum of r_s, s >= t, + (R - R_auto)    that and the immediate rewards of its role's later calls
    sub_goals      r_c = w x share of sub-goals reached + gamma^(T-t) x (R - R_auto) + r_t
    counterfactual r_c = r_t + (R - R_auto) - (R' - R'_auto)   what the role adds to its first weights

R is the rollout's reward, or the part of it that the phase's own `reward` names; then r_t is 0. R_auto is the sum of
its parts `parsed`, `call_valid` and `tool_succeeded`, to which all roles contribute. r_t is the reward of this call
alone for these parts. T - t is the number of the rollout's later calls that earn its reward. R' is the reward of the
same rollout, replayed from the role's first visit with the weights that the phase began with. A call that does not earn
the rollout's reward (see `experience.Call.outcome`) gets only r_t in any mode, and nothing follows from it.

With `role_baseline`, w_alignment x [the hypothesis handed to the role matches the label] is subtracted. This is the
reward for alignment if the role had not changed the answer. So a senior gets credit for the difference that it makes
(difference rewards: Wolpert & Tumer, "Optimal Payoff Functions for Members of Collectives", 2002). The baseline depends
on the prompt (the state) but not on the response (the action), and it is subtracted from every call with this prompt,
also from failed ones. So the expected policy gradient does not change (Greensmith, Bartlett & Baxter, "Variance
Reduction Techniques for Gradient Estimates in Reinforcement Learning", 2004).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from chimera.config.sections.rollouts import RewardConfig
from evaluation.records.rollouts import RolloutRecord
from training.learning.experience import Call
from training.learning.values import earned
from training.ppo.settings import PpoSettings
from training.ppo.sub_goals import share_reached

AUTOMATIC = ("parsed", "call_valid", "tool_succeeded")
"""Parts of a rollout's reward that are also computed for each call."""


@dataclass(frozen=True, slots=True)
class Credited:
    """One call with its credit r_c, the reward in the policy gradient."""

    call: Call
    reward: float


def credit(
    calls: Sequence[Call],
    record: RolloutRecord,
    config: PpoSettings,
    reward: RewardConfig,
    *,
    without: RolloutRecord | None = None,
) -> list[Credited]:
    """The credit of each call of a rollout.

    Args:
        record: The rollout. If it failed or has no reward, the result is empty.
        without: counterfactual: the replay with the first weights. If it has no reward, the result is empty.
    """
    if record.status == "failed" or record.reward is None:
        return []
    shared = _shared(record, config, reward)
    if config.credit == "counterfactual":
        if without is None or without.status == "failed" or without.reward is None:
            return []
        shared -= _shared(without, config, reward)
    based = config.role_baseline and config.credit != "counterfactual"
    later = sum(call.outcome for call in calls)
    weight = config.reward.get("alignment", 0.0) if config.reward else reward.alignment
    found: list[Credited] = []
    for place, call in enumerate(calls):
        own = 0.0 if config.reward or (config.credit == "broadcast" and call.outcome) else call.immediate
        if config.credit == "return_to_go" and call.outcome and not config.reward:
            own = math.fsum(one.immediate for one in calls[place:] if one.role == call.role and one.outcome)
        later -= call.outcome
        if config.credit == "sub_goals" and call.outcome:
            own += config.sub_goal_weight * share_reached(call)
        discount = config.gamma**later if config.credit == "sub_goals" else 1.0
        whole = own + discount * shared if call.outcome else own
        base = weight * (call.handed == record.label) if based else 0.0
        found.append(Credited(call, whole - base))
    return found


def _shared(record: RolloutRecord, config: PpoSettings, reward: RewardConfig) -> float:
    parts = earned(record.parts, config.reward, reward)
    assert record.reward is not None
    shared = math.fsum(parts.values()) if config.reward else record.reward
    if config.credit == "broadcast":
        return shared
    return math.fsum((shared, *(-parts.get(name, 0.0) for name in AUTOMATIC)))
