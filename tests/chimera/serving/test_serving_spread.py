"""A server whose models decode in several processes: it answers as one process does, and is whole or ends."""

import asyncio
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import httpx
import psutil
import pytest
from embedded_kit import embedded
from message_kit import refused
from stream_kit import added_up, as_added_up, events

from agents.visit.prompting import schema_format
from chimera.config.sections.models import ModelConfig, ServingConfig
from chimera.core.errors import ConfigError, ModelError, RunError
from chimera.serving.devices import decoding_processes
from chimera.serving.embedded.checkpoint import count_weights
from chimera.serving.embedded.protocol import parse_request
from chimera.serving.process import serve

pytestmark = pytest.mark.whole

RUBRIC = ModelConfig(kind="rubric")
LONG = schema_format("Long", {"type": "string", "minLength": 1500})
GONE_S = 20.0


def models(folder):
    own = ModelConfig(path=str(folder), max_tokens=30)
    return {"junior": own, "senior": own, "judge": RUBRIC}


@contextmanager
def spread(serving_model, log_file):
    """A server with two decoding processes."""
    config = ServingConfig(slots=4, processes=2)
    with serve(models(serving_model(seed=0)), config, {}, log_file=log_file) as servers:
        yield servers


@pytest.fixture(scope="module")
def server(serving_model, tmp_path_factory):
    """The server of all tests that leave it running; each asks about tasks of its own numbers."""
    with spread(serving_model, tmp_path_factory.mktemp("spread") / "log") as servers:
        yield servers


@pytest.fixture
def running(server, serving_model):
    """The server, which has its first weights again after the test."""
    first = server.versions()
    yield server
    for key, version in server.versions().items():
        if version != first[key]:
            server.load_weights(key, serving_model(seed=0), version=first[key])


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


def client(servers):
    endpoint = servers.endpoints["junior"]
    headers = {"Authorization": f"Bearer {endpoint.api_key}"}
    return httpx.Client(base_url=endpoint.base_url.removesuffix("/v1"), headers=headers, timeout=None)


def post(servers, request):
    with client(servers) as asking:
        return asking.post("/v1/chat/completions", json=request)


def get(servers, path):
    with client(servers) as asking:
        return asking.get(path).json()


def ask(servers, requests):
    """The answers to requests that are sent at once."""
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda request: post(servers, request), requests))
    assert {answer.status_code for answer in answers} == {200}, [answer.text for answer in answers]
    return [answer.json() for answer in answers]


def counters(servers):
    return get(servers, "/health")["counters"]


def ids(answer):
    return [choice["token_ids"] for choice in answer["choices"]]


def exact(choices):
    """What does not depend on the prompts that a process has cached: they may change the last bits of log-probs."""
    return [{key: choice[key] for key in ("content", "calls", "finish", "token_ids")} for choice in choices]


def log_probs(choices):
    return [entry["logprob"] for choice in choices for entry in choice["logprobs"]]


def test_streams_of_the_decoding_processes_add_up_to_their_answers(running):
    before = counters(running)
    requests = [body(number, n=1 + number % 2, logprobs=True) for number in range(80, 86)]
    streamed = [added_up(events(post(running, {**request, "stream": True}))) for request in requests]
    whole = [as_added_up(post(running, request).json()) for request in requests]
    kept = [added_up(events(post(running, {**request, "stream": True}))) for request in requests]
    assert kept == whole
    assert [exact(choices) for choices in streamed] == [exact(choices) for choices in whole]
    for choices, same in zip(streamed, whole, strict=True):
        assert log_probs(choices) == pytest.approx(log_probs(same), abs=1e-4)
    assert counters(running)["reused_answers"] - before["reused_answers"] == len(requests)


def test_two_processes_share_the_work_and_answer_as_one_does(running, serving_model):
    requests = [body(number, n=1 + number % 3, logprobs=True, top_logprobs=2) for number in range(100, 116)]
    counted, before = counters(running), [sum(one.cpu_times()[:2]) for one in decoders(running)]
    shared = ask(running, requests)
    spent = [sum(one.cpu_times()[:2]) - start for one, start in zip(decoders(running), before, strict=True)]
    assert len(spent) == 2
    assert min(spent) > 0

    async def alone(service):
        return [await service.complete(parse_request(request)) for request in requests]

    with embedded(models(serving_model(seed=0)), slots=4) as service:
        expected = asyncio.run(alone(service))
    assert [ids(answer) for answer in shared] == [ids(answer) for answer in expected]
    own = [answer["choices"][0]["logprobs"]["content"][0]["logprob"] for answer in expected]
    assert [answer["choices"][0]["logprobs"]["content"][0]["logprob"] for answer in shared] == pytest.approx(own)
    assert [answer["weights_version"] for answer in shared] == [answer["weights_version"] for answer in expected]
    assert counters(running)["answers"] - counted["answers"] == sum(request["n"] for request in requests)


def test_the_turns_of_a_conversation_find_its_beginning_in_a_cache(running):
    first = ask(running, [body(number) for number in range(20, 24)])
    turns = [[("assistant", one["choices"][0]["message"]["content"] or "."), ("user", "and?")] for one in first]
    second = ask(running, [body(number, turn) for number, turn in enumerate(turns, 20)])
    for before, after in zip(first, second, strict=True):
        assert after["usage"]["prompt_tokens_details"]["cached_tokens"] >= before["usage"]["prompt_tokens"] - 8


