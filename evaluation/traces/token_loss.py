"""From a token's advantage to its part of PPO's loss and gradient, in closed form from what an update recorded.

With A the advantage, r = exp(new - old) the ratio of the token's probability under the weights after and before the
update (1 before it), and w the token's weight in the objective, which is 1 / (all tokens) for token-mean:

    loss      w L,  L = max(-A r, -A clip(r, 1 - low, 1 + high)), for A < 0 at most -A c   (Schulman et al. 2017,
              equation 7, with VeRL's separate clip ranges and dual clip, Ye et al. 2020, equation 5)
    gradient  of w L by the token's logits: w |A| r (onehot - p), 0 where the clip cuts L off

The norm of onehot - p lies between (1 - p) and sqrt(2) (1 - p), where p is the token's own probability, because the
others' probabilities sum to 1 - p. `pull` is the lower end, w |A| r (1 - p). So a share of the gradient that is
computed from it is exact up to this factor, and it is about the logits: how these move the weights is not in it.
Terms for entropy and KL are not in either. The update counts as one mini-batch.
"""

import math

from evaluation.traces.token_records import Objective, TokenRecord

MOST = 20.0
"""VeRL limits the logarithm of the ratio to this."""


def ratio(old: float, new: float) -> float:
    """How many times as likely the token is under the new weights."""
    return math.exp(min(max(new - old, -MOST), MOST))


def loss(advantage: float, ratio: float, objective: Objective) -> float:
    """L, before its weight."""
    inside = min(max(ratio, 1 - objective.clip_low), 1 + objective.clip_high)
    clipped = max(-advantage * ratio, -advantage * inside)
    return min(clipped, -advantage * objective.clip_most) if advantage < 0 else clipped


def is_clipped(advantage: float, ratio: float, objective: Objective) -> bool:
    """True if the ratio has left the range in the direction that the advantage asks for: L no longer depends on it."""
    if advantage < 0:
        return ratio < 1 - objective.clip_low or ratio > objective.clip_most
    return advantage > 0 and ratio > 1 + objective.clip_high


def pull(advantage: float, old: float, new: float, objective: Objective) -> float:
    """|A| r (1 - p), before the weight: the norm of the gradient by the token's logits, up to a factor of sqrt(2).

    Args:
        advantage: A.
        old: The token's log-probability before the update.
        new: Its log-probability under the weights at which the gradient is taken: `old` itself before the update.
        objective: The clip range.
    """
    times = ratio(old, new)
    if is_clipped(advantage, times, objective):
        return 0.0
    return abs(advantage) * times * -math.expm1(min(new, 0.0))


def loss_shares(record: TokenRecord) -> list[float]:
    """Each token's share of the update's loss before the update, without signs; all tokens of an update sum to 1."""
    objective = record.objective
    if not objective.loss:
        return [0.0] * len(record.mask)
    scale = objective.weight / objective.loss
    return [scale * abs(a) * m for a, m in zip(record.advantages, record.mask, strict=True)]


def gradient_shares(record: TokenRecord) -> list[float]:
    """Each token's share of the sum of all tokens' `pull` before the update; all tokens of an update sum to 1."""
    objective = record.objective
    if not objective.gradient:
        return [0.0] * len(record.mask)
    scale = objective.weight / objective.gradient
    columns = zip(record.advantages, record.old_log_probs, record.mask, strict=True)
    return [scale * pull(a, old, old, objective) * m for a, old, m in columns]
