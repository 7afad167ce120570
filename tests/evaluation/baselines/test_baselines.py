"""Baselines: what they learn they learn from the training split, and what cannot be answered stays unanswered."""

import json
import random
from dataclasses import replace

import pytest

from agents.roles import ROLES
from agents.visit.prompting import payload_of
from chimera.core.errors import ModelError, UnreachableError
from chimera.core.types import LABELS, ResearchTask, Section
from chimera.data.generated.tasks import generate
from evaluation.baselines.simple import CONSISTENCY, MAJORITY, SINGLE, TFIDF, majority, of_stage, reader, tfidf, title
from evaluation.baselines.single_agent import single_agent
from evaluation.records.study import BaselineAnswer


def task(number: int, label, text: str = "Nothing was found.") -> ResearchTask:
    return ResearchTask(
        f"t{number}", f"Does it work in case {number}?", (Section("RESULTS", text),), label, "generated"
    )


def told(count: int, start: int = 0) -> list[ResearchTask]:
    """Tasks whose abstract says the label in a word of its own."""
    words = {"yes": "succeeded", "no": "failed", "maybe": "unclear"}
    labels = [LABELS[number % 3] for number in range(start, start + count)]
    return [task(start + i, label, f"The trial {words[label]} in group {i}.") for i, label in enumerate(labels)]


def test_majority_is_the_training_splits_and_not_the_tasks():
    train = [task(1, "no"), task(2, "no"), task(3, "yes")]
    tasks = [task(number, "yes") for number in range(10, 14)]
    assert majority(train, tasks) == [BaselineAnswer(MAJORITY, one.id, 0, "no") for one in tasks]


def test_among_equally_common_labels_the_first_is_taken():
    tasks = [task(9, "no")]
    assert majority([task(1, "maybe"), task(2, "no")], tasks)[0].answer == "no"
    assert majority([task(1, "maybe"), task(2, "no"), task(3, "yes")], tasks)[0].answer == "yes"


def test_words_that_tell_the_label_are_learned():
    tasks = told(30, start=100)
    answers = tfidf(told(60), tasks)
    assert [one.answer for one in answers] == [one.label for one in tasks]
    assert [(one.baseline, one.task_id, one.repeat, one.error) for one in answers] == [
        (TFIDF, one.id, 0, None) for one in tasks
    ]


def test_numbers_are_words_too():
    train = [task(i, "yes" if i % 2 else "no", f"It was p={'0.01' if i % 2 else '0.80'} here.") for i in range(40)]
    tasks = [task(100, "yes", "It was p=0.01 here."), task(101, "no", "It was p=0.80 here.")]
    assert [one.answer for one in tfidf(train, tasks)] == ["yes", "no"]


def test_the_answers_depend_on_nothing_but_question_and_abstract():
    made = [one.task for one in generate(120, seed=3)]
    train, tasks = made[:90], made[90:]
    answers = tfidf(train, tasks)
    assert tfidf(train, tasks) == answers
    hidden = [
        ResearchTask(one.id, one.goal, one.context, "maybe", one.source, "a conclusion that says yes yes yes", 4)
        for one in tasks
    ]
    assert tfidf(train, hidden) == answers
    mixed = random.Random(0).sample(tasks, len(tasks))
    assert {one.task_id: one.answer for one in tfidf(train, mixed)} == {one.task_id: one.answer for one in answers}


def test_a_reader_of_statistics_and_directions_beats_words_and_needs_no_model():
    made = [one.task for one in generate(500, seed=5)]
    train, tasks = made[:400], made[400:]
    right = {
        learn: sum(one.answer == task.label for one, task in zip(learn(train, tasks), tasks, strict=True)) / 100
        for learn in (majority, tfidf, reader)
    }
    assert right[reader] > max(right[majority], right[tfidf]) + 0.1
    assert all((one.calls, one.prompt_tokens) == (0, 0) for one in reader(train, tasks))


def test_one_label_alone_teaches_nothing():
    answers = tfidf([task(1, "yes"), task(2, "yes")], [task(3, "no")])
    assert answers[0].answer is None
    assert "nothing to learn" in str(answers[0].error)


