"""Tasks whose answer is the balance of many studies: the rule, the searches, and readers that miss something."""

import re
from collections import Counter
from collections.abc import Callable, Sequence

import pytest
from message_kit import refused

from agents.tools.literature import LiteratureIndex, describes_trial
from benchmarks.shortcuts import read_studies
from chimera.config.roles import LITERATURE, TRIALS
from chimera.config.sections.data import DataConfig
from chimera.core.types import LABELS, Label, abstract_text
from chimera.core.weighing import Vote, weigh
from chimera.data.generated.review import (
    NAMES,
    OUTSIDERS,
    RETRACTED,
    RULE,
    SEARCHES,
    STUDIES,
    TRAPS,
    ReviewStudy,
    ReviewTask,
    counts,
    generate,
    vote,
)
from chimera.data.generated.tasks import LABEL_MIX
from chimera.data.generated.tasks import generate as generate_abstracts
from chimera.data.tasks import Dataset, load

TASKS = generate(400, seed=12)
READ = {item.task.id: read_studies(item.task) for item in TASKS}
"""Every study as an independent reader of texts understands it."""


def right(reader: Callable[[ReviewTask], Label]) -> float:
    return sum(reader(item) == item.task.label for item in TASKS) / len(TASKS)


def text(study: ReviewStudy) -> str:
    return abstract_text(study.sections)


def test_a_reader_of_the_texts_is_always_right_about_the_answer_and_about_every_vote() -> None:
    assert right(lambda item: RULE.answer(READ[item.task.id])) == 1.0
    for item in TASKS:
        ids = [study.id for study in item.facts.studies]
        votes = [RULE.vote(study, id_) for study, id_ in zip(READ[item.task.id], ids, strict=True)]
        assert tuple(votes) == item.task.votes == tuple(vote(item.facts, study) for study in item.facts.studies)
        assert [counts(item.facts, study) for study in item.facts.studies] == [
            each.answer is not None for each in votes
        ]


def test_findings_say_the_direction_at_every_level_and_the_hardest_has_intervals() -> None:
    for item in TASKS:
        for study in item.facts.studies:
            assert f" {study.finding.direction} " in study.finding.sentence
    with_intervals = {item.facts.level for item in TASKS if any("95% CI" in text(s) for s in item.facts.studies)}
    assert with_intervals == {4}


@pytest.mark.parametrize("trap", TRAPS)
def test_a_reader_that_misses_something_is_often_wrong_and_so_is_its_opposite(trap: str) -> None:
    answers = {item.task.id: TRAPS[trap].answer(READ[item.task.id]) for item in TASKS}
    assert 0.2 < right(lambda item: answers[item.task.id]) < 0.70
    for side in ("yes", "no"):
        sided: dict[Label, Label] = {"yes": "yes", "no": "no", "maybe": side}
        assert right(lambda item, sided=sided: sided[answers[item.task.id]]) < 0.72
    opposite: dict[Label, Label] = {"yes": "no", "no": "yes", "maybe": "yes"}
    assert right(lambda item: opposite[answers[item.task.id]]) < 0.6


def test_design_size_and_population_without_findings_do_not_answer() -> None:
    import numpy as np
    from sklearn.linear_model import LogisticRegression

    def row(item: ReviewTask) -> list[float]:
        studies = [(s.design, s.participants >= 400, counts(item.facts, s)) for s in item.facts.studies]
        kinds = Counter(studies)
        fixed = [(d, p, c) for d in ("trial", "cohort") for p in (True, False) for c in (True, False)]
        return [len(studies) / 16, *(kinds[kind] / len(studies) for kind in fixed)]

    train = generate(600, seed=13)
    model = LogisticRegression(max_iter=500).fit(np.array([row(i) for i in train]), [i.task.label for i in train])
    score = model.score(np.array([row(i) for i in TASKS]), [i.task.label for i in TASKS])
    assert score < commonest() + 0.03


def commonest() -> float:
    return max(Counter(item.task.label for item in TASKS).values()) / len(TASKS)


def test_no_lookup_in_the_question_or_in_the_words_of_all_studies_answers() -> None:
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression

    for words in (lambda item: item.task.goal, lambda item: item.task.goal + abstract_text(item.task.context)):
        counted = TfidfVectorizer(token_pattern=r"[\w.<=%-]+")
        matrix = counted.fit_transform(map(words, TASKS[:250]))
        model = LogisticRegression(max_iter=100).fit(matrix, [item.task.label for item in TASKS[:250]])
        score = model.score(counted.transform(map(words, TASKS[250:])), [item.task.label for item in TASKS[250:]])
        assert score < commonest() + 0.08


