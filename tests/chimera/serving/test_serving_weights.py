"""Weights that change while requests run: which answer comes from which, and that none is lost."""

import asyncio
import json
import shutil

import pytest
from embedded_kit import embedded
from message_kit import refused

from agents.visit.prompting import schema_format
from chimera.config.sections.models import ModelConfig
from chimera.serving.embedded.protocol import BadRequest, NotFound, parse_request

QUESTION = [{"role": "user", "content": "the rate?"}]
LONG = schema_format("Long", {"type": "string", "minLength": 400, "maxLength": 500})


def tokens_of(answer):
    return [choice["token_ids"] for choice in answer["choices"]]


@pytest.fixture
def swapping(serving_model):
    one = ModelConfig(path=str(serving_model(seed=0)))
    with embedded({"junior": one, "senior": one}, slots=2, context_length=1200) as service:
        yield service


async def complete(service, **fields):
    body = {"model": "senior", "messages": QUESTION, "seed": 1, "return_token_ids": True, "max_tokens": 15}
    return await service.complete(parse_request(body | fields))


async def test_models_with_one_path_share_a_batch_until_one_gets_new_weights(swapping, serving_model):
    lanes = {key: binding.lane for key, binding in swapping._bindings.items()}
    assert lanes["junior"] is lanes["senior"]
    old = await complete(swapping)
    assert await asyncio.to_thread(swapping.load_weights, "senior", serving_model(seed=1)) == "senior@1"
    new, junior = await asyncio.gather(complete(swapping), complete(swapping, model="junior"))
    assert new["weights_version"] == "senior@1"
    assert junior["weights_version"] == old["weights_version"] != "senior@1"
    assert tokens_of(junior) == tokens_of(old) != tokens_of(new)
    assert await asyncio.to_thread(swapping.load_weights, "senior", serving_model(seed=0), "base") == "base"
    assert tokens_of(await complete(swapping)) == tokens_of(old)
    assert await asyncio.to_thread(swapping.load_weights, "senior", serving_model(seed=0)) == "senior@3"


async def test_no_request_is_dropped_or_mixes_versions_while_weights_change(swapping, serving_model):
    folders = [serving_model(seed=seed) for seed in (0, 1, 2)]
    truth = {}
    for number, folder in enumerate(folders):
        version = await asyncio.to_thread(swapping.load_weights, "senior", folder, f"v{number}")
        for seed in range(4):
            truth[version, seed] = tokens_of(
                await complete(swapping, seed=seed, response_format=LONG, max_tokens=60, n=2)
            )
    seen = []

    swapped = asyncio.Event()

    async def keep_asking(seed):
        last = False
        while not last:
            last = swapped.is_set()
            answer = await complete(swapping, seed=seed, response_format=LONG, max_tokens=60, n=2)
            assert tokens_of(answer) == truth[answer["weights_version"], seed]
            seen.append(answer["weights_version"])

    async def keep_swapping():
        for number in (0, 1, 2):
            await asyncio.to_thread(swapping.load_weights, "senior", folders[number], f"v{number}")
            assert (await complete(swapping, max_tokens=1))["weights_version"] == f"v{number}"
        swapped.set()

    await asyncio.gather(keep_swapping(), *[keep_asking(seed) for seed in range(4)])
    assert seen[-4:] == ["v2"] * 4


async def test_a_change_returns_when_no_old_answer_can_come_any_more(swapping, serving_model):
    running = asyncio.create_task(complete(swapping, response_format=LONG, max_tokens=None))
    await asyncio.sleep(0)
    old = swapping._bindings["senior"]
    assert old.running
    await asyncio.to_thread(swapping.load_weights, "senior", serving_model(seed=1))
    assert not old.running
    assert (await running)["weights_version"] == old.version


async def test_weights_of_another_model_are_refused_and_change_nothing(swapping, serving_model, tmp_path):
    shutil.copytree(serving_model(), tmp_path, dirs_exist_ok=True)
    tokenizer = json.loads((tmp_path / "tokenizer.json").read_text())
    tokenizer["added_tokens"][0]["content"] = "<|start|>"
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer))
    with refused(BadRequest, "'senior'", "@0", "tokenizer", "start a new server"):
        swapping.load_weights("senior", tmp_path)
    assert (await complete(swapping))["weights_version"].endswith("@0")


async def test_a_candidate_answers_beside_what_is_live_and_changes_nothing_of_it(swapping, serving_model):
    live, described = await complete(swapping), swapping.describe()
    name = await asyncio.to_thread(swapping.add_candidate, "senior", serving_model(seed=1), "senior@try-1")
    assert name == "senior~senior@try-1"
    candidate, same, junior = await asyncio.gather(
        complete(swapping, model=name), complete(swapping), complete(swapping, model="junior")
    )
    assert candidate["weights_version"] == "senior@try-1"
    assert candidate["prompt_token_ids"] == live["prompt_token_ids"]
    assert tokens_of(candidate) != tokens_of(live) == tokens_of(same) == tokens_of(junior)
    assert swapping.describe() == described
    await asyncio.to_thread(swapping.load_weights, "senior", serving_model(seed=1))
    assert tokens_of(await complete(swapping)) == tokens_of(candidate)


async def test_a_candidate_is_removed_when_its_last_request_has_ended(swapping, serving_model):
    name = await asyncio.to_thread(swapping.add_candidate, "senior", serving_model(seed=1), "senior@try-1")
    running = asyncio.ensure_future(complete(swapping, model=name, response_format=LONG, max_tokens=60))
    while not swapping._candidates[name].running:  # noqa: ASYNC110  submitting has no event
        await asyncio.sleep(0)
    await asyncio.to_thread(swapping.remove_candidate, name)
    assert (await running)["weights_version"] == "senior@try-1"
    with refused(NotFound, "'senior~senior@try-1'", "['junior', 'senior']"):
        await complete(swapping, model=name)
    with pytest.raises(NotFound, match="no candidate"):
        swapping.remove_candidate(name)


def test_a_candidate_that_does_not_fit_is_refused(swapping, tmp_path):
    with refused(NotFound, "'teacher'", "['junior', 'senior']"):
        swapping.add_candidate("teacher", tmp_path, "v")
    with pytest.raises(BadRequest, match="weights of 'senior' stay"):
        swapping.add_candidate("senior", tmp_path, "v")
