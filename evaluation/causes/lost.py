"""Who lost it: the first step of a rollout after which its wrong answer could no longer be right by itself.

Read from the rollout's record alone. Later steps had the chance to mend it, and are not to blame for what came before.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Literal, get_args

from chimera.core.types import Label
from evaluation.measures.metrics import answer_of
from evaluation.records.rollouts import RolloutRecord
from evaluation.records.study import StageAnswers

Step = Literal["juniors", "supervisor", "refiner", "review", "failed"]
TITLES: Mapping[Step, str] = {
    "juniors": "juniors: none was right, or their findings together were wrong",
    "supervisor": "supervisor: a junior was right, another was selected",
    "refiner": "refiner: the selected answer was right, the refined one is not",
    "review": "board or principal: the refined answer was right, the final one is not",
    "failed": "the rollout failed: no answer",
}
FIELDS = ("initial_hypotheses", "selected_hypothesis", "refined_hypothesis")
"""The outputs that the steps are read from."""


def first_wrong_step(record: RolloutRecord) -> Step | None:
    """The step that lost the answer; None if the answer is right.

    The refined answer is that of the refiner's last visit, so a revision after a review counts for the refiner.

    Raises:
        KeyError: The rollout succeeded, and its outputs lack one of `FIELDS`.
    """
    return wrong_step(record.label, answer_of(record), record.outputs, failed=record.status == "failed")


def who_lost(record: RolloutRecord) -> Step | None:
    """`first_wrong_step`, and None too if the record does not hold the steps."""
    return first_wrong_step(record) if recorded_steps([record]) else None


def wrong_step(label: Label, answer: Label | None, outputs: Mapping[str, Any], *, failed: bool) -> Step | None:
    """`first_wrong_step` of a rollout that is not a record; `outputs` are not read if it failed."""
    if answer == label:
        return None
    if failed:
        return "failed"
    initial, selected, refined = (outputs[name] for name in FIELDS)
    if selected["answer"] != label:
        combined = any("findings" in hypothesis for hypothesis in initial)
        none_right = all(hypothesis["answer"] != label for hypothesis in initial)
        return "juniors" if none_right or combined else "supervisor"
    return "refiner" if refined["answer"] != label else "review"


def recorded_steps(records: Iterable[RolloutRecord]) -> bool:
    """True if all rollouts that succeeded hold what `first_wrong_step` reads."""
    return all(record.status == "failed" or holds_steps(record.outputs) for record in records)


def holds_steps(outputs: Mapping[str, Any]) -> bool:
    return all(name in outputs for name in FIELDS)


def lost(answers: StageAnswers) -> dict[str, Any] | None:
    """The wrong answers of a stage by step, as plain data; None if its rollouts do not hold the steps.

    "wrong" is the number of rollouts whose answer is wrong or missing, which the counts in "steps" sum to; "vetoed" the
    number of right answers whose protocol was vetoed.
    """
    if not recorded_steps(answers.records):
        return None
    steps = Counter(first_wrong_step(record) for record in answers.records)
    right = [record for record in answers.records if answer_of(record) == record.label]
    return {
        "rollouts": len(answers.records),
        "wrong": len(answers.records) - len(right),
        "steps": {step: steps[step] for step in get_args(Step)},
        "vetoed": sum(record.veto is not None for record in right),
    }
