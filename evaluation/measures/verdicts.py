"""The verdict on a paired difference: one function for training's gate and the report.

The gate makes one test on validation tasks at its own confidence. The report corrects its p-values for the number of
tests, but not those of the gate: a report on the gate's own rollouts repeats the gate's verdict (`gated`).

Non-inferiority as in CONSORT's extension (Piaggio et al. 2012, JAMA 308:2594): the whole two-sided interval lies above
minus the margin, so that a loss as large as the margin is excluded.
"""

from collections.abc import Mapping
from typing import Literal

from chimera.config.tree import Config

Verdict = Literal["better", "worse", "higher", "lower", "non-inferior", "no difference shown"]
NOT_SHOWN: Verdict = "no difference shown"
NON_INFERIOR: Verdict = "non-inferior"


def verdict(
    difference: float, low: float | None, p: float, *, level: float, better: Literal[1, -1, 0], margin: float | None
) -> Verdict:
    """The verdict in words.

    Args:
        low: Lower end of the difference's two-sided interval; None for a single task.
        p: p-value of the two-sided test, corrected or not.
        level: A difference with `p` below it counts as shown.
        better: 1 if more is better, -1 if less is better, 0 if it depends.
        margin: The tolerated loss, for metrics of which more is better; None if there is none.
    """
    if p < level and difference != 0:
        rose = difference > 0
        if better == 0:
            return "higher" if rose else "lower"
        return "better" if rose == (better > 0) else "worse"
    return NON_INFERIOR if margin is not None and low is not None and low > -margin else NOT_SHOWN


def margins(config: Config) -> Mapping[str, float]:
    """The margin of each metric that has one, in the metric's own unit."""
    return {"reward": config.gate.margin, "alignment": config.gate.margin_alignment}
