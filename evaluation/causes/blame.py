"""Blame by replay: would the answer have become right if its first wrong step had been right?

`evaluation.causes.lost` names the first wrong step by the record. Here this step is made right and the rest of the
society works on (`evaluation.records.repairs`). If the answer is right then, this step alone lost it; if it is not, a
later step would have lost it too.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, get_args

import numpy as np

from agents.findings import concluded, gathered
from agents.state import by_author
from agents.supervisor import VOTE
from evaluation.causes.lost import first_wrong_step, recorded_steps
from evaluation.measures.metrics import interval_settings
from evaluation.measures.statistics import Numbers, bootstrap_statistic
from evaluation.records.repairs import Examined, Repair, Repairable
from evaluation.records.rollouts import RolloutRecord
from evaluation.records.study import Plan, Study

Records = Mapping[str, Sequence[RolloutRecord]]
"""The rollouts of each stage, by its name."""


def examined(plan: Plan, records: Records, limit: int) -> list[Examined]:
    """The first `limit` wrong answers of the last stage, each with its repair, without replays.

    The plan's tasks are in random order, so the first ones are a fair sample.

    Args:
        records: All rollouts of the plan, in its order. A junior that was right is looked for in the order of the
            stages.
        limit: `evaluation.blame`.
    """
    last = records[plan.final.name]
    if not recorded_steps(last):
        return []
    wrong = [record for record in last if record.status == "succeeded" and record.answer != record.label][:limit]
    others = [record for stage in plan.stages for record in records[stage.name]]
    return [Examined(record, str(first_wrong_step(record)), _repair(record, others)) for record in wrong]


def _repair(record: RolloutRecord, others: Sequence[RolloutRecord]) -> Repair | None:
    step = first_wrong_step(record)
    if not _replayable(record):
        return None
    if step == "juniors":
        for donor in others:
            if donor.task_id == record.task_id and _replayable(donor) and (author := _right_junior(donor, record)):
                return Repair("juniors", record, author, donor)
        return None
    if step == "supervisor":
        voted = record.outputs.get("selection", {}).get("policy") == VOTE
        return None if voted else Repair("supervisor", record, _right_junior(record, record))
    return Repair("refiner", record) if step == "refiner" else None


def _replayable(record: RolloutRecord) -> bool:
    return record.status == "succeeded" and record.trace is not None


def _right_junior(donor: RolloutRecord, record: RolloutRecord) -> str | None:
    """The first junior whose answer in `donor` is right, or with whose findings there all those of `record` are."""
    juniors = record.outputs["initial_hypotheses"]
    combines, authors = any("findings" in junior for junior in juniors), {junior["author"] for junior in juniors}
    for right in donor.outputs.get("initial_hypotheses", ()):
        if right["author"] not in authors or ("findings" in right) != combines:
            continue  # The donor's society had another graph.
        answer = concluded(gathered(by_author(juniors, [right])))["answer"] if combines else right["answer"]
        if answer == record.label:
            return str(right["author"])
    return None


def blame(study: Study) -> dict[str, Any] | None:
    """What the repairs of a study mended, as plain data; None if `evaluation.blame` is 0.

    "examined" is the number of wrong answers that were examined, of "wrong" in all. "steps" has for each step that was
    repaired "lost" (its number of wrong answers), "replays", "mended" and "failed" (replays that ended in an error),
    and "share", the share of the examined wrong answers that its repair mends, with its interval over tasks.
    """
    limit = study.config.evaluation.blame
    if limit == 0:
        return None
    cases, last = study.examined, study.answers[study.plan.final.name].records
    return {
        "stage": study.plan.final.name,
        "wrong": sum(record.status == "succeeded" and record.answer != record.label for record in last),
        "examined": len(cases),
        "replays": sum(case.replay is not None for case in cases),
        "mended": sum(case.mended for case in cases),
        "share": _share(cases, None, study),
        "steps": {step: _step(cases, step, study) for step in get_args(Repairable)},
        "rollouts": [
            {
                "id": case.record.rollout_id,
                "step": case.step,
                "replay": None if case.replay is None else case.replay.rollout_id,
                "mended": case.mended,
            }
            for case in cases
        ],
    }


def _step(cases: Sequence[Examined], step: Repairable, study: Study) -> dict[str, Any]:
    step_cases = [case for case in cases if case.step == step]
    replays = [case.replay for case in step_cases if case.replay is not None]
    return {
        "lost": len(step_cases),
        "replays": len(replays),
        "mended": sum(case.mended for case in step_cases),
        "failed": sum(replay.status == "failed" for replay in replays),
        "share": _share(cases, step, study),
    }


def totals_by_task(rows: Iterable[tuple[str, int, int]]) -> dict[str, tuple[float, float]]:
    """Of each task the sums of its parts and of its wholes, such as its mended wrong answers, and all of these."""
    by_task: dict[str, tuple[float, float]] = {}
    for task, part, whole in rows:
        before = by_task.get(task, (0.0, 0.0))
        by_task[task] = (before[0] + part, before[1] + whole)
    return by_task


def _share(cases: Sequence[Examined], step: Repairable | None, study: Study) -> dict[str, Any] | None:
    """The mended share of the examined wrong answers, by a step's repair or by any, with its interval over tasks."""
    return pooled_share(((case.record.task_id, case.mended and step in (None, case.step), 1) for case in cases), study)


def pooled_share(rows: Iterable[tuple[str, int, int]], study: Study) -> dict[str, Any] | None:
    """The share of all parts in all wholes (`totals_by_task`) with its interval over tasks; None without rows."""
    totals = np.array(list(totals_by_task(rows).values()))
    if not len(totals):
        return None
    return bootstrap_statistic(totals, share_of_totals, **interval_settings(study.config), share=True).dump()


def share_of_totals(totals: Numbers) -> Numbers:
    """The share of the parts, from totals of shape (samples, 2): parts, wholes."""
    return totals[:, 0] / totals[:, 1]
