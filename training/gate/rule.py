"""The gate's rule as pure functions: compares a stage with a rival on the same tasks and seeds.

A learned policy goes live only if, compared with each rival (the stage before, the base, the best stage so far),

1. neither reward nor right answers are significantly worse, failures are not significantly more, and
2. both means lie above minus their margin (`gate.margin`, `gate.margin_alignment`).

The second condition is about the mean, not the interval. With 100 tasks, requiring proof of non-inferiority would roll
back a true gain of 5 points in 45 % of cases. Rolling back only proven losses would keep a true loss of 10 points in
about half of the cases. This rule (100 tasks, deviation of a task's change 0.47, one rival):

    true change of right answers, points   -10   -5   -3    0   +5   +8
    rolled back, % of cases                 89   54   38   17    2    0

`training.gate.power` computes such rows, also from a run's own pairs. The costs: a policy that changes nothing is
rolled back in 17 % of cases (in four such phases in a row: in 31 %, because there are more rivals), and a loss as large
as the margin is kept in about half. Losses below the margin do not add up, because the rivals stay: of ten true losses
of 3 points in a row 2.1 went live on average and never more than four, in 100 simulated runs.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from chimera.config.tree import Config
from evaluation.measures.comparison import Comparison
from evaluation.measures.gated import GATED, as_gate
from evaluation.measures.statistics import sign_test
from evaluation.records.rollouts import RolloutRecord

Verdict = Literal["better", "non-inferior", "no difference shown", "past the margin", "worse"]


@dataclass(frozen=True, slots=True)
class Rivalry:
    """Comparison of a stage with a rival.

    Attributes:
        reward: Reward over the tasks that have a reward in both; None if there is none.
        alignment: Share of right answers over all tasks. A failed rollout counts as wrong.
        failed: Number of failed rollouts before and after.
        failures_p: p-value of the change in failures.
        faults: Why the rule rolls the stage back, one sentence each; empty if it may go live.
        verdict: "worse": significantly. "past the margin": the mean is too low, but not significantly. Otherwise
            "better" if a measure is better, "non-inferior" if both are, or "no difference shown".
    """

    before: str
    after: str
    reward: Comparison | None
    alignment: Comparison
    failed: tuple[int, int]
    failures_p: float
    faults: tuple[str, ...]
    verdict: Verdict


def compare(
    before: Sequence[RolloutRecord], after: Sequence[RolloutRecord], stages: tuple[str, str], config: Config
) -> Rivalry:
    """Compare two stages on the same tasks.

    Args:
        before: The rival's rollouts, one a task.
        after: The stage's rollouts, in the same order.
    """
    reward, alignment = (as_gate(before, after, name, config) for name in GATED)
    assert alignment is not None  # Every rollout has a value; a failed one has 0.
    failed = [[record.status == "failed" for record in records] for records in (before, after)]
    changes = [new - old for old, new in zip(*failed, strict=True)]
    failures_p = sign_test(changes.count(1), changes.count(-1))
    measures = [measure for measure in (reward, alignment) if measure is not None]
    reasons = [_fault(measure, stages[0], share=measure is alignment) for measure in measures]
    faults = [reason for reason in reasons if reason is not None]
    if failures_p < 1 - config.evaluation.confidence and sum(changes) > 0:
        faults.append(f"{sum(failed[1])} rollouts failed, {sum(failed[0])} of {stages[0]}")
        worse = True
    else:
        worse = any(measure.verdict == "worse" for measure in measures)
    return Rivalry(
        *stages,
        reward=reward,
        alignment=alignment,
        failed=(sum(failed[0]), sum(failed[1])),
        failures_p=failures_p,
        faults=tuple(faults),
        verdict="worse" if worse else "past the margin" if faults else _word(measures),
    )


def _fault(measure: Comparison, rival: str, *, share: bool) -> str | None:
    """Why a measure forbids the stage to go live; None if it does not."""
    assert measure.margin is not None
    past = measure.difference <= -measure.margin
    if measure.verdict != "worse" and not past:
        return None
    scale, digits, name, unit = (100, 1, "right answers", " points") if share else (1, 3, "reward", "")
    how = "significantly worse than" if measure.verdict == "worse" else "below"
    limit = f", past the margin of {scale * measure.margin:.{digits}f}" if past else ""
    return f"{name} {scale * measure.difference:+z.{digits}f}{unit}, {how} {rival}{limit}"


def _word(measures: Sequence[Comparison]) -> Verdict:
    words = {measure.verdict for measure in measures}
    if "better" in words:
        return "better"
    return "non-inferior" if words == {"non-inferior"} else "no difference shown"
