"""The relative judge: one call for all works, twice, so that neither order nor what they share decides."""

import asyncio
import json
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_judge import PROTOCOL, SENTENCE, SOURCE

from agents.visit.prompting import payload_of
from chimera.core.errors import ModelError, UnreachableError
from chimera.rubric.grader import grade
from chimera.serving.client import Completion
from evaluation.scores.relative import relative
from training.configuration import load_config

GOAL = "Does melanolix reduce pain score in adults with gout?"


def work(number, **fields):
    hypothesis = {"evidence": [SENTENCE], "comparison": "lower, p=0.013", "claim": "it is lower", "answer": "yes"}
    return {
        "sources": [SOURCE],
        "hypothesis": hypothesis,
        "protocol": {**PROTOCOL, "sample_size": 20 + 40 * number, **fields},
        "answer": "yes",
        "decision": "GO",
        "rationale": "the evidence supports it",
        "goal": GOAL,
    }


WORKS = [work(number) for number in range(5)]


def completion(content):
    return Completion({"role": "assistant", "content": content}, content, (), "stop", 1, 1, "x", None)


class Asked:
    """A judge that scores each shown work by `score(work, place)`."""

    def __init__(self, score):
        self.score, self.payloads, self.forms = score, [], []

    async def __call__(self, messages, *, response_format, seed):
        payload = payload_of(list(messages))
        self.payloads.append(payload)
        self.forms.append(response_format)
        scores = [self.score({**payload, **work}, place) for place, work in enumerate(payload["works"])]
        return completion(json.dumps({"scores": scores}))


async def by_rubric(messages, *, response_format, seed):
    return completion(json.dumps(grade(response_format["json_schema"]["name"], payload_of(list(messages)))))


@given(st.integers(0, 1000), st.permutations(range(5)))
def test_the_rubric_gives_a_work_the_same_score_in_every_order_and_company(seed, order):
    first = asyncio.run(relative(by_rubric, WORKS, seed=seed))
    second = asyncio.run(relative(by_rubric, [WORKS[place] for place in order], seed=seed + 1))
    assert [second[order.index(place)] for place in range(5)] == first
    assert {placed.moved for placed in first} == {0.0}
    assert asyncio.run(relative(by_rubric, WORKS[:2], seed=seed)) == first[:2]


@given(st.integers(0, 1000))
def test_of_a_judge_that_prefers_the_first_nothing_is_left_and_it_is_seen(seed):
    judge = Asked(lambda work, place: work["protocol"]["sample_size"] / 1000 + 0.1 * (4 - place))
    placed = asyncio.run(relative(judge, WORKS, seed=seed))
    merit = [work["protocol"]["sample_size"] / 1000 for work in WORKS]
    shift = placed[0].score - merit[0]
    assert all(abs(one.score - own - shift) < 0.02 for one, own in zip(placed, merit, strict=True))
    assert max(one.moved for one in placed) == pytest.approx(0.4)


async def test_what_works_share_is_shown_once_and_both_orders_are():
    judge = Asked(lambda work, place: 0.5)
    placed = await relative(judge, WORKS, seed=3)
    assert {one.score for one in placed} == {0.5}
    first, second = judge.payloads
    assert first["works"] == second["works"][::-1]
    assert set(first["works"][0]) == {"protocol"}
    assert (first["sources"], first["goal"]) == ([SOURCE], GOAL)
    form = judge.forms[0]["json_schema"]["schema"]["properties"]["scores"]
    assert (form["minItems"], form["maxItems"]) == (5, 5)


@pytest.mark.parametrize("bad", ["?", '{"scores": [1]}', '{"scores": [2, 0, 0, 0, 0]}', ModelError("500")])
async def test_a_judge_that_cannot_be_read_once_gives_no_score(bad):
    answers = [bad, json.dumps({"scores": [0.5] * 5})]

    async def judge(messages, **options):
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return completion(answer)

    assert await relative(judge, WORKS, seed=0) == [None] * 5


async def test_a_judge_that_is_gone_is_no_missing_score():
    async def judge(messages, **options):
        raise UnreachableError("nobody is there")

    with pytest.raises(UnreachableError):
        await relative(judge, WORKS, seed=0)


def test_judges_take_turns_by_task_and_each_as_often():
    second = ["models.second.kind=rubric", "models.third.kind=rubric", "rollouts.judges=[second,third]"]
    config = load_config(None, second)
    turns = Counter(config.judge_of(f"task-{number}") for number in range(3000))
    assert set(turns) == {"judge", "second", "third"}
    assert all(abs(count - 1000) < 120 for count in turns.values())
    assert config.judge_of("task-1") == load_config(None, second).judge_of("task-1")
    assert set(config.served()) >= set(turns)