def test_an_equal_request_is_decoded_once_until_the_weights_change(running, serving_model):
    request, before = body(30), counters(running)
    first, second = post(running, request).json(), post(running, request).json()
    assert ids(first) == ids(second)
    assert first["id"] != second["id"]
    after = counters(running)
    assert [after[name] - before[name] for name in ("answers", "reused_answers")] == [1, 1]
    running.load_weights("junior", serving_model(seed=1))
    assert ids(post(running, request).json()) != ids(first)
    assert counters(running)["reused_answers"] == after["reused_answers"]


def test_new_weights_are_live_in_both_processes_and_of_their_slot_alone(running, serving_model):
    before = running.versions()
    version = running.load_weights("junior", serving_model(seed=1))
    answers = ask(running, [body(number) for number in range(40, 48)])
    assert {answer["weights_version"] for answer in answers} == {version}
    assert running.versions() == {**before, "junior": version}
    described = get(running, "/v1/models")["data"]
    assert {one["id"]: one["folder"] for one in described if one["id"] != "judge"} == {
        "junior": str(serving_model(seed=1)),
        "senior": str(serving_model(seed=0)),
    }


def test_weights_that_do_not_fit_change_nothing(running, serving_model, tmp_path):
    numbered = running.load_weights("junior", serving_model(seed=0))
    before, answer = running.versions(), post(running, body(50, seed=None, temperature=0)).json()
    (tmp_path / "none").mkdir()
    with refused(ModelError, "/admin/weights", "'junior'", "config.json"):
        running.load_weights("junior", tmp_path / "none")
    with refused(ModelError, "/admin/weights", "'judge'", lines=None):
        running.load_weights("judge", serving_model(seed=1))
    assert running.versions() == before
    assert ids(post(running, body(50, seed=None, temperature=0)).json()) == ids(answer)
    number = int(numbered.removeprefix("junior@"))
    assert running.load_weights("junior", serving_model(seed=1)) == f"junior@{number + 1}"


def test_a_candidate_is_served_beside_the_weights_until_it_is_removed(running, serving_model):
    name = running.add_candidate("junior", serving_model(seed=1), "other")
    try:
        answers = ask(running, [body(number, model=model) for number in range(60, 64) for model in ("junior", name)])
    finally:
        running.remove_candidate(name)
    assert [answer["weights_version"] == "other" for answer in answers] == [False, True] * 4
    refused = post(running, body(60, model=name))
    assert refused.status_code == 404
    assert refused.json()["error"]["code"] == "model_not_found"
    with pytest.raises(ModelError, match="no candidate"):
        running.remove_candidate(name)


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_that_a_decoding_process_refuses_is_an_http_error(running, stream):
    long = post(running, body(70, turns=[("user", "word " * 4000)], stream=stream))
    many = {"type": "object", "properties": {f"p{number}": {"type": "integer"} for number in range(2000)}}
    large = post(running, body(70, response_format=schema_format("Many", many), stream=stream))
    unknown = post(running, body(70, model="nobody", stream=stream))
    answers = (long, large, unknown)
    assert [answer.status_code for answer in answers] == [400, 400, 404]
    assert {answer.json()["error"]["type"] for answer in answers} == {"invalid_request_error"}
    assert long.json()["error"]["code"] == "context_length_exceeded"
    assert "['judge', 'junior', 'senior']" in unknown.json()["error"]["message"]


def test_a_stream_that_is_cut_frees_its_slots_in_the_decoding_process(running):
    """Each process has two slots. If the stream kept both, the next request of its conversation would wait for it."""
    endless, before = body(90, n=2, max_tokens=1500, response_format=LONG, stream=True), counters(running)
    with client(running) as asking, asking.stream("POST", "/v1/chat/completions", json=endless) as stream:
        next(stream.iter_lines())
    assert post(running, body(90, max_tokens=1)).status_code == 200
    assert counters(running)["answers"] - before["answers"] == 1


def test_the_decoding_processes_end_with_the_server(serving_model, tmp_path):
    with spread(serving_model, tmp_path / "log") as running:
        front, others = psutil.Process(running.pid), decoders(running)
        front.kill()
        _, alive = psutil.wait_procs(others, timeout=GONE_S)
    assert not alive


def test_a_decoding_process_that_is_killed_ends_the_server_with_its_name(server):
    """The last of the tests that share the server."""
    front, others = psutil.Process(server.pid), decoders(server)
    os.kill(others[0].pid, signal.SIGKILL)
    gone, alive = psutil.wait_procs([front, *others], timeout=GONE_S)
    assert not alive
    assert len(gone) == 3
    with refused(RunError, "decoding process", "SIGKILL", lines=None):
        server.check()


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
    assert decoding_processes(ServingConfig(**settings), [parameters], cores, 32 * 10**9) == processes


@pytest.mark.parametrize(("parameters", "processes"), [([40 * 10**6] * 2, 2), ([40 * 10**6, 70 * 10**6], 1)])
def test_one_process_decodes_where_a_gpu_does(parameters, processes, monkeypatch):
    monkeypatch.setattr("chimera.serving.devices.gpus", lambda: ["H200"])
    assert decoding_processes(ServingConfig(), parameters, 8, 32 * 10**9) == processes


def test_weights_are_counted_and_a_broken_file_is_named(serving_model, tmp_path):
    from safetensors.torch import load_file

    folder = serving_model(seed=0)
    counted = sum(tensor.numel() for tensor in load_file(folder / "model.safetensors").values())
    assert count_weights(folder) == counted
    (tmp_path / "model.safetensors").write_bytes(b"broken")
    with refused(ConfigError, "model.safetensors", "cannot be read", lines=None):
        count_weights(tmp_path)
