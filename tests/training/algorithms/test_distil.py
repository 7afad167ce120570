"""Distillation on the fake bench: what each teacher answers, that no label is used, and what is refused."""

import asyncio
import json
from dataclasses import replace

import pytest
from branch_kit import MISREAD, READ, REFINER, TASKS, Answers, answer, plant_stale, record, render_of, said
from hypothesis import given
from hypothesis import strategies as st
from message_kit import refused

from chimera.core.errors import RunError
from chimera.serving.client import Completion
from training.algorithms.distil import Distil, DistilSettings, draw
from training.algorithms.teachers import elected, rewritten
from training.configuration import load_config
from training.learning.base import PhasePlan
from training.learning.states import states_of

pytestmark = pytest.mark.whole

PLAN = PhasePlan("distil", "distil", (REFINER,), ("refiner",))


def settings(**other):
    return DistilSettings(**{"algorithm": "distil", "min_examples": 1, "answers": 5, **other})


def drawn(bench, **other):
    return asyncio.run(draw(PLAN, settings(**other), bench, render_of(bench)))


def texts(selection):
    return [one.candidate.conversation.messages[-1]["content"] for one in selection.examples]


class Taught(Answers):
    """A model that says no at temperature 0, and another slot's that says maybe, in a fence."""

    def answer(self, slot, messages, options):
        number = int(json.loads(messages[1]["content"])["goal"].split()[-1][:-1])
        if slot == "teacher":
            assert "temperature" not in options
            assert "tools" not in options
            text = "```json\n" + json.dumps(json.loads(answer("maybe")), indent=1) + "\n```"
        else:
            assert options["temperature"] == 0
            text = [answer("no"), answer("no", quote=MISREAD), "{"][number % 3]
        version = {"teacher": None, "refiner": "nano@0"}[slot]
        return Completion({"role": "assistant", "content": text}, text, (), "stop", 3, 2, "told", version)


@pytest.fixture(scope="module")
def call(tmp_path_factory):
    bench = Answers(tmp_path_factory.mktemp("calls"))
    (found,) = states_of(bench.episode(bench.earlier[0]), [REFINER])
    return found.call


def test_a_vote_is_for_what_most_say_with_true_quotes_in_the_commonest_words(call):
    said_by = [
        *[answer("no", claim=claim) for claim in ("a", "b", "b")],
        *[answer("yes", quote=MISREAD, claim="c")] * 3,
        *[answer("yes", claim=claim) for claim in ("d", "e", "e")],
    ]
    assert elected([said(call, text) for text in said_by]).answer.claim == "e"
    assert elected([said(call, text) for text in said_by[:4]]).answer.claim == "b"
    assert elected([said(call, text) for text in said_by[3:6]]).answer.claim == "c"


def test_unreadable_answers_have_no_vote(call):
    assert elected([said(call, text) for text in ("{", "{", answer("no"))]).answer.stance == "no"
    assert elected([said(call, "{")]).answer is None


@given(st.lists(st.sampled_from(["yes", "no", "maybe"]), min_size=1, max_size=9))
def test_no_stance_has_more_votes_than_the_elected_one(call, stances):
    found = elected([said(call, answer(stance)) for stance in stances]).answer.stance
    assert stances.count(found) == max(map(stances.count, stances))


def test_an_answer_is_rewritten_in_the_form_of_the_role(call):
    told = {"answer": "no", "claim": "<b>", "author": "x", "evidence": [READ], "comparison": "lower"}
    content = rewritten(call, told).asked.choice["message"]["content"]
    assert content.startswith('{"evidence":[')
    assert rewritten(call, told).answer.claim == "<b>"


def test_the_vote_is_learned_once_for_each_prompt(tmp_path):
    bench = Answers(tmp_path)
    selection = drawn(bench)
    by_hand = {key[0]: elected(calls).asked.choice["message"]["content"] for key, calls in bench.branches.items()}
    assert texts(selection) == [by_hand[number, 5] for number in range(TASKS) if MISREAD not in by_hand[number, 5]]
    figures = selection.figures
    assert figures["states"] == figures["branch_requests"] == TASKS
    assert figures["selected"] == TASKS - figures["misquoting"] == len(selection.examples)
    assert figures["informative"] == sum(json.loads(text)["answer"] != "yes" for text in texts(selection))


def test_greedy_is_the_same_weights_at_temperature_0(tmp_path):
    selection = drawn(Taught(tmp_path), teacher="greedy")
    assert texts(selection) == [answer("no")] * 2
    counts = {name: selection.figures[name] for name in ("misquoting", "unreadable", "stale", "informative")}
    assert counts == {"misquoting": 2, "unreadable": 2, "stale": 0, "informative": 2}


def test_another_slot_can_teach_and_its_fence_is_not_learned(tmp_path):
    bench = Taught(tmp_path)
    selection = drawn(bench, teacher="slot", slot="teacher")
    assert [json.loads(text) for text in texts(selection)] == [json.loads(answer("maybe"))] * TASKS
    assert not any("`" in text or "\n" in text for text in texts(selection))
    assert {key[0] for key in bench.questions} == {"teacher"}
    assert selection.figures["informative"] == TASKS


def test_what_the_society_came_to_can_be_learned(tmp_path):
    bench = Answers(tmp_path)
    refined = [json.loads(answer("no", quote=READ if number else MISREAD)) for number in range(TASKS)]
    outputs = [{"refined_hypothesis": one} for one in refined]
    bench.earlier = [record(bench.run, number, outputs=outputs[number]) for number in range(TASKS)]
    selection = drawn(bench, teacher="society")
    assert [json.loads(text) for text in texts(selection)] == refined[1:]
    assert selection.figures["misquoting"] == 1
    assert not bench.branches


def test_no_label_is_used(tmp_path):
    """With other labels the same answers are learned, to the last token."""
    for teacher in ("vote", "greedy"):
        found = [
            drawn(Taught(tmp_path / f"{teacher}-{label}", label=label), teacher=teacher).examples
            for label in ("yes", "no", "maybe")
        ]
        rows = [[one.rows for one in examples] for examples in found]
        assert rows[0] == rows[1] == rows[2]


def test_answers_by_other_weights_are_left_out_and_counted(tmp_path):
    bench = Taught(tmp_path)
    told = bench.answer
    plant_stale(bench, 5)
    assert drawn(bench).figures["stale"] == 1, "all five answers to the first prompt"
    bench.answer = lambda *given_: replace(told(*given_), weights_version="newer@1")
    with refused(RunError, "6 of 6", "0 are learned", "distil.min_examples"):
        drawn(bench, teacher="greedy")


async def test_the_student_learns_and_a_finished_model_is_kept(tmp_path, serving_model):
    bench = Answers(tmp_path, weights={"refiner": serving_model()})
    own = settings(epochs=1, batch_size=4, micro_batch_size=4)
    learned = await Distil().learn(PLAN, own, bench)
    assert learned.policy.version == "refiner@distil"
    rows = [json.loads(line) for line in (bench.run.path / "phases/distil/examples.jsonl").open()]
    assert len(rows) == learned.figures["selected"]
    assert await Distil().learn(PLAN, own, bench) == learned
    assert "refiner@distil was made from these" in bench.view.lines[-1]


def test_the_teachers_slot_is_served():
    phase = [f"pipeline.distil.{setting}" for setting in ("roles=[HypothesisRefiner]", "teacher=slot", "slot=other")]
    assert "other" in load_config(None, [*phase, "models.other.like=senior"]).served()
