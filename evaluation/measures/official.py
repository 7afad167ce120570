"""PubMedQA's official format: `predictions.json` for the authors' evaluation script, and published results.

The script (github.com/pubmedqa/pubmedqa, evaluation.py) reads one JSON object that maps the PMID of exactly the test
items to yes, no or maybe, and prints accuracy and macro-F1. It does not support missing answers: it refuses a file
without all items, and a label "missing" would be a fourth class of macro-F1. So items without an answer are left out,
`predictions_missing.json` names them with the reason, and the report counts them. No answer is invented.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chimera.core.errors import RunError
from chimera.core.files import replace_file
from chimera.core.types import Label
from evaluation.records.study import Plan, StageAnswers, Study


@dataclass(frozen=True, slots=True)
class Reference:
    """A published result on the official test split with the abstract given (the reasoning-required setting).

    Attributes:
        accuracy: In per cent.
        macro_f1: In per cent; None if it was not published.
    """

    name: str
    accuracy: float
    macro_f1: float | None
    source: str


_JIN = "Jin et al. 2019, arXiv:1909.06146"
_BOARD = "as listed on pubmedqa.github.io"

REFERENCES: tuple[Reference, ...] = (
    Reference("human, single annotator", 78.0, 72.2, _JIN),
    Reference("majority label", 55.2, 23.7, _JIN),
    Reference("BioBERT, multi-phase fine-tuning", 68.1, 52.7, _JIN),
    Reference("Flan-PaLM 540B, 3-shot", 79.0, None, f"Singhal et al. 2022, arXiv:2212.13138, {_BOARD}"),
    Reference("Med-PaLM 2", 81.8, None, f"Singhal et al. 2023, arXiv:2305.09617, {_BOARD}"),
    Reference("GPT-4, Medprompt", 82.0, None, f"Nori et al. 2023, arXiv:2311.16452, {_BOARD}"),
)
"""Comparable only with results on all official test items (see `Plan.official`)."""


def predictions(plan: Plan, answers: StageAnswers) -> dict[str, Label]:
    """The answers to the tasks of `plan`, by PMID, in the plan's order.

    The first repeat with an answer counts. A task without an answer is left out.
    """
    answered: dict[str, Label] = {}
    for record in sorted(answers.records, key=lambda record: record.repeat):
        if record.status == "succeeded" and record.answer is not None:
            answered.setdefault(record.task_id, record.answer)
    return {task.id: answered[task.id] for task in plan.tasks if task.id in answered}


def unanswered(plan: Plan, answers: StageAnswers) -> dict[str, str]:
    """The reasons of missing answers, by PMID."""
    predicted = predictions(plan, answers)
    reasons = {record.task_id: record.error for record in answers.records if record.error is not None}
    missing = (task.id for task in plan.tasks if task.id not in predicted)
    return {id: reasons.get(id) or "no reason recorded" for id in missing}


def summary(study: Study) -> dict[str, Any] | None:
    """Completeness of predictions.json, for report.json; None if the tasks are not PubMedQA's test items.

    Keys: "stage" (the stage that answered), "answered" (number of answers), "missing" (the PMIDs without an answer).
    """
    plan = study.plan
    if not asked_for(plan):
        return None
    answers = study.answers[plan.final.name]
    missing = list(unanswered(plan, answers))
    return {"stage": plan.final.name, "answered": len(plan.tasks) - len(missing), "missing": missing}


def asked_for(plan: Plan) -> bool:
    """True if predictions are written: the tasks are test items of PubMedQA, official or of a split of ours."""
    return plan.split == "test" and plan.source == "pubmedqa"


def missing_sentence(summary: Mapping[str, Any]) -> str:
    missing, total = summary["missing"], len(summary["missing"]) + summary["answered"]
    shown = ", ".join(missing[:5]) + (", ..." if len(missing) > 5 else "")
    return (
        f"{len(missing)} of {total} test items have no answer ({shown}). They are left out of predictions.json, and "
        "predictions_missing.json gives the reasons; no answer was made up. PubMedQA's own script refuses a file "
        "without all items: --resume makes them again, and --seeds 2 gives each a second chance."
    )


def write_predictions(path: Path, predicted: Mapping[str, str]) -> None:
    """Write `predicted` (or the reasons of missing answers) to `path`. The file is replaced as a whole.

    Raises:
        RunError: It cannot be written.
    """
    try:
        replace_file(path, json.dumps(dict(predicted), indent=1) + "\n")
    except OSError as error:
        raise RunError(f"cannot write {path}: {error.strerror}") from error
