"""What solves generated tasks, and what does not: `python -m benchmarks.shortcuts [--train N] [--test N] [--tiny]`.

`--family review` prints the same for questions of many studies: a reader of their texts that applies the rule, the
readers that miss something (`chimera.data.generated.review.TRAPS`), the same when they say yes instead of maybe
("sided"), and gradient boosting on all that each of them sees ("learned").

Otherwise three kinds of accuracies on generated tasks of all four levels:

- the independent reader that applies the published rule, and the same reader blind to one thing;
- learned readers: gradient boosting on everything that the independent reader found, and on all of it but one thing,
  which bounds what any reader that ignores it can get;
- shortcuts that do not read the statistics: TF-IDF with logistic regression, gradient boosting on counts.
"""

import argparse
import os
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Literal, get_args

# Threads that wait for work would otherwise keep both cores busy: five times the processor time on small sizes.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

from agents.tools.literature import describes_trial
from chimera.config.roles import LITERATURE, TRIALS
from chimera.core.types import LABELS, Label, ResearchTask, abstract_text
from chimera.data.generated import review
from chimera.data.generated.reader import (
    ASPECTS,
    Aspect,
    Reading,
    answer,
    answer_alone,
    asked_direction,
    asked_endpoint,
    read,
    read_direction,
    read_significance,
)
from chimera.data.generated.tasks import generate, read_alone
from chimera.data.generated.vocabulary import CONDITIONS, GROUPS

Group = Literal["reader", "sided reader", "learned reader", "shortcut"]
CLASSES = ("significant", "borderline", "not significant")
WEIGHTS = ("counts", "superseded", "plain")
MOST_FINDINGS = 4
CUES = (r"\blower\b", r"\bhigher\b", "final", "interim", "[Aa]fter adj", "[Bb]efore adj", "primary", "secondary")
NEUTRAL_CUES = ("weeks", "months", "cohort", "centres", "CI", "vs")

POPULATIONS = sorted((f"{group} with {condition}" for group, condition in product(GROUPS, CONDITIONS)), key=len)
RESULT = re.compile(r"RESULTS: (?:In|Among) (\d+) (.+? with .+?), (.+)")
RETRACTION = re.compile(r"\bretract(?:ed|ion)\b", re.IGNORECASE)
TYPICAL_P = {"significant": 0.01, "borderline": 0.07, "not significant": 0.5}


@dataclass(frozen=True, slots=True)
class Score:
    """The accuracy of one way to answer; `blind_to` names what it ignores."""

    group: Group
    name: str
    accuracy: float
    blind_to: Aspect | None = None


def measure(train_size: int = 4000, test_size: int = 3000) -> list[Score]:
    """All accuracies on `test_size` tasks of seed 0, learners after `train_size` tasks of seed 1."""
    train = [generated_task.task for generated_task in generate(train_size, seed=1)]
    test = [generated_task.task for generated_task in generate(test_size, seed=0)]
    return [*readers(test), *learned_readers(train, test), *shortcuts(train, test)]


def measure_review(train_size: int, test_size: int) -> list[Score]:
    """The same for the family `review`; every reader reads the texts, and knows nothing of what was drawn."""
    train = [item.task for item in review.generate(train_size, seed=1)]
    test = [item.task for item in review.generate(test_size, seed=0)]
    studies = {task.id: read_studies(task) for task in (*train, *test)}

    def counted(reader: review.Reader, task: ResearchTask) -> list[float]:
        votes = [reader.vote(study) for study in studies[task.id]]
        seen = Counter((vote.answer, vote.weight) for vote in votes)
        sides = [sum(vote.weight * (vote.answer == side) for vote in votes) for side in LABELS]
        return [task.level or 0, *sides, *(seen[kind] for kind in product((*LABELS, None), (1, 2, 4)))]

    scores: list[Score] = []
    for name, reader in {"reads everything": review.RULE, **review.TRAPS}.items():
        answers = {task.id: reader.answer(studies[task.id]) for task in test}
        scores.append(Score("reader", name, accuracy(test, lambda task, of=answers: of[task.id])))
        sided = {id_: "yes" if label == "maybe" else label for id_, label in answers.items()}
        scores.append(Score("sided reader", name, accuracy(test, lambda task, of=sided: of[task.id])))
        scores.append(Score("learned reader", name, boosting(train, test, partial(counted, reader))))
    words = Score("shortcut", "TF-IDF of words + logistic regression", tfidf(train, test, 1))
    commonest = Score("shortcut", "always the commonest label", accuracy(test, lambda _: "yes"))
    return [*sorted(scores, key=lambda score: get_args(Group).index(score.group)), commonest, words]


def read_studies(task: ResearchTask) -> list[review.StudyDraw]:
    """What the rule needs to know of each study, from its text and the question alone."""
    target, endpoint, goal = asked_direction(task.goal), asked_endpoint(task.goal), task.goal.lower()
    population = next(name for name in reversed(POPULATIONS) if name.lower() in goal)
    return [read_study(abstract_text(sections), goal, target, endpoint, population) for _, sections in task.studies]


