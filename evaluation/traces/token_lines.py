"""What an update made of a call's tokens, for the terminal and the page: from credit to loss and gradient."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from evaluation.scores.rewards import part_title
from evaluation.traces.token_loss import gradient_shares, is_clipped, loss, loss_shares, ratio
from evaluation.traces.token_records import TokenRecord

GRADIENT_WORDS = (
    "Shares are of the whole update, before it. The gradient's is in closed form, |advantage| (1 - p) for each token: "
    "the size of the gradient by the token's logits, up to a factor of 1.41, and not by the weights."
)


@dataclass(frozen=True, slots=True)
class TokenLine:
    """One token of an answer as an update used it.

    Attributes:
        text: What it adds to the answer, or its id.
        id: None when the trace does not have it.
        mask: 1.0 if it counts in the loss.
        advantage: How much better than expected.
        before: Its log-probability before the update.
        after: Its log-probability after the update; None if that is not known.
        loss: Its share of the update's loss.
        gradient: Its share of the update's gradient by the logits.
        clipped: True if after the update the clip range has taken it out of the gradient.
    """

    text: str
    id: int | None
    mask: float
    advantage: float
    before: float
    after: float | None
    loss: float
    gradient: float
    clipped: bool = False

    @property
    def ratio(self) -> float | None:
        """How many times as likely it is after the update."""
        return None if self.after is None else ratio(self.before, self.after)

    def columns(self) -> list[str]:
        """The numbers as text, in the order of `HEAD`."""
        times = self.ratio
        return [
            f"{self.mask:.0f}",
            f"{self.advantage:+z.3f}",
            f"{self.before:z.3f}",
            "-" if self.after is None else f"{self.after:z.3f}",
            "-" if times is None else f"x{times:z.3f}{' clipped' if self.clipped else ''}",
            f"{self.loss:.3%}",
            f"{self.gradient:.3%}",
        ]


HEAD = ("mask", "advantage", "log-probability", "after the update", "ratio", "share of the loss", "of the gradient")
"""The titles of `TokenLine.columns`."""


def by_id(token: int | None) -> str:
    """Text for a token whose text is unknown."""
    return "[?]" if token is None else f"[{token}]"


def token_lines(record: TokenRecord, ids: Sequence[int] | None, texts: Sequence[str] | None) -> list[TokenLine]:
    """The tokens of one call.

    Args:
        ids: Their ids; None where the trace does not have them.
        texts: Their texts; without them they are shown by their ids.
    """
    numbers: Sequence[int | None] = ids or [None] * len(record.mask)
    columns = zip(
        texts or list(map(by_id, numbers)),
        numbers,
        record.mask,
        record.advantages,
        record.old_log_probs,
        record.new_log_probs or [None] * len(record.mask),
        loss_shares(record),
        gradient_shares(record),
        strict=True,
    )
    return [
        TokenLine(
            *(text, token, mask, advantage, old, new, of_loss, of_gradient),
            clipped=new is not None and is_clipped(advantage, ratio(old, new), record.objective),
        )
        for text, token, mask, advantage, old, new, of_loss, of_gradient in columns
    ]


def credit_line(record: TokenRecord) -> str:
    """From the reward's parts to the call's share of loss and gradient, in one line."""
    parts = " + ".join(f"{part_title(name)} {value:z.3f}" for name, value in record.parts.items())
    phrases = [f"credit {record.reward:z.3f}{f' = {parts}' if parts else ''}", _advantages(record)]
    loss_share, pull_share = math.fsum(loss_shares(record)), math.fsum(gradient_shares(record))
    grad_norm = record.objective.grad_norm
    norm = "" if grad_norm is None else f", whose norm was {grad_norm:.3g}"
    phrases.append(f"{loss_share:.2%} of the update's loss and {pull_share:.2%} of its gradient{norm}")
    if record.new_log_probs is None:
        return "; ".join([*phrases, "the call was not read again after the update"])
    changed = math.fsum(new - old for new, old in zip(record.new_log_probs, record.old_log_probs, strict=True))
    before, after = _mean_loss(record, record.old_log_probs), _mean_loss(record, record.new_log_probs)
    phrases.append(
        f"the update changed the answer's log-probability by {changed:+z.3f} and its mean loss from {before:+z.3f} to "
        f"{after:+z.3f}"
    )
    return "; ".join(phrases)


def _mean_loss(record: TokenRecord, new: Sequence[float]) -> float:
    """The mean of L over the call's tokens under other log-probabilities."""
    columns = zip(record.advantages, record.old_log_probs, new, strict=True)
    losses = [loss(advantage, ratio(old, value), record.objective) for advantage, old, value in columns]
    return math.fsum(losses) / len(losses) if losses else 0.0


def _advantages(record: TokenRecord) -> str:
    """The advantage of a call's tokens, or its range if tokens differ, as with gae."""
    if not record.advantages:
        return "no tokens"
    lowest, highest = min(record.advantages), max(record.advantages)
    return f"advantage {lowest:+z.3f}" if lowest == highest else f"advantages from {lowest:+z.3f} to {highest:+z.3f}"
