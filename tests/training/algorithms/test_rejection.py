"""Rejection fine-tuning on the fake bench: which answers are imitated, which are left out, and what is refused."""

import asyncio
import json
from dataclasses import replace

import pytest
from branch_kit import MISREAD, READ, REFINER, TASKS, Answers, plant_stale, record, render_of, reworded
from message_kit import refused

from chimera.core.errors import RunError
from chimera.data.tasks import load
from training.algorithms.rejection import RejectionSettings, draw, is_right
from training.configuration import load_config
from training.learning.base import PhasePlan
from training.learning.states import states_of

PLAN = PhasePlan("rejection", "rejection", (REFINER,), ("refiner",))


def settings(**other):
    return RejectionSettings(**{"algorithm": "rejection", "min_examples": 1, "answers": 6, **other})


def drawn(bench, **other):
    selection = asyncio.run(draw(PLAN, settings(**other), bench, render_of(bench)))
    said = [json.loads(one.candidate.conversation.messages[-1]["content"]) for one in selection.examples]
    return selection, said


def test_right_answers_with_true_quotes_are_imitated_a_few_to_each_prompt(tmp_path):
    bench = Answers(tmp_path)
    selection, said = drawn(bench, keep=2)
    assert {(one["answer"], *one["evidence"]) for one in said} == {("yes", READ)}
    of_task = [one.candidate.record.task_id for one in selection.examples]
    assert of_task == sorted(of_task)
    assert max(map(of_task.count, of_task)) == 2
    figures = selection.figures
    assert figures["branches/states"] == figures["branch_requests"] == TASKS
    assert figures["branches/answers"] == figures["branch_answers"] == 6 * TASKS
    assert figures["selected"] == len(said) <= figures["branches/right"] < figures["branches/answers"]
    assert figures["selected_by_role"] == {REFINER: len(said)}


def test_no_answer_is_learned_twice_for_one_prompt(tmp_path):
    selection, said = drawn(Answers(tmp_path), keep=100, right="label")
    texts = [(one.candidate.record.task_id, str(text)) for one, text in zip(selection.examples, said, strict=True)]
    assert len(set(texts)) == len(texts) < selection.figures["branches/right"]


@pytest.mark.parametrize(("right", "stances", "quotes"), [("label", 1, 2), ("quotes", 2, 1), ("both", 1, 1)])
def test_what_makes_an_answer_right_can_be_chosen(tmp_path, right, stances, quotes):
    _, said = drawn(Answers(tmp_path), right=right, keep=100)
    assert len({one["answer"] for one in said}) == stances
    assert len({one["evidence"][0] for one in said}) == quotes


def test_calls_by_other_weights_are_left_out_and_counted(tmp_path):
    """The prompt of a visit by older weights is asked again; one branch is answered by newer weights."""
    bench = Answers(tmp_path)
    bench.earlier[0] = record(bench.run, 0, version="older@1")
    plant_stale(bench, 1)
    selection, _ = drawn(bench, keep=100, right="quotes")
    assert selection.figures["branches/stale"] == 1
    assert selection.figures["branches/states"] == TASKS
    assert "t0" in {one.candidate.record.task_id for one in selection.examples}
    assert {one.candidate.conversation.weights_version for one in selection.examples} == {"nano@0"}
    assert "1 answers by other weights than nano@0 are left out" in bench.view.lines[-1]


def test_rollouts_without_reward_are_no_source(tmp_path):
    bench = Answers(tmp_path)
    bench.earlier[0] = record(bench.run, 0, reward=None, status="failed")
    selection, _ = drawn(bench)
    assert selection.figures["branches/states"] == TASKS - 1


def test_answers_that_are_worth_most_are_imitated(tmp_path):
    """Of right answers, those without a false quote: `unverifiable_quote` is part of what they are worth."""
    for weight, quote in ((-1.0, READ), (1.0, MISREAD)):
        reward = {"alignment": 1.0, "unverifiable_quote": weight}
        _, said = drawn(Answers(tmp_path / quote[-6:]), answers=30, right="label", reward=reward)
        assert {one["evidence"][0] for one in said} == {quote}


def test_too_few_right_answers_are_an_error_that_says_what_to_do(tmp_path):
    with refused(RunError, "36 answers", "6 prompts", "rejection.min_examples is 500", "lower it"):
        drawn(Answers(tmp_path), min_examples=500)


async def test_rollouts_of_its_own_are_asked_for_if_tasks_are_given(tmp_path):
    config = load_config(None, ["data.size=30"])
    bench = Answers(tmp_path, config=config, dataset=load(config.data))

    async def play(given_, versions):
        made = record(bench.run, bench.ran)
        return replace(made, task_id=given_.task.id, phase=given_.phase)

    bench.play = play
    selection = await draw(PLAN, settings(tasks=3), bench, render_of(bench))
    assert bench.ran == selection.figures["branches/states"] == 3
    assert {one.candidate.record.phase for one in selection.examples} == {"rejection"}


def test_an_answer_that_cannot_be_read_is_not_right(tmp_path):
    bench = Answers(tmp_path)
    (state,) = states_of(bench.episode(bench.earlier[0]), [REFINER])
    call, right = state.call, replace(state, label="yes")
    assert is_right(call, right, "both")
    assert not is_right(call, replace(state, label="no"), "both")
    for text in ("{", ""):
        assert not is_right(reworded(call, text), right, "both")
    assert not is_right(replace(call, asked=None), right, "both")
