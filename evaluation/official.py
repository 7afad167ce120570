"""PubMedQA's official form: `predictions.json` for the authors' evaluation script, and what others have published.

The script (github.com/pubmedqa/pubmedqa, evaluation.py) wants one JSON object of PMID to yes, no or maybe for all and
only the test items, and prints accuracy and macro-F1. It knows no missing answer, and we make none up.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from chimera.errors import RunError
from chimera.types import Label
from evaluation.study import Plan, StageAnswers


@dataclass(frozen=True, slots=True)
class Reference:
    """A published result on the official test split with the abstract given (the reasoning-required setting).

    Attributes:
        name: Of the system.
        accuracy: In per cent.
        macro_f1: In per cent; None when it was not published.
        source: Where it was published.
    """

    name: str
    accuracy: float
    macro_f1: float | None
    source: str

    def dump(self) -> dict[str, Any]:
        """Plain data for the report."""
        return asdict(self)


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
"""For comparison with results on the official test split only: `Plan.official` tells."""


def predictions(plan: Plan, answers: StageAnswers) -> dict[str, Label]:
    """The answer to every task of `plan`, by PMID.

    Of several repeats the first that came to an answer counts.

    Raises:
        RunError: No rollout of a task gave an answer, so the script would not accept the predictions.
    """
    answered: dict[str, Label] = {}
    for record in sorted(answers.records, key=lambda one: one.repeat):
        if record.status == "succeeded" and record.answer is not None:
            answered.setdefault(record.task_id, record.answer)
    if missing := [task.id for task in plan.tasks if task.id not in answered]:
        shown = ", ".join(missing[:5]) + (", ..." if len(missing) > 5 else "")
        raise RunError(
            f"no predictions of stage {answers.stage.name}: {len(missing)} of {len(plan.tasks)} tasks have no answer "
            f"({shown}), and PubMedQA's script needs one for each: --resume makes them again, and --seeds 2 gives each "
            "a second chance where the same seed fails again"
        )
    return {task.id: answered[task.id] for task in plan.tasks}


def write_predictions(path: Path, predicted: Mapping[str, Label]) -> None:
    """Write `predicted` to `path` as the authors' script reads it; the file is replaced as a whole.

    Raises:
        RunError: It cannot be written.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        draft.write_text(json.dumps(dict(predicted), indent=1) + "\n", encoding="utf-8")
        draft.replace(path)
    except OSError as error:
        raise RunError(f"cannot write {path}: {error.strerror}") from error