def read_study(text: str, goal: str, target: int, endpoint: str, population: str) -> review.StudyDraw:
    result = RESULT.search(text)
    significance = read_significance(result[3]) if result else None
    if result is None or significance is None:
        raise ValueError(f"no result in {text!r}")
    trial = describes_trial(text)
    name: review.Name = (
        "name" if any(n.lower() in goal for n in re.findall(r"[Tt]he (\w+) group", text)) else "second name"
    )
    flaws: dict[review.Flaw, bool] = {
        "retraction": bool(RETRACTION.search(text)),
        "population": result[2] != population,
        "outcome": endpoint.lower() not in result[3].lower(),
    }
    return review.StudyDraw(
        search=(TRIALS if trial else LITERATURE, name),
        design="trial" if trial else "cohort",
        participants=int(result[1]),
        answer=read_alone(TYPICAL_P[significance], in_direction=read_direction(result[3]) == target),
        flaw=next((flaw for flaw, holds in flaws.items() if holds), None),
    )


def accuracy(tasks: Sequence[ResearchTask], answer_task: Callable[[ResearchTask], Label]) -> float:
    return sum(answer_task(task) == task.label for task in tasks) / len(tasks)


def readers(test: Sequence[ResearchTask]) -> list[Score]:
    """The independent reader, whole and blind to one thing; endpoint and conflict can be ignored in several ways."""
    scores = [Score("reader", "reads everything", accuracy(test, lambda task: answer(task.brief())))]
    scores += [
        Score("reader", f"ignores {blind_to}", accuracy(test, blind(blind_to)), blind_to) for blind_to in ASPECTS
    ]
    variants: list[tuple[str, Aspect, Callable[[ResearchTask], Label]]] = [
        ("takes the first finding of any endpoint", "endpoint", lambda task: one_finding(task, 0, any_endpoint=True)),
        ("takes the last finding of any endpoint", "endpoint", lambda task: one_finding(task, -1, any_endpoint=True)),
        ("takes the last finding on the endpoint", "conflict", lambda task: one_finding(task, -1)),
        ("takes the majority on the endpoint", "conflict", majority_on_endpoint),
        ("calls every disagreement maybe", "conflict", ignore_marks),
    ]
    return scores + [Score("reader", name, accuracy(test, solve), blind_to) for name, blind_to, solve in variants]


def blind(blind_to: Aspect) -> Callable[[ResearchTask], Label]:
    """The independent reader without one thing."""
    return lambda task: answer(task.brief(), blind_to)


def on_endpoint(task: ResearchTask) -> list[Reading]:
    """The findings about the endpoint asked about, in order."""
    endpoint = asked_endpoint(task.goal)
    return [reading for reading in read(task.brief()) if reading.endpoint == endpoint]


def one_finding(task: ResearchTask, position: int, *, any_endpoint: bool = False) -> Label:
    readings = list(read(task.brief())) if any_endpoint else on_endpoint(task)
    return answer_alone(readings[position], asked_direction(task.goal))


def majority_on_endpoint(task: ResearchTask) -> Label:
    """The most frequent answer among the findings on the endpoint, the commonest label first among equals."""
    answers = Counter(answer_alone(reading, asked_direction(task.goal)) for reading in on_endpoint(task))
    return max(LABELS, key=lambda label: answers[label])


def ignore_marks(task: ResearchTask) -> Label:
    """Maybe unless all findings on the endpoint agree, whichever analysis counts."""
    answers: set[Label] = {answer_alone(reading, asked_direction(task.goal)) for reading in on_endpoint(task)}
    return answers.pop() if len(answers) == 1 else "maybe"


def learned_readers(train: Sequence[ResearchTask], test: Sequence[ResearchTask]) -> list[Score]:
    """Gradient boosting on what was read, whole and without one thing."""
    scores: list[Score] = []
    everything_and_less: tuple[Aspect | None, ...] = (None, *ASPECTS)
    for blind_to in everything_and_less:
        name = f"without {blind_to}" if blind_to else "on everything read"
        value = boosting(train, test, partial(reading_features, blind_to=blind_to))
        scores.append(Score("learned reader", name, value, blind_to))
    return scores