@pytest.mark.parametrize("learn", [majority, tfidf, reader])
def test_without_training_tasks_there_is_no_baseline(learn):
    with pytest.raises(ValueError, match="training split"):
        learn([], [task(1, "yes")])


def test_titles():
    assert title(MAJORITY) == "commonest label of the training split"
    assert "logistic" in title(TFIDF)
    assert "stage base" in title(of_stage(SINGLE, "base"))
    assert "majority of 7 sampled calls" in title(of_stage(CONSISTENCY, "base"), 7)


ANSWER = {"evidence": ["It was lower."], "comparison": "asked lower; found lower", "claim": "It works", "answer": "no"}


class Chooser:
    """Gives several answers to one request from a society's scripted model; `most` is what the server can."""

    def __init__(self, model, most: int = 99) -> None:
        self.model, self.most, self.sizes = model, most, []

    async def choices(self, key, messages, *, response_format=None, seed=None, n=1):
        self.sizes.append((n, seed))
        if self.most == 0 and n > 1:
            raise ModelError("only one completion choice is allowed")
        given = range(max(1, min(n, self.most)))
        return [await self.model.complete(key, messages, response_format=response_format, seed=seed) for _ in given]


async def test_a_single_agent_makes_one_call_with_the_abstract_and_no_tool_conclusion_or_label(society_kit):
    model = society_kit.Model(Pharmacologist=[ANSWER])
    given = replace(told(1)[0], long_answer="It certainly does.")
    found = await single_agent(Chooser(model), given, key="junior", name="single@sft", quotes="free", repeat=2, seed=7)
    assert found == [BaselineAnswer("single@sft", given.id, 2, "no", None, 1, 10, 5, 0)]
    (request,) = model.requests
    assert (request.key, request.tools, request.seed) == ("junior", [], 7)
    system, _ = request.messages
    assert system == {"role": "system", "content": ROLES["Pharmacologist"].prompt}
    assert payload_of(request.messages) == {
        "sources": [{"id": given.id, "text": "RESULTS: The trial succeeded in group 0."}],
        "goal": given.goal,
    }
    assert request.response_format["json_schema"]["name"] == "Hypothesis"


@pytest.mark.parametrize(
    ("most", "requests"),
    [
        (99, [(3, 12)]),
        (1, [(3, 12), (2, 13), (1, 14)]),
        (2, [(3, 12), (1, 14)]),
        (0, [(3, 12), (1, 12), (1, 13), (1, 14)]),
    ],
)
async def test_servers_that_do_not_give_several_answers_are_asked_for_the_rest(society_kit, most, requests):
    model = Chooser(society_kit.Model(Pharmacologist=[{**ANSWER, "answer": label} for label in LABELS]), most)
    found = await single_agent(
        model, told(1)[0], key="junior", name="single@base", quotes="free", seed=10, first=2, samples=3
    )
    assert [(one.sample, one.answer, one.calls) for one in found] == [(2, "yes", 1), (3, "no", 1), (4, "maybe", 1)]
    assert model.sizes == requests


@pytest.mark.parametrize(
    ("played", "said"),
    [
        ("no JSON", "could not be read"),
        (json.dumps({**ANSWER, "answer": "perhaps"}), "answer"),
        ([("literature_search", {"query": "x"})], "no tools are offered"),
        (ModelError("the server is gone", retriable=True), "the server is gone"),
    ],
)
async def test_an_unreadable_answer_is_no_answer_and_there_is_no_second_try(society_kit, played, said: str):
    model = society_kit.Model(Pharmacologist=[played, ANSWER])
    (found,) = await single_agent(Chooser(model), told(1)[0], key="junior", name="single@base", quotes="free")
    assert found.answer is None
    assert said in str(found.error)
    assert len(model.requests) == 1


async def test_a_single_agent_whose_server_cannot_be_reached_has_not_answered(society_kit):
    model = society_kit.Model(Pharmacologist=[UnreachableError("nobody is there")])
    with pytest.raises(UnreachableError):
        await single_agent(Chooser(model), told(1)[0], key="junior", name="single@base", quotes="free")
