"""Calls beside rollouts, to a server of the user's: what is sent, recorded, counted, refused, and not sent twice."""

import asyncio
import json
from dataclasses import replace

import pytest
from lab_kit import SECRET, config_for
from message_kit import refused

from chimera.core.errors import ModelError, RunError
from chimera.core.secrets import register_secret
from chimera.run.directory import Run
from chimera.run.jsonl import read_lines
from chimera.serving.client import HttpModel
from chimera.serving.process import user_endpoint
from evaluation.traces.calls import TracedCall
from training.bench.branches import ask_again
from training.bench.side_calls import SideCalls
from training.learning.experience import Call

QUESTION = [
    {"role": "system", "content": "You are the HypothesisRefiner."},
    {"role": "user", "content": '{"goal":"?"}'},
]
TOOLS = [{"type": "function", "function": {"name": "literature_search", "parameters": {"type": "object"}}}]
FORM = {"type": "json_schema", "json_schema": {"name": "Hypothesis", "schema": {"type": "object"}}}


@pytest.fixture
async def side(scripted_openai, tmp_path):
    """`side()` is what a phase called `tried` has when it begins, or begins again."""
    scripted_openai.hooks.clear()
    scripted_openai.requests.clear()
    config = config_for(scripted_openai.url, tmp_path)
    config = config.model_copy(update={"evaluation": config.evaluation.model_copy(update={"retries": 0})})
    endpoints = {"refiner": user_endpoint("models.refiner", config.models["refiner"], {"TEST_KEY": SECRET})}

    model = HttpModel(endpoints, max_retries=config.rollouts.retries)

    def begin():
        made = SideCalls(Run(tmp_path, writable=True), "tried", config, model, lambda: None)
        made.config, made.file = config, tmp_path / "phases/tried/calls.jsonl"
        return made

    yield begin
    await model.aclose()


def call(prompt=(1, 2)):
    choice = {"message": {"role": "assistant", "content": "{}"}, "token_ids": [3]}
    asked = TracedCall("r-1", "HypothesisRefiner", 1, "at", 1, "refiner", QUESTION, choice, list(prompt), [3], "v", 1,
                       str(TOOLS), str(FORM))  # fmt: skip
    return Call("ro-1", "HypothesisRefiner", 1, 1, 1, "r-1", prompt, (3,), "v", 0.0, True, asked=asked)


def answers_with(server, prompt, choices):
    """Have the server read `prompt` and answer with so many choices at most, as far as they are asked for."""
    usual = server.answer

    async def answer(request):
        status, body = await usual(request)
        number = min(request.get("n", 1), choices)
        body["prompt_token_ids"] = list(prompt)
        body["choices"] = [{**body["choices"][0], "index": index} for index in range(number)]
        return status, body

    return answer


async def test_a_branch_sends_what_the_trace_holds_and_asks_again_where_n_is_not_known(
    side, scripted_openai, monkeypatch
):
    monkeypatch.setattr(scripted_openai, "answer", answers_with(scripted_openai, (1, 2), 2))
    made = side()
    found = await ask_again(made, made.config, {"refiner": "v1"}, call(), 5, 7)
    assert len(found) == len({one.response_id for one in found}) == 5
    sent = scripted_openai.requests
    assert [request.get("n", 1) for request in sent] == [5, 3, 1]
    assert len({request["seed"] for request in sent}) == 3
    for request in sent:
        assert (request["messages"], request["tools"]) == (QUESTION, TOOLS)
        assert "return_token_ids" not in request, "servers of others may refuse what they do not know"
    (first, *_) = read_lines(made.file)
    assert (first["request"]["rollout_id"], first["request"]["response_id"]) == ("ro-1", "r-1")
    assert "messages" not in first["request"], "the rollout's trace has them"
    again = side()
    assert await ask_again(again, made.config, {"refiner": "v1"}, call(), 5, 7) == found
    assert len(sent) == 3
    assert again.spent() == made.spent()
    await ask_again(again, made.config, {"refiner": "v2"}, call(), 2, 7)
    assert len(sent) == 4, "other weights answer anew"


