"""Answers that are kept: what is decoded once, what is decoded again, and how much is remembered."""

import asyncio
import threading
import weakref
from contextlib import ExitStack

import pytest
from embedded_kit import embedded

from agents.visit.prompting import schema_format
from chimera.config.sections.models import ModelConfig, ServingConfig
from chimera.serving.embedded.protocol import parse_request

TEXT = schema_format("Text", {"type": "string", "minLength": 5, "maxLength": 30})


@pytest.fixture
def serve(serving_model):
    models = dict.fromkeys(("junior", "senior"), ModelConfig(path=str(serving_model(seed=0))))
    usual = {"slots": 2, "context_length": 600, "answers": ServingConfig().answers}
    with ExitStack() as stack:
        yield lambda **serving: stack.enter_context(embedded(models, **usual | serving))


async def ask(service, **fields):
    body = {"model": "senior", "messages": [{"role": "user", "content": "the rate?"}], "seed": 1, "max_tokens": 12}
    return await service.complete(parse_request({**body, "return_token_ids": True, "response_format": TEXT, **fields}))


def decoded(service):
    return service.counters()["answers"]


async def test_an_equal_request_with_a_seed_is_decoded_once_and_has_an_id_of_its_own(serve):
    service = serve()
    first, again = await ask(service), await ask(service)
    assert (decoded(service), service.counters()["reused_answers"]) == (1, 1)
    assert first["id"] != again["id"]
    assert {**first, "id": ""} == {**again, "id": ""}


async def test_whatever_differs_is_another_request(serve):
    service = serve()
    sampling = [{"seed": 2}, {"n": 2}, {"temperature": 0.5}, {"max_tokens": 13}]
    for other in ({}, *sampling, {"model": "junior"}, {"return_token_ids": False}):
        await ask(service, **other)
        assert service.counters()["reused_answers"] == 0, other


async def test_new_weights_never_answer_with_the_old_ones_words_even_under_the_same_name(serve, serving_model):
    service = serve()
    old = await ask(service)
    for seed in (1, 0):
        await asyncio.to_thread(service.load_weights, "senior", serving_model(seed=seed), "the same name")
        await ask(service)
    assert service.counters()["reused_answers"] == 0
    assert decoded(service) == 3
    name = await asyncio.to_thread(service.add_candidate, "senior", serving_model(seed=0), "try")
    assert (await ask(service, model=name))["choices"] == old["choices"]
    assert service.counters()["reused_answers"] == 0


async def test_weights_that_were_replaced_are_freed_without_a_further_request(serve, serving_model):
    service, freed = serve(), threading.Event()
    await ask(service)
    weakref.finalize(service._bindings["senior"].lane, freed.set)
    for slot in ("junior", "senior"):
        await asyncio.to_thread(service.load_weights, slot, serving_model(seed=1))
    assert await asyncio.to_thread(freed.wait, 30)


async def test_without_a_seed_only_a_greedy_answer_is_the_same_each_time(serve):
    service = serve()
    for _ in range(2):
        await ask(service, seed=None)
    assert service.counters()["reused_answers"] == 0
    for _ in range(2):
        await ask(service, seed=None, temperature=0)
    assert service.counters()["reused_answers"] == 1


@pytest.mark.parametrize(("most", "reused"), [(0, 0), (2, 0), (3, 3)])
async def test_the_answer_that_was_not_asked_for_the_longest_time_goes_first(serve, most, reused):
    service = serve(answers=most)
    for _ in range(2):
        for seed in range(3):
            await ask(service, seed=seed)
    assert service.counters()["reused_answers"] == reused


async def test_whoever_asks_the_same_again_and_again_leaves_time_for_others(serve):
    service, others = serve(), asyncio.Event()
    await ask(service)
    asyncio.get_running_loop().call_soon(others.set)
    for _ in range(100):
        await ask(service)
        if others.is_set():
            break
    assert others.is_set()
