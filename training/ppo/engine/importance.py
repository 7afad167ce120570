"""Importance weights of tokens that other weights have sampled than those that learn from them.

A thin, pure layer over VeRL's rollout correction (verl.trainer.ppo.rollout_corr_helper), in its decoupled form: the
weights that learn, pi_old, differ from those that sampled, pi_s, and PPO's loss of a token is multiplied by

    token     w_t = min(pi_old(a_t | s_t) / pi_s(a_t | s_t), threshold)
    sequence  w = min(product of these ratios over the response, threshold), for each of its tokens

which is truncated importance sampling (Ionides 2008; Espeholt et al. 2018, IMPALA, section 4.1, truncates so as well).
Shapes: B responses, T tokens of the longest.
"""

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from torch import Tensor


def importance(
    old: "Tensor", sampled: "Tensor", mask: "Tensor", *, level: Literal["token", "sequence"], threshold: float
) -> "tuple[Tensor, dict[str, float]]":
    """The weights, (B, T), and VeRL's metrics of them and of how far the two policies are apart.

    Args:
        old: (B, T) log-probabilities under the weights that learn.
        sampled: (B, T) the same under the weights that sampled.
        mask: (B, T); 1.0 for tokens of the response.
        level: Weights of single tokens, or of whole responses.
        threshold: The largest weight.
    """
    from training.ppo.verl.runtime import load_verl

    load_verl()
    from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_and_rejection_mask

    made, _, metrics = compute_rollout_correction_and_rejection_mask(
        old_log_prob=old, rollout_log_prob=sampled, response_mask=mask, rollout_is=level, rollout_is_threshold=threshold
    )
    assert made is not None  # `rollout_is` was given.
    return made.batch["rollout_is_weights"], metrics