async def test_the_same_prompt_is_asked_once_also_at_the_same_time(side, scripted_openai, monkeypatch):
    monkeypatch.setattr(scripted_openai, "answer", answers_with(scripted_openai, (1, 2), 4))
    made = side()
    others = replace(call(), rollout_id="ro-2", response_id="r-2")
    asked = (ask_again(made, made.config, {"refiner": "v1"}, one, 4, 0) for one in (call(), others))
    first, second = await asyncio.gather(*asked)
    assert len(scripted_openai.requests) == len(list(read_lines(made.file))) == 1
    assert [one.response_id for one in first] == [one.response_id for one in second]
    assert {one.rollout_id for one in second} == {"ro-2"}


async def test_a_prompt_that_is_read_as_other_tokens_is_refused(side, scripted_openai, monkeypatch):
    monkeypatch.setattr(scripted_openai, "answer", answers_with(scripted_openai, (1, 9), 1))
    made = side()
    with refused(RunError, "r-1", "HypothesisRefiner", "ro-1", "2 tokens", "chat template"):
        await ask_again(made, made.config, {"refiner": "v1"}, call(), 1, 0)
    with refused(RunError, "r-1", "ro-1", "not in a trace"):
        await ask_again(made, made.config, {"refiner": "v1"}, replace(call(), asked=None), 1, 0)


async def test_a_question_is_recorded_without_the_key_and_counted_with_its_price(side, scripted_openai):
    made = side()
    made.config.evaluation.prices["refiner"] = [1000.0, 1_000_000.0]
    register_secret("TEST_KEY", SECRET)
    scripted_openai.hooks.append(lambda request: f"my key is {SECRET}")
    answer = await made.make("ask", "refiner", "v", QUESTION, seed=1)
    assert answer.tokens() == (3, 2)
    assert made.spent() == {
        "ask_requests": 1, "ask_answers": 1, "ask_prompt_tokens": 3, "ask_completion_tokens": 2,
        "ask_usd": pytest.approx((3 * 1000 + 2 * 1_000_000) / 1e6),
    }  # fmt: skip
    (line,) = read_lines(made.file)
    assert line["request"]["messages"] == QUESTION
    assert SECRET not in made.file.read_text()


async def test_a_question_can_be_asked_at_another_temperature(side, scripted_openai):
    made = side()
    usual = await made.make("ask", "refiner", "v1", QUESTION)
    assert await made.make("ask", "refiner", "v1", QUESTION, temperature=0.0) is not usual
    assert [request["temperature"] for request in scripted_openai.requests] == [1.0, 0.0]
    assert await made.make("ask", "refiner", "v1", QUESTION) is usual


async def test_a_question_is_known_again_whatever_fields_the_server_has_refused(side, scripted_openai):
    scripted_openai.hooks.append(lambda request: (400, "Unsupported parameter: seed") if "seed" in request else None)
    made = side()
    answers = [await made.make("ask", "refiner", "v", QUESTION, seed=seed) for seed in (1, 2, 3)]
    assert len({id(answer) for answer in answers}) == len(list(read_lines(made.file))) == 3
    number, again = len(scripted_openai.requests), side()
    again._model = HttpModel(made._model.endpoints)  # Of another process, which knows of no refusal.
    assert await again.make("ask", "refiner", "v", QUESTION, seed=3) == answers[2]
    assert len(scripted_openai.requests) == number


async def test_a_server_that_fails_is_an_error_and_nothing_is_recorded(side, scripted_openai):
    made = side()
    for bad, message in (((400, "no such thing"), ("400", "no such thing")), ((500, "busy"), ("500", "busy"))):
        scripted_openai.hooks[:] = [lambda request, bad=bad: bad]
        with refused(ModelError, message):
            await made.make("ask", "refiner", "v", QUESTION)
    assert not made.file.exists()
    assert made.spent() == {}


def test_a_line_that_is_no_call_is_named(side):
    made = side()
    made.file.parent.mkdir(parents=True)
    made.file.write_text(json.dumps({"kind": "ask"}) + "\n")
    with refused(RunError, "calls.jsonl", "'key'", "restore it from a copy"):
        side()
