"""Tasks whose answer follows from several studies: the rule, the searches, and what shortcuts can and cannot do."""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache

import pytest

from agents.tools.literature import LiteratureIndex
from chimera.config.roles import TRIALS
from chimera.config.sections.data import DataConfig
from chimera.core.types import LABELS, Label, abstract_text
from chimera.data.generated.reader import asked_direction, asked_endpoint, read_direction, read_significance
from chimera.data.generated.synthesis import STUDIES, FoundStudy, SynthesisTask, decide, generate
from chimera.data.generated.tasks import LABEL_MIX
from chimera.data.generated.tasks import generate as one_study
from chimera.data.generated.vocabulary import CONDITIONS, ENDPOINTS, GROUPS
from chimera.data.tasks import Dataset, load

SIZE = re.compile(r"^(?:In|Among) (\d+) (.+? with .+?), ")
TASKS = generate(500, seed=12)


@cache
def population_of(goal: str) -> str:
    """The population that a question names."""
    (found,) = (f"{group} with {one}" for group in GROUPS for one in CONDITIONS if named(f"{group} with {one}", goal))
    return found


def named(population: str, text: str) -> bool:
    return bool(re.search(rf"(?<!young )\b{population}\b", text))


def simulated_reader(goal: str, texts: Sequence[str]) -> Label:
    """Apply the published rule to texts alone. It knows English cues and the endpoints, not what was drawn."""
    asked, endpoint, population = asked_direction(goal), asked_endpoint(goal), population_of(goal)
    found: list[tuple[int, Label]] = []
    for text in texts:
        for sentence in re.split(r"(?<=[.?!]) (?=[A-Z])", text.partition("RESULTS: ")[2]):
            size = SIZE.match(sentence)
            if size and size[2] == population and endpoint.lower() in sentence.lower():
                significance = read_significance(sentence)
                yes = significance == "significant" and read_direction(sentence) == asked
                found.append((int(size[1]), "maybe" if significance == "borderline" else "yes" if yes else "no"))
    most = max((size for size, _ in found), default=0)
    answers = {answer for size, answer in found if size == most}
    return answers.pop() if len(answers) == 1 else "maybe"


def right(reader: Callable[[SynthesisTask], Label]) -> float:
    return sum(reader(item) == item.task.label for item in TASKS) / len(TASKS)


def text(study: FoundStudy) -> str:
    return abstract_text(study.sections)


def test_a_reader_of_all_studies_is_always_right_and_a_reader_of_some_is_not() -> None:
    def of(*places: int) -> Callable[[SynthesisTask], Label]:
        return lambda item: simulated_reader(
            item.task.goal, [text(study) for place, study in enumerate(item.facts.studies) if place in places]
        )

    assert right(of(0, 1, 2)) == 1.0
    assert max(right(of(place)) for place in range(3)) < 0.6
    assert max(right(of(*pair)) for pair in ((0, 1), (0, 2), (1, 2))) < 0.82


def test_who_has_read_some_studies_is_right_by_those_alone() -> None:
    for item in TASKS[:100]:
        studies = item.facts.studies
        assert item.task.label_after(study.id for study in studies) == item.task.label
        assert item.task.label_after(["a protein"]) == "maybe"
        for study in studies:
            alone = decide(item.facts.asked, item.facts.population, [study])
            assert item.task.label_after([study.id, study.id, "a protein"]) == alone
    for item in one_study(3, seed=12):
        assert item.task.label_after([]) == item.task.label_after(["a protein"]) == item.task.label


def test_the_best_guess_from_one_study_stays_far_from_the_rule() -> None:
    """A learner that sees one study's answer, size and population as numbers, on tasks of its own."""
    import numpy as np
    from sklearn.linear_model import LogisticRegression

    def row(item: SynthesisTask) -> list[float]:
        study = item.facts.studies[0]
        matches, size = study.population == item.facts.population, study.participants / 1000
        answers = [float(study.finding.answer(item.facts.asked) == label) for label in LABELS]
        return [*answers, size, matches, *(a * matches for a in answers), *(a * matches * size for a in answers)]

    train = generate(1200, seed=13)
    model = LogisticRegression(max_iter=500).fit(np.array([row(i) for i in train]), [i.task.label for i in train])
    assert model.score(np.array([row(i) for i in TASKS]), [i.task.label for i in TASKS]) < 0.70


