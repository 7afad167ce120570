"""What failing tools do to the society (`evaluation.faults`): which faults it recovers from, and what it loses."""

from collections import Counter
from typing import Any

from evaluation.causes.blame import pooled_share
from evaluation.measures.metrics import answer_of
from evaluation.records.rollouts import RolloutRecord
from evaluation.records.study import Study

FAULTS, RECOVERED = "faults/", "recovered/"
"""How the counts of records begin (`agents.visit.record.count`)."""


def faults(study: Study) -> dict[str, Any] | None:
    """The recovery from faults, as plain data; None without a stage whose tools fail.

    "rows": by tool and kind of fault how many were "put" in a tool's place, and how many the visit "recovered" from,
    with a later call that gave passages; "share": that share of all faults, with its interval over tasks. Of the
    "hit" rollouts, which met a fault: "failed" (with the "reasons"), "right" answers, and of the same tasks with tools
    that work "right_before". "share" is None where no call failed.
    """
    stage = next((stage for stage in study.plan.stages if stage.faults), None)
    if stage is None:
        return None
    before = study.answers[study.plan.final.name].records if study.plan.final.name in study.answers else ()
    right_before = {(record.task_id, record.repeat): answer_of(record) == record.label for record in before}
    hit = [record for record in study.answers[stage.name].records if _total(record, FAULTS)]
    totals = Counter[str]()
    for record in hit:
        totals.update({name: count for name, count in record.counts.items() if name.startswith((FAULTS, RECOVERED))})
    put = sorted(name.removeprefix(FAULTS) for name in totals if name.startswith(FAULTS))
    return {
        "stage": stage.name,
        "rows": [
            {"fault": name, "put": totals[f"{FAULTS}{name}"], "recovered": totals[f"{RECOVERED}{name}"]} for name in put
        ],
        "share": pooled_share(
            ((record.task_id, _total(record, RECOVERED), _total(record, FAULTS)) for record in hit), study
        ),
        "hit": len(hit),
        "failed": sum(record.status == "failed" for record in hit),
        "reasons": dict(Counter(record.error for record in hit if record.status == "failed").most_common()),
        "right": sum(answer_of(record) == record.label for record in hit),
        "right_before": sum(right_before.get((record.task_id, record.repeat), False) for record in hit),
    }


def _total(record: RolloutRecord, prefix: str) -> int:
    return sum(count for name, count in record.counts.items() if name.startswith(prefix))
