"""A server whose models decode in several processes: it answers as one process does, and is whole or ends."""

import asyncio
import os
import signal
from concurrent.futures import ThreadPoolExecutor

import httpx
import psutil
import pytest
from message_kit import refused
from stream_kit import added_up, as_added_up, events

from agents.visit.prompting import schema_format
from chimera.config.sections.models import ModelConfig, ServingConfig
from chimera.core.errors import ConfigError, ModelError, RunError
from chimera.serving.devices import decoding_processes
from chimera.serving.embedded.checkpoint import count_weights
from chimera.serving.embedded.protocol import parse_request
from chimera.serving.embedded.service import Service
from chimera.serving.process import serve

pytestmark = pytest.mark.whole

RUBRIC = ModelConfig(kind="rubric")
LONG = schema_format("Long", {"type": "string", "minLength": 1500})
GONE_S = 20.0


def models(folder):
    own = ModelConfig(path=str(folder), max_tokens=30)
    return {"junior": own, "senior": own, "judge": RUBRIC}


@pytest.fixture
def running(serving_model, tmp_path):
    """A server with two decoding processes."""
    config = ServingConfig(slots=4, processes=2)
    with serve(models(serving_model(seed=0)), config, {}, log_file=tmp_path / "log") as servers:
        yield servers


def decoders(servers):
    return psutil.Process(servers.pid).children()


def body(number, turns=(), **fields):
    """A request: `turns` are the messages after the task of this number."""
    task = [{"role": "system", "content": "Answer."}, {"role": "user", "content": f"task {number}"}]
    return {
        "model": "junior",
        "messages": [*task, *({"role": role, "content": text} for role, text in turns)],
        "seed": number,
        "max_tokens": 24,
        "return_token_ids": True,
        **fields,
    }


def post(servers, request, path="/chat/completions"):
    endpoint = servers.endpoints["junior"]
    headers = {"Authorization": f"Bearer {endpoint.api_key}"}
    return httpx.post(endpoint.base_url + path, json=request, headers=headers, timeout=None)


def ask(servers, requests):
    """The answers to requests that are sent at once."""
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda request: post(servers, request), requests))
    assert {answer.status_code for answer in answers} == {200}, [answer.text for answer in answers]
    return [answer.json() for answer in answers]


def health(servers):
    endpoint = servers.endpoints["junior"]
    url = endpoint.base_url.removesuffix("/v1") + "/health"
    return httpx.get(url, headers={"Authorization": f"Bearer {endpoint.api_key}"}).json()


def ids(answer):
    return [choice["token_ids"] for choice in answer["choices"]]


def test_two_processes_share_the_work_and_answer_as_one_does(running, serving_model):
    requests = [body(number, n=1 + number % 3, logprobs=True, top_logprobs=2) for number in range(16)]
    before = [sum(one.cpu_times()[:2]) for one in decoders(running)]
    shared = ask(running, requests)
    spent = [sum(one.cpu_times()[:2]) - start for one, start in zip(decoders(running), before, strict=True)]
    assert len(spent) == 2
    assert min(spent) > 0

    async def alone():
        service = Service(models(serving_model(seed=0)), ServingConfig(slots=4, processes=1, answers=0))
        try:
            return [await service.complete(parse_request(request)) for request in requests]
        finally:
            await service.aclose()

    expected = asyncio.run(alone())
    assert [ids(answer) for answer in shared] == [ids(answer) for answer in expected]
    own = [answer["choices"][0]["logprobs"]["content"][0]["logprob"] for answer in expected]
    assert [answer["choices"][0]["logprobs"]["content"][0]["logprob"] for answer in shared] == pytest.approx(own)
    assert [answer["weights_version"] for answer in shared] == [answer["weights_version"] for answer in expected]
    assert health(running)["counters"]["answers"] == sum(request["n"] for request in requests)


def test_the_turns_of_a_conversation_find_its_beginning_in_a_cache(running):
    first = ask(running, [body(number) for number in range(4)])
    turns = [[("assistant", one["choices"][0]["message"]["content"] or "."), ("user", "and?")] for one in first]
    second = ask(running, [body(number, turns[number]) for number in range(4)])
    for before, after in zip(first, second, strict=True):
        assert after["usage"]["prompt_tokens_details"]["cached_tokens"] >= before["usage"]["prompt_tokens"] - 8


def test_an_equal_request_is_decoded_once_until_the_weights_change(running, serving_model):
    request = body(1)
    first, second = post(running, request).json(), post(running, request).json()
    assert ids(first) == ids(second)
    assert first["id"] != second["id"]
    counters = health(running)["counters"]
    assert (counters["answers"], counters["reused_answers"]) == (1, 1)
    running.load_weights("junior", serving_model(seed=1))
    assert ids(post(running, request).json()) != ids(first)
    assert health(running)["counters"]["reused_answers"] == 1


def test_new_weights_are_live_in_both_processes_and_of_their_slot_alone(running, serving_model):
    before = running.versions()
    assert running.load_weights("junior", serving_model(seed=1)) == "junior@1"
    answers = ask(running, [body(number) for number in range(8)])
    assert {answer["weights_version"] for answer in answers} == {"junior@1"}
    assert running.versions() == {**before, "junior": "junior@1"}
    described = httpx.get(
        running.endpoints["junior"].base_url + "/models",
        headers={"Authorization": f"Bearer {running.endpoints['junior'].api_key}"},
    ).json()["data"]
    assert {one["id"]: one["folder"] for one in described if one["id"] != "judge"} == {
        "junior": str(serving_model(seed=1)),
        "senior": str(serving_model(seed=0)),
    }