def test_no_lookup_in_the_question_or_in_the_words_of_all_studies_answers() -> None:
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression

    commonest = max(Counter(item.task.label for item in TASKS).values()) / len(TASKS)
    for words in (lambda item: item.task.goal, lambda item: item.task.goal + abstract_text(item.task.context)):
        counted = TfidfVectorizer(token_pattern=r"[\w.<=%-]+")
        known = counted.fit_transform(map(words, TASKS[:300]))
        model = LogisticRegression(max_iter=100).fit(known, [item.task.label for item in TASKS[:300]])
        score = model.score(counted.transform(map(words, TASKS[300:])), [item.task.label for item in TASKS[300:]])
        assert score < commonest + 0.08


def test_votes_and_sizes_alone_do_not_answer() -> None:
    def answers(item: SynthesisTask) -> list[Label]:
        return [study.finding.answer(item.facts.asked) for study in item.facts.studies]

    assert right(lambda item: Counter(answers(item)).most_common(1)[0][0]) < 0.6
    assert right(lambda item: Counter(answers(item)).most_common()[-1][0]) < 0.6
    largest: Callable[[SynthesisTask], Label] = lambda item: max(  # noqa: E731  a reader like the others
        item.facts.studies, key=lambda study: study.participants
    ).finding.answer(item.facts.asked)
    assert right(largest) < 0.65


def test_each_study_is_found_by_its_own_search_and_by_no_other() -> None:
    documents = Dataset(tuple(item.task for item in TASKS), (), (), "generated", "test").documents()
    index = LiteratureIndex(documents)
    assert len(index) == sum(len(item.facts.studies) for item in TASKS)
    found: Counter[bool] = Counter()
    for item in TASKS[:120]:
        names = {"name": item.facts.therapy, "second name": item.facts.second_name}
        for study in item.facts.studies:
            (first,) = index.search(names[study.name], 1, trials=study.tool == TRIALS or None)
            found[first.id == study.id] += 1
    assert found[False] < 0.02 * found.total()


@pytest.mark.parametrize("level", STUDIES)
def test_a_second_name_is_told_exactly_where_it_leads_on(level: int) -> None:
    for item in generate(20, seed=3, levels=(level,)):
        studies = item.facts.studies
        assert len(studies) == STUDIES[level]
        assert item.facts.second_name not in item.task.goal
        for place, study in enumerate(studies):
            other = item.facts.second_name if place < 2 else item.facts.therapy
            assert (other.lower() in text(study).lower()) == study.second_name == (place == 0 and len(studies) == 3)


def test_labels_have_the_published_mix_and_tasks_depend_on_seed_and_number_only() -> None:
    counts = Counter(item.task.label for item in generate(1500, seed=1))
    assert [abs(counts[label] / 1500 - LABEL_MIX[label]) < 0.04 for label in LABELS] == [True] * 3
    assert generate(5, seed=4)[:3] == generate(3, seed=4)
    for item in TASKS[:50]:
        facts = item.facts
        assert decide(facts.asked, facts.population, facts.studies) == item.task.label
        shown = " ".join((item.task.goal, abstract_text(item.task.context)))
        assert item.task.long_answer not in shown
        assert all(len(study.finding.sentence) <= 400 for study in facts.studies)


def test_the_family_is_split_searched_and_named_like_any_other_data() -> None:
    data = load(DataConfig(family="synthesis", size=60))
    assert [len(data.train), len(data.validation), len(data.test)] == [36, 12, 12]
    assert data.describe().startswith("generated tasks, synthesis, levels 1-4, seed 0")
    assert {document.id.rpartition("-")[0] for document in data.documents()} == {task.id for task in data.tasks}
    assert set(data.conclusions()) == {task.id for task in data.tasks}
    assert not any(endpoint.name in task.id for endpoint in ENDPOINTS for task in data.tasks)
