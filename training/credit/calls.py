"""Credit: how much of a rollout's reward each senior call gets.

    broadcast   r_c = R                                    LightningRL: each call is one action with the whole reward
    calls       r_c = r_t + (R - R_auto)                   its own immediate reward, and of the rollout's the rest

R is the rollout's reward; R_auto its parts `parsed`, `call_valid` and `tool_succeeded`, which all roles earned
together; r_t what this call earned of them by itself. A call that does not earn the rollout's reward (see
`experience.Call.outcome`) gets r_t alone, in either mode.

With `role_baseline`, w_alignment x [the hypothesis handed to the role corresponds to the label] is subtracted: what the
rollout would have earned in alignment had the role left the answer as it was. So a senior is paid for the difference
that it makes (difference rewards: Wolpert & Tumer, "Optimal Payoff Functions for Members of Collectives", 2002). The
baseline depends on the prompt (the state) and not on what the call answers, and it is subtracted from every call with
that prompt, also of failed ones; so the policy gradient keeps its expectation (Greensmith, Bartlett & Baxter, "Variance
Reduction Techniques for Gradient Estimates in Reinforcement Learning", 2004).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from chimera.config.tree import RewardConfig
from evaluation.records.rollouts import RolloutRecord
from training.algorithms.ppo.settings import PpoSettings
from training.learning.experience import Call

AUTOMATIC = ("parsed", "call_valid", "tool_succeeded")
"""Parts of a rollout's reward that each call also earns by itself."""


@dataclass(frozen=True, slots=True)
class Credited:
    """One call with the reward r_c that its policy gradient uses."""

    call: Call
    reward: float


def credit(calls: Sequence[Call], record: RolloutRecord, config: PpoSettings, reward: RewardConfig) -> list[Credited]:
    """What each of a rollout's calls gets.

    Args:
        calls: The rollout's senior calls.
        record: The rollout. One that failed or has no reward gives nothing to learn from: the result is empty.
        config: Mode and baseline.
        reward: The weight of alignment.
    """
    if record.status == "failed" or record.reward is None:
        return []
    shared = record.reward
    if config.credit == "calls":
        shared = math.fsum((shared, *(-(record.parts.get(name) or 0.0) for name in AUTOMATIC)))
    found: list[Credited] = []
    for call in calls:
        own = 0.0 if config.credit == "broadcast" and call.outcome else call.immediate
        earned = own + shared if call.outcome else own
        base = reward.alignment * (call.handed == record.label) if config.role_baseline else 0.0
        found.append(Credited(call, earned - base))
    return found