def reading_features(task: ResearchTask, blind_to: Aspect | None) -> list[float]:
    """Every finding in order and counts of kinds of findings, as numbers, with nothing about `blind_to`."""
    sign, endpoint = asked_direction(task.goal), asked_endpoint(task.goal)
    readings = list(read(task.brief()))
    directions = (0,) if blind_to == "direction" else (1, -1)
    classes = ("",) if blind_to == "significance" else CLASSES
    weights = ("",) if blind_to == "conflict" else WEIGHTS
    if blind_to != "endpoint":
        readings.sort(key=lambda reading: reading.endpoint != endpoint)

    def kind(reading: Reading) -> tuple[int, str, str]:
        return (
            0 if blind_to == "direction" else reading.direction * sign,
            "" if blind_to == "significance" else reading.significance,
            "" if blind_to == "conflict" else reading.weight,
        )

    features: list[float] = [task.level or 0]
    for reading in readings[:MOST_FINDINGS]:
        direction, significance, weight = kind(reading)
        same = sum(other.endpoint == reading.endpoint for other in readings)
        asked_about = 0 if blind_to == "endpoint" else int(reading.endpoint == endpoint)
        features += [direction, classes.index(significance), weights.index(weight), same, asked_about]
    features += [-9] * (5 * (MOST_FINDINGS - len(readings)))
    counted = Counter(kind(reading) for reading in readings if blind_to == "endpoint" or reading.endpoint == endpoint)
    return features + [counted[combination] for combination in product(directions, classes, weights)]


def shortcuts(train: Sequence[ResearchTask], test: Sequence[ResearchTask]) -> list[Score]:
    """Learners on words and counts."""
    return [
        Score("shortcut", "always the commonest label", accuracy(test, lambda _: "yes")),
        Score("shortcut", "TF-IDF of words + logistic regression", tfidf(train, test, 1)),
        Score("shortcut", "TF-IDF of words and pairs + logistic regression", tfidf(train, test, 2)),
        Score(
            "shortcut", "gradient boosting on counts of p-values and cue words", boosting(train, test, count_features)
        ),
    ]


def full_text(task: ResearchTask) -> str:
    return " ".join([task.goal, *(section.text for section in task.context)])


def count_features(task: ResearchTask) -> list[float]:
    """Asked direction, p-values by class, extremes, cue words and length, with no notion of which belongs to which."""
    text, sign = full_text(task), asked_direction(task.goal)
    values = [float(value) for value in re.findall(r"p[=<](0\.\d+)", text)]
    lower, higher = len(re.findall(r"\blower\b", text)), len(re.findall(r"\bhigher\b", text))
    cues = [len(re.findall(cue, text)) for cue in (*CUES, *NEUTRAL_CUES)]
    return [
        sign,
        *((higher, lower) if sign > 0 else (lower, higher)),
        sum(value < 0.05 for value in values),
        sum(0.05 <= value < 0.10 for value in values),
        sum(value >= 0.10 for value in values),
        min(values, default=-1),
        max(values, default=-1),
        len(text.split()),
        task.level or 0,
        *cues,
    ]


def tfidf(train: Sequence[ResearchTask], test: Sequence[ResearchTask], longest: int) -> float:
    """Accuracy of TF-IDF up to n-grams of length `longest`, numbers kept whole, with logistic regression."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    model = make_pipeline(
        TfidfVectorizer(ngram_range=(1, longest), token_pattern=r"[\w.<=%-]+"), LogisticRegression(max_iter=1000)
    )
    model.fit([full_text(task) for task in train], [task.label for task in train])
    return float(model.score([full_text(task) for task in test], [task.label for task in test]))


def boosting(
    train: Sequence[ResearchTask], test: Sequence[ResearchTask], features: Callable[[ResearchTask], list[float]]
) -> float:
    """Accuracy of gradient boosting on numeric features."""
    import numpy as np
    from sklearn.ensemble import HistGradientBoostingClassifier

    model = HistGradientBoostingClassifier(max_iter=120, learning_rate=0.08, max_leaf_nodes=15, random_state=0)
    model.fit(np.array([features(task) for task in train]), [task.label for task in train])
    return float(model.score(np.array([features(task) for task in test]), [task.label for task in test]))


def main() -> None:
    from rich.console import Console
    from rich.table import Table

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", type=int, default=6000, help="tasks that learners see")
    parser.add_argument("--test", type=int, default=4000, help="tasks that everything is scored on")
    parser.add_argument("--tiny", action="store_true", help="60 tasks each: shows that it runs")
    parser.add_argument("--family", choices=("abstract", "review"), default="abstract", help="which generated tasks")
    arguments = parser.parse_args()
    if arguments.tiny:
        arguments.train = arguments.test = 60
    scores = {"abstract": measure, "review": measure_review}[arguments.family](arguments.train, arguments.test)
    whole = {
        group: next((s.accuracy for s in scores if s.group == group), 0.0) for group in ("reader", "learned reader")
    }
    table = Table(
        "kind",
        "how it answers",
        "accuracy %",
        "cost in points",
        title=f"generated tasks, {arguments.family}, levels 1-4",
    )
    for score in scores:
        cost = f"{100 * (whole[score.group] - score.accuracy):.1f}" if score.blind_to else ""
        table.add_row(score.group, score.name, f"{100 * score.accuracy:.1f}", cost)
    Console().print(table)


if __name__ == "__main__":
    main()
