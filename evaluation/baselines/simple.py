"""Baselines that need no LLM: the commonest label, TF-IDF of words, and statistics read by rules.

They learn only from the training split and answer the same items as the stages, so that a reader sees what the society
adds. The baselines that ask a model or count its votes are named here too (see `single_agent`, `votes`).
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from agents.policies.features import content_stems
from chimera.core.abstracts import DIRECTIONS, SIGNIFICANCES, Passages, direction, significance
from chimera.core.types import ResearchTask, abstract_text, labels_of
from evaluation.records.study import BaselineAnswer

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

MAJORITY, TFIDF, READER, LABELS = "majority", "tfidf", "reader", "labels"
SINGLE, GREEDY, CONSISTENCY = "single", "greedy", "consistency"
AGENT, AGENT_VOTE = "agent", "agents"
MAP_REDUCE = "mapreduce"
JUNIOR_VOTE, BY_RULE, UNREVIEWED = "juniors", "rule", "unreviewed"
"""Names of baselines. A baseline made from a stage also has the stage's name, such as "single@base"."""
SAMPLED = (SINGLE, AGENT, MAP_REDUCE)
"""Baselines whose recorded answers depend on the temperature."""

TITLES: Mapping[str, str] = {
    MAJORITY: "commonest label of the training split",
    TFIDF: "TF-IDF + logistic regression",
    READER: "statistics and directions read by rule + logistic regression, no language model",
    LABELS: "the juniors' first model fine-tuned on the training labels alone, one greedy call, abstract given",
    SINGLE: "one sampled call{heat} of the junior model of stage {stage}, abstract given",
    GREEDY: "one greedy call of the junior model of stage {stage}, abstract given",
    CONSISTENCY: "majority of {calls} sampled calls{heat}, as many tokens as the society of stage {stage}",
    AGENT: "one agent with all tools{heat}, junior model of stage {stage}",
    AGENT_VOTE: (
        "majority of agents with all tools{heat}, at most {calls} calls, as many tokens as the society of stage {stage}"
    ),
    MAP_REDUCE: "one call{heat} for each study, all of them given, and one that combines, models of stage {stage}",
    JUNIOR_VOTE: "majority of the juniors of stage {stage}",
    BY_RULE: "the findings of the juniors of stage {stage}, weighed by the rule and not by the refiner",
    UNREVIEWED: "society without board: first refined hypothesis of stage {stage}",
}

NUMBERS_TOO = r"[\w.<=%-]+"
"""Pattern of a word. Numbers and p-values stay whole, because they often hold the answer."""


def of_stage(kind: str, stage: str) -> str:
    """The name of a baseline of one stage, such as "single@base"."""
    return f"{kind}@{stage}"


def title(name: str, calls: int = 0, temperature: float = 1.0) -> str:
    """A baseline's name in words, for reports.

    Args:
        name: Its name, such as "single@base".
        calls: Number of calls that vote.
        temperature: At which the model was sampled.
    """
    kind, _, stage = name.partition("@")
    return TITLES[kind].format(stage=stage, calls=calls, heat=f" at temperature {temperature:g}")


def majority(train: Sequence[ResearchTask], tasks: Sequence[ResearchTask]) -> list[BaselineAnswer]:
    """Answer every task with the commonest label of `train`; in a tie, with the first of the labels.

    Raises:
        ValueError: There is no training task.
    """
    if not train:
        raise ValueError("a baseline learns from the training split, but that has no task")
    counts = Counter(task.label for task in train)
    commonest = max(labels_of(train), key=lambda label: counts[label])
    return [BaselineAnswer(MAJORITY, task.id, 0, commonest) for task in tasks]


def tfidf(train: Sequence[ResearchTask], tasks: Sequence[ResearchTask]) -> list[BaselineAnswer]:
    """Logistic regression on TF-IDF of question and abstract, learned from `train`. It is deterministic.

    If `train` has only one label, no task is answered, and the error says so.

    Raises:
        ValueError: There is no training task.
    """

    def features(train: Sequence[ResearchTask], tasks: Sequence[ResearchTask]) -> tuple[Any, Any]:
        from sklearn.feature_extraction.text import TfidfVectorizer

        counted = TfidfVectorizer(token_pattern=NUMBERS_TOO)
        return counted.fit_transform(map(_text, train)), counted.transform(map(_text, tasks))

    return _regression(TFIDF, features, train, tasks)


def reader(train: Sequence[ResearchTask], tasks: Sequence[ResearchTask]) -> list[BaselineAnswer]:
    """Logistic regression on direction and significance in the sentences that concern the question.

    The supervisor's policy sees the same features. If `train` has only one label, no task is answered.

    Raises:
        ValueError: There is no training task.
    """

    def features(train: Sequence[ResearchTask], tasks: Sequence[ResearchTask]) -> tuple[Any, Any]:
        return _read(train), _read(tasks)

    return _regression(READER, features, train, tasks)


Features = Callable[[Sequence[ResearchTask], Sequence[ResearchTask]], tuple[Any, Any]]
"""Makes the features of the training tasks and of the tasks to answer, one row a task."""


def _regression(
    name: str, features: Features, train: Sequence[ResearchTask], tasks: Sequence[ResearchTask]
) -> list[BaselineAnswer]:
    labels = [task.label for task in train]
    if not labels:
        raise ValueError("a baseline learns from the training split, but that has no task")
    if len(set(labels)) == 1:
        reason = f"all training tasks have the label {labels[0]!r}, so there is nothing to learn"
        return [BaselineAnswer(name, task.id, 0, None, reason) for task in tasks]
    if not tasks:
        return []

    from sklearn.linear_model import LogisticRegression

    train_features, task_features = features(train, tasks)
    predicted = LogisticRegression(max_iter=1000).fit(train_features, labels).predict(task_features)
    return [BaselineAnswer(name, task.id, 0, str(label)) for task, label in zip(tasks, predicted, strict=True)]


def _read(tasks: Sequence[ResearchTask]) -> "NDArray[np.float64]":
    """One row for each task, shape (tasks, readings): 1 for significance, direction, and both together."""
    import numpy as np

    places = {reading: place for place, reading in enumerate(_readings())}
    rows = np.zeros((len(tasks), len(places)))
    for row, task in zip(rows, tasks, strict=True):
        passages = Passages.of(content_stems(task.goal), [section.text for section in task.context])
        relevant = [passages.sentences[at] for at in sorted(passages.relevant)]
        kind, way = significance(relevant), direction(task.goal, relevant)
        row[[places[kind, None], places[None, way], places[kind, way]]] = 1.0
    return rows


def _readings() -> list[tuple[str | None, str | None]]:
    kinds, ways = [*SIGNIFICANCES, None], [*DIRECTIONS, None]
    return [(kind, way) for kind in kinds for way in ways]


def _text(task: ResearchTask) -> str:
    """Question, abstract and options: exactly what the society is given."""
    options = " ".join(f"{option.name} {option.text}" for option in task.options)
    return f"{task.goal} {abstract_text(task.context)} {options}".rstrip()
