"""What needs no society: the commonest label, and words counted, both learned from the training split alone.

They answer the same items as the stages, so that a reader sees what the society adds to them.
"""

from collections import Counter
from collections.abc import Sequence

from chimera.types import LABELS, Label, ResearchTask, abstract_text
from evaluation.study import BaselineAnswer

MAJORITY, TFIDF, SINGLE = "majority", "tfidf", "single@"
"""Names of baselines; a single agent's goes on with the stage whose juniors' model it asks, such as "single@base"."""

NUMBERS_TOO = r"[\w.<=%-]+"
"""What counts as a word: numbers and p-values stay whole, for the answer often lies in them."""


def title(name: str) -> str:
    """A baseline's name in words, for reports."""
    if name.startswith(SINGLE):
        return f"single agent, one call of stage {name.removeprefix(SINGLE)}'s junior model"
    return {MAJORITY: "commonest label of the training split", TFIDF: "TF-IDF + logistic regression"}[name]


def majority(train: Sequence[ResearchTask], tasks: Sequence[ResearchTask]) -> list[BaselineAnswer]:
    """The commonest label of `train` for every one of `tasks`; among equals the first of yes, no, maybe.

    Raises:
        ValueError: There is no training task.
    """
    if not train:
        raise ValueError("a baseline learns from the training split, but that has no task")
    counts = Counter(task.label for task in train)
    commonest: Label = max(LABELS, key=lambda label: counts[label])
    return [BaselineAnswer(MAJORITY, task.id, 0, commonest) for task in tasks]


def tfidf(train: Sequence[ResearchTask], tasks: Sequence[ResearchTask]) -> list[BaselineAnswer]:
    """Logistic regression on TF-IDF of question and abstract, learned from `train`; equal inputs give equal answers.

    With one label only there is nothing to tell apart: then no task is answered, and the error says so.

    Raises:
        ValueError: There is no training task.
    """
    labels = [task.label for task in train]
    if not labels:
        raise ValueError("a baseline learns from the training split, but that has no task")
    if len(set(labels)) == 1:
        reason = f"all training tasks have the label {labels[0]!r}, so there is nothing to learn"
        return [BaselineAnswer(TFIDF, task.id, 0, None, reason) for task in tasks]
    if not tasks:
        return []

    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    model = make_pipeline(TfidfVectorizer(token_pattern=NUMBERS_TOO), LogisticRegression(max_iter=1000))
    model.fit([_text(task) for task in train], labels)
    predicted = model.predict([_text(task) for task in tasks])
    found: dict[str, Label] = {label: label for label in LABELS}
    return [BaselineAnswer(TFIDF, task.id, 0, found[str(label)]) for task, label in zip(tasks, predicted, strict=True)]


def _text(task: ResearchTask) -> str:
    """Question and abstract: what the society is given, and no more."""
    return f"{task.goal} {abstract_text(task.context)}"
