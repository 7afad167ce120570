"""Chooses the next token of many rows at once: greedy or drawn, with or without a grammar's mask.

As in vLLM the order is: repetition penalty, mask, temperature, min-p, top-k, top-p.

Each row has its own uniform number, drawn from its own generator, which selects the token by the cumulative
distribution. So a seeded request's choices do not depend on what else is in the batch (up to float rounding).
"""

import torch
from torch import Tensor

TINY = 1e-6
"""Temperatures below are greedy and shares of top-p never smaller: float32 would have no number for what follows."""


def choose(
    logits: Tensor,
    temperature: Tensor,
    top_p: Tensor | None,
    uniform: Tensor,
    allowed: Tensor | None,
    *,
    want_log_probs: bool,
    top_k: Tensor | None = None,
    min_p: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Choose one token per row; returns them (B,), and the log-probabilities (B, V) they were chosen from.

    The latter are None unless `want_log_probs`. For a greedy row the chosen token has probability 1.

    Args:
        logits: (B, V).
        temperature: (B,); 0, or less than `TINY`, means greedy.
        top_p: (B,), or None if it is 1 for all rows.
        uniform: (B,) float64 in [0, 1).
        allowed: (B, V) bool, False for tokens that the row's grammar forbids; None if no row has a grammar.
        top_k: (B,), or None if it is V for all rows.
        min_p: (B,), or None if it is 0 for all rows.
    """
    if allowed is not None:
        logits = logits.masked_fill(~allowed, float("-inf"))
    greedy = temperature < TINY
    best = logits.argmax(-1)
    all_greedy = bool(greedy.all())
    if all_greedy and not want_log_probs:
        return best, None
    probabilities = torch.softmax(logits / torch.where(greedy, 1.0, temperature)[:, None], -1)
    if min_p is not None:
        least = min_p[:, None] * probabilities.amax(-1, keepdim=True)
        probabilities = probabilities.where(probabilities >= least, 0.0)
    if top_p is not None or top_k is not None:
        probabilities = nucleus(probabilities, top_p, top_k)
    tokens = best
    if not all_greedy:
        cumulative = probabilities.cumsum(-1, dtype=torch.float64)
        # The factor keeps u * total strictly below the total after rounding, so the index stays in range.
        target = uniform * (1 - 1e-12) * cumulative[:, -1]
        drawn = torch.searchsorted(cumulative, target[:, None], right=True)[:, 0]
        tokens = torch.where(greedy, best, drawn)
    if not want_log_probs:
        return tokens, None
    point = torch.full_like(probabilities, 0.0).scatter_(1, best[:, None], 1.0)
    distribution = torch.where(greedy[:, None], point, probabilities)
    return tokens, torch.log(distribution / distribution.sum(-1, keepdim=True))


def nucleus(probabilities: Tensor, top_p: Tensor | None, top_k: Tensor | None = None) -> Tensor:
    """Keep the `top_k` (B,) most probable tokens; of these the smallest set with the share `top_p` (B,) of their mass.

    The others get probability 0. None keeps all.
    """
    ordered, order = probabilities.sort(-1, descending=True)
    if top_k is not None:
        ordered = ordered.where(torch.arange(ordered.shape[-1], device=ordered.device) < top_k[:, None], 0.0)
    if top_p is not None:
        mass_before = ordered.cumsum(-1) - ordered
        ordered = ordered.where(mass_before < top_p[:, None].clamp(TINY) * ordered.sum(-1, keepdim=True), 0.0)
    return torch.zeros_like(probabilities).scatter_(1, order, ordered)


def penalise(logits: Tensor, tokens: Tensor, penalty: float) -> Tensor:
    """The logits (V,) with those of `tokens` moved away from 1: divided by `penalty` if positive, else multiplied.

    Keskar et al. 2019, CTRL (arXiv:1909.05858), section 4.1.
    """
    seen = logits[tokens]
    return logits.index_copy(0, tokens, torch.where(seen > 0, seen / penalty, seen * penalty))