def test_weights_that_do_not_fit_change_nothing(running, serving_model, tmp_path):
    before, answer = running.versions(), post(running, body(1, seed=None, temperature=0)).json()
    (tmp_path / "none").mkdir()
    with refused(ModelError, "/admin/weights", "'junior'", lines=None):
        running.load_weights("junior", tmp_path / "none")
    with refused(ModelError, "/admin/weights", "'judge'", lines=None):
        running.load_weights("judge", serving_model(seed=1))
    assert running.versions() == before
    assert ids(post(running, body(1, seed=None, temperature=0)).json()) == ids(answer)
    assert running.load_weights("junior", serving_model(seed=1)) == "junior@1"


def test_a_candidate_is_served_beside_the_weights_until_it_is_removed(running, serving_model):
    name = running.add_candidate("junior", serving_model(seed=1), "other")
    answers = ask(running, [body(number, model=model) for number in range(4) for model in ("junior", name)])
    assert [answer["weights_version"] == "other" for answer in answers] == [False, True] * 4
    running.remove_candidate(name)
    refused = post(running, body(0, model=name))
    assert refused.status_code == 404
    assert refused.json()["error"]["code"] == "model_not_found"
    with pytest.raises(ModelError, match="no candidate"):
        running.remove_candidate(name)


def test_errors_of_a_decoding_process_are_the_servers(running):
    long = post(running, body(1, turns=[("user", "word " * 4000)]))
    assert long.status_code == 400
    assert long.json()["error"]["code"] == "context_length_exceeded"
    unknown = post(running, body(1, model="nobody"))
    assert unknown.status_code == 404
    assert "['judge', 'junior', 'senior']" in unknown.json()["error"]["message"]


def test_streams_of_the_decoding_processes_add_up_to_their_answers(running):
    requests = [body(number, n=1 + number % 2, logprobs=True) for number in range(6)]
    streamed = [post(running, {**request, "stream": True}) for request in requests]
    whole = [post(running, request).json() for request in requests]
    kept = [post(running, {**request, "stream": True}) for request in requests]
    for chunks, answer, again in zip(streamed, whole, kept, strict=True):
        assert added_up(events(chunks)) == as_added_up(answer) == added_up(events(again))
    assert health(running)["counters"]["reused_answers"] == len(requests)


def test_a_stream_that_is_cut_frees_its_slots_in_the_decoding_process(running):
    """Each process has two slots. If the stream kept both, the next request of its conversation would wait for it."""
    endless = body(1, n=2, max_tokens=1500, response_format=LONG, stream=True)
    endpoint = running.endpoints["junior"]
    headers = {"Authorization": f"Bearer {endpoint.api_key}"}
    with httpx.stream("POST", endpoint.base_url + "/chat/completions", json=endless, headers=headers) as stream:
        next(stream.iter_lines())
    assert post(running, body(1, max_tokens=1)).status_code == 200
    assert health(running)["counters"]["answers"] == 1


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_that_a_decoding_process_refuses_is_an_http_error(running, stream):
    many = {"type": "object", "properties": {f"p{number}": {"type": "integer"} for number in range(2000)}}
    for fields in ({"turns": [("user", "word " * 4000)]}, {"response_format": schema_format("Many", many)}):
        response = post(running, body(1, stream=stream, **fields))
        assert response.status_code == 400
        assert response.json()["error"]["type"] == "invalid_request_error"


def test_a_decoding_process_that_is_killed_ends_the_server_with_its_name(running):
    front, others = psutil.Process(running.pid), decoders(running)
    os.kill(others[0].pid, signal.SIGKILL)
    gone, alive = psutil.wait_procs([front, *others], timeout=GONE_S)
    assert not alive
    assert len(gone) == 3
    with refused(RunError, "decoding process", "SIGKILL", lines=None):
        running.check()


def test_the_decoding_processes_end_with_the_server(running):
    front, others = psutil.Process(running.pid), decoders(running)
    front.kill()
    _, alive = psutil.wait_procs(others, timeout=GONE_S)
    assert not alive


@pytest.mark.parametrize(
    ("settings", "parameters", "cores", "processes"),
    [
        ({}, 10**9, 2, 2),
        ({}, 10**9, 1, 1),
        ({}, 10**9 + 1, 8, 1),
        ({"threads": 2}, 1000, 8, 1),
        ({"slots": 1}, 1000, 8, 1),
        ({"processes": 1}, 1000, 8, 1),
        ({"processes": 3}, 10**10, 1, 3),
        ({"processes": 3, "slots": 2}, 1000, 8, 2),
    ],
)
def test_two_processes_decode_where_two_cores_and_memory_are(settings, parameters, cores, processes, monkeypatch):
    monkeypatch.setattr("chimera.serving.devices.gpus", list)
    assert decoding_processes(ServingConfig(**settings), parameters, cores, 32 * 10**9) == processes


def test_weights_are_counted_and_a_broken_file_is_named(serving_model, tmp_path):
    from safetensors.torch import load_file

    folder = serving_model(seed=0)
    counted = sum(tensor.numel() for tensor in load_file(folder / "model.safetensors").values())
    assert count_weights(folder) == counted
    (tmp_path / "model.safetensors").write_bytes(b"broken")
    with refused(ConfigError, "model.safetensors", "cannot be read", lines=None):
        count_weights(tmp_path)