def test_each_study_is_found_by_its_own_search_and_by_no_other() -> None:
    documents = Dataset(tuple(item.task for item in TASKS), (), (), "generated", "test").documents()
    index = LiteratureIndex(documents)
    assert len(index) == sum(len(item.facts.studies) for item in TASKS)
    outcomes: Counter[str] = Counter()
    for item in TASKS[:80]:
        names = dict(zip(NAMES, (item.facts.therapy, item.facts.second_name), strict=True))
        for tool, name in SEARCHES:
            expected = {study.id for study in item.facts.studies if (study.tool, study.name) == (tool, name)}
            assert len(expected) == STUDIES[item.facts.level] // 4
            results = [passage.id for passage in index.search(names[name], 4, trials=tool == TRIALS)]
            tellers = {study.id for study in item.facts.studies if study.second_name}
            outcomes["complete"] += set(results[: len(expected)]) == expected
            outcomes["with others"] += bool(set(results) - expected - (tellers if name == "second name" else set()))
    assert outcomes["complete"] > 0.98 * 320
    assert outcomes["with others"] < 0.02 * 320


def test_texts_tell_trials_from_cohorts() -> None:
    for item in TASKS:
        for study in item.facts.studies:
            assert describes_trial(text(study)) == (study.design == "trial") == (study.tool == TRIALS)
            assert (study.tool == LITERATURE) == (study.design == "cohort")


@pytest.mark.parametrize("level", STUDIES)
def test_studies_tell_the_second_name_and_retractions_once_where_they_should(level: int) -> None:
    for item in generate(30, seed=3, levels=(level,)):
        studies, facts = item.facts.studies, item.facts
        assert [study.id for study in studies] == [f"{item.task.id}-{n}" for n in range(1, STUDIES[level] + 1)]
        assert facts.second_name not in item.task.goal
        for study in studies:
            other = facts.second_name if study.name == "name" else facts.therapy
            assert (other.lower() in text(study).lower()) == study.second_name
            assert study.retracted == bool(re.search("retract", text(study), re.IGNORECASE))
        assert sorted(study.tool for study in studies if study.second_name) == sorted({LITERATURE, TRIALS})
        assert all(study.name == "name" for study in studies if study.second_name)
        assert sum(study.retracted for study in studies) == RETRACTED[level]
        outside = [s.population != facts.population or s.endpoint != facts.endpoint for s in studies]
        assert sum(outside) == OUTSIDERS[level]


def test_abstracts_are_short_and_sizes_are_even() -> None:
    lengths = sorted(len(text(study).split()) for item in TASKS for study in item.facts.studies)
    assert 40 <= lengths[len(lengths) // 2] <= 60
    assert lengths[-1] <= 75
    sizes = {study.participants for item in TASKS for study in item.facts.studies}
    assert all(size % 2 == 0 and 100 <= size <= 980 for size in sizes)


def test_who_has_read_some_studies_is_right_by_those_alone() -> None:
    for item in TASKS[:60]:
        studies: Sequence[ReviewStudy] = item.facts.studies
        assert item.task.label_after(study.id for study in studies) == item.task.label
        assert item.task.label_after([]) == item.task.label_after(["a protein"]) == "maybe"
        for way in SEARCHES:
            part = [study for study in studies if (study.tool, study.name) == way]
            expected = weigh(vote(item.facts, study) for study in part)
            assert item.task.label_after(["a protein", *(study.id for study in part)]) == expected
    for item in generate_abstracts(3, seed=12):
        assert item.task.votes == ()
        assert item.task.label_after([]) == item.task.label


def test_labels_have_the_published_mix_and_tasks_depend_on_seed_and_number_only() -> None:
    shares = Counter(item.task.label for item in TASKS)
    assert [abs(shares[label] / len(TASKS) - LABEL_MIX[label]) < 0.06 for label in LABELS] == [True] * 3
    assert generate(5, seed=4)[:3] == generate(3, seed=4)
    assert generate(3, seed=4) != generate(3, seed=5)
    for item in TASKS:
        assert item.task.label == weigh(item.task.votes)
        assert isinstance(item.task.votes[0], Vote)
        shown = " ".join((item.task.goal, abstract_text(item.task.context)))
        assert item.task.long_answer not in shown


@pytest.mark.parametrize("levels", [(), (5,)])
def test_only_the_four_levels_are_there(levels: tuple[int, ...]) -> None:
    with refused(ValueError, "levels must be some of 1, 2, 3, 4"):
        generate(1, seed=0, levels=levels)


def test_the_family_is_split_searched_and_named_like_any_other_data() -> None:
    data = load(DataConfig(family="review", size=60))
    assert [len(data.train), len(data.validation), len(data.test)] == [36, 12, 12]
    assert data.describe().startswith("generated tasks, review, levels 1-4, seed 0")
    assert {document.id.rpartition("-")[0] for document in data.documents()} == {task.id for task in data.tasks}
    assert set(data.conclusions()) == {task.id for task in data.tasks}
