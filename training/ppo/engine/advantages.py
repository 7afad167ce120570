"""Advantages of sampled responses by VeRL's estimators, and importance weights of their tokens.

A thin, pure layer: it turns rewards of responses into rewards of tokens and groups into VeRL's index, and gives each
estimator its arguments. Shapes: B responses, T tokens of the longest. What a response earns is decided before, in
`training.ppo.credit` or `training.learning.values`.
"""

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from torch import Tensor

    from training.ppo.engine.batch import Sample

Estimator = Literal["gae", "grpo", "rloo", "reinforce_plus_plus"]
GROUPED: tuple[Estimator, ...] = ("grpo", "rloo")
"""Estimators whose baseline comes from the response's group."""


def at_last_token(rewards: Sequence[float], mask: "Tensor") -> "Tensor":
    """Token rewards (B, T): the reward of each response at its last token, zero elsewhere.

    Args:
        rewards: One for each response.
        mask: (B, T); 1.0 for each token of the response (at least one), from the left.
    """
    import torch

    tokens = torch.zeros_like(mask)
    ends = mask.sum(dim=1).long() - 1
    tokens[torch.arange(len(tokens)), ends] = torch.tensor(rewards, dtype=mask.dtype)
    return tokens


def estimate(
    estimator: Estimator,
    token_rewards: "Tensor",
    mask: "Tensor",
    groups: Sequence[str],
    *,
    values: "Tensor | None" = None,
    gamma: float = 1.0,
    lam: float = 1.0,
    divide_by_std: bool = True,
) -> "tuple[Tensor, Tensor]":
    """Advantages and returns of every token, both (B, T).

    - grpo: (r - mean of the group) / (its standard deviation + 1e-6), with n - 1 in the deviation (Shao et al. 2024,
      DeepSeekMath, section 4.1); without the division it is Dr. GRPO (Liu et al. 2025).
    - rloo: r minus the mean of the other rewards of the group (Ahmadian et al. 2024, equation 9).
    - reinforce_plus_plus: discounted returns, whitened over all tokens of the batch (Hu 2025).
    - gae: sums of discounted temporal differences (Schulman et al. 2016, equation 16), whitened; returns are advantages
      before whitening plus values.

    Args:
        token_rewards: (B, T), see `at_last_token`.
        mask: (B, T); 1.0 for tokens of the response.
        groups: Group of each response, see `training.ppo.steps.group_of`; for grpo and rloo.
        values: (B, T) value of each token's state, for gae.
        gamma: Discount per token, for gae and reinforce_plus_plus.
        lam: Lambda of gae.
        divide_by_std: True to divide by the standard deviation; for grpo.

    Raises:
        ValueError: gae without values, or grpo or rloo with a group of one, which has no baseline.
    """
    from training.ppo.verl.runtime import load_verl

    load_verl()
    import numpy as np
    from verl.trainer.config import AlgoConfig
    from verl.trainer.ppo.core_algos import get_adv_estimator_fn

    # In float32 the mean of three equal rewards may differ from them by rounding, and grpo would divide by this error.
    arguments: dict[str, Any] = {"token_level_rewards": token_rewards.double(), "response_mask": mask.double()}
    if estimator == "gae":
        if values is None:
            raise ValueError("gae needs a value for every token")
        arguments |= {"values": values.double(), "gamma": gamma, "lam": lam}
    elif estimator == "reinforce_plus_plus":
        arguments["config"] = AlgoConfig(gamma=gamma)
    else:
        if single := alone(groups):
            raise ValueError(f"{estimator} has no baseline for {len(single)} responses that are alone in their group")
        arguments["index"] = np.array(list(groups), dtype=object)
        if estimator == "grpo":
            arguments["norm_adv_by_std_in_grpo"] = divide_by_std
    advantages, returns = get_adv_estimator_fn(estimator)(**arguments)
    return advantages.to(token_rewards.dtype), returns.to(token_rewards.dtype)


def importance(
    old: "Tensor", sampled: "Tensor", mask: "Tensor", *, level: Literal["token", "sequence"], threshold: float
) -> "tuple[Tensor, dict[str, float]]":
    """Importance weights of tokens that other weights have sampled than those that learn from them, (B, T).

    VeRL's rollout correction in its decoupled form: the weights that learn, pi_old, differ from those that sampled,
    pi_s, and PPO's loss of a token is multiplied by

        token     w_t = min(pi_old(a_t | s_t) / pi_s(a_t | s_t), threshold)
        sequence  w = min(product of these ratios over the response, threshold), for each of its tokens

    which is truncated importance sampling (Ionides 2008; Espeholt et al. 2018, IMPALA, section 4.1). The second result
    is VeRL's metrics of the weights, and of how far the two policies are apart.

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

    correction, _, metrics = compute_rollout_correction_and_rejection_mask(
        old_log_prob=old, rollout_log_prob=sampled, response_mask=mask, rollout_is=level, rollout_is_threshold=threshold
    )
    assert correction is not None  # `rollout_is` was given.
    return correction.batch["rollout_is_weights"], metrics


def alone(groups: Sequence[str]) -> list[int]:
    """Indices of the responses that are alone in their group."""
    sizes = Counter(groups)
    return [place for place, group in enumerate(groups) if sizes[group] == 1]


def group_figures(samples: "Sequence[Sample]") -> dict[str, float]:
    """Metrics of what the groups of a step can teach.

    - group/count, group/size: number of groups, and their mean size.
    - group/zero_variance: share of groups whose rewards are all equal. The other groups are informative.
    - group/prompts_differ: share of groups whose prompts are not all equal, token for token.
    - group/differs_only_by_input: share of groups whose prompts differ while all responses are equal, token for token.
      A difference in reward within such a group cannot come from the role's answer.
    - group/informative_differs_only_by_input: the same share of the informative groups; left out if there are none.

    Args:
        samples: At least one call.
    """
    groups: dict[str, list[Sample]] = {}
    for sample in samples:
        groups.setdefault(sample.group, []).append(sample)
    informative = [group for group in groups.values() if len({round(sample.reward, 6) for sample in group}) > 1]
    by_input = {"group/differs_only_by_input": _share(_differs_only_by_input, groups.values())}
    if informative:
        by_input["group/informative_differs_only_by_input"] = _share(_differs_only_by_input, informative)
    return {
        "group/count": float(len(groups)),
        "group/size": len(samples) / len(groups),
        "group/zero_variance": 1.0 - len(informative) / len(groups),
        "group/prompts_differ": _share(_prompts_differ, groups.values()),
        **by_input,
    }


def _prompts_differ(group: "Sequence[Sample]") -> bool:
    return len({sample.prompt_ids for sample in group}) > 1


def _differs_only_by_input(group: "Sequence[Sample]") -> bool:
    return _prompts_differ(group) and len({sample.response_ids for sample in group}) == 1


def _share(holds: "Callable[[Sequence[Sample]], bool]", groups: "Collection[Sequence[Sample]]") -> float:
    return sum(map(holds, groups)) / len(groups)
