"""Streamed answers: chunks add up to the unstreamed answer, errors before them are plain, and a cut frees a slot."""

import asyncio
import json

import pytest
from embedded_kit import AUTHORIZATION, KEY, client_of, embedded
from hypothesis import given
from hypothesis import strategies as st
from openai.types.chat import ChatCompletionChunk
from stream_kit import TOOL, added_up, as_added_up, events

from agents.visit.prompting import schema_format
from chimera.serving.embedded.app import create_app
from chimera.serving.embedded.dialogue.manners import OPEN
from chimera.serving.embedded.protocol import parse_request
from chimera.serving.embedded.streams.chunks import Chunks

LONG = schema_format("Long", {"type": "string", "minLength": 400, "maxLength": 500})


@pytest.fixture(scope="module")
def service(serving_model):
    with embedded(serving_model(seed=0), slots=2, context_length=600, answers=8) as service:
        yield service


@pytest.fixture
async def client(service):
    async with client_of(service) as client:
        yield client


def body(**fields):
    messages = [{"role": "user", "content": "the rate?"}]
    return {"model": "junior", "messages": messages, "max_tokens": 24, **fields}


CASES = {
    "free": {},
    "several": {"n": 3, "temperature": 1.5},
    "schema": {"response_format": LONG},
    "cut-by-a-stop": {"response_format": LONG, "stop": ["a", "never in it"]},
    "forced-calls": {"tools": [TOOL], "tool_choice": "required", "max_tokens": 120},
    "calls-or-text": {"tools": [TOOL], "n": 4},
    "tools-or-schema": {"tools": [TOOL], "response_format": LONG, "n": 2},
    "no-calls": {"tools": [TOOL], "tool_choice": "none"},
    "log-probs": {"logprobs": True, "top_logprobs": 2, "return_token_ids": True, "n": 2, "response_format": LONG},
    "one-token": {"max_tokens": 1},
}


@pytest.mark.parametrize("case", CASES)
async def test_a_stream_adds_up_to_the_unstreamed_answer(client, case):
    for seed in range(4):
        request = body(seed=seed, **CASES[case])
        # The first of a pair is decoded, the second is an answer that is kept: both orders are tried.
        first, second = ({**request, "stream": seed % 2 == 0}, {**request, "stream": seed % 2 == 1})
        responses = [await client.post("/v1/chat/completions", json=fields) for fields in (first, second)]
        streamed, whole = responses if first["stream"] else reversed(responses)
        chunks = events(streamed)
        for chunk in chunks:
            ChatCompletionChunk.model_validate(chunk, strict=False)
        assert added_up(chunks) == as_added_up(whole.json())
        assert len({chunk["id"] for chunk in chunks}) == 1
        assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"
        assert all("usage" not in chunk for chunk in chunks)
        assert chunks[0]["weights_version"] == whole.json()["weights_version"]


async def test_content_comes_while_it_is_written(client):
    chunks = events(await client.post("/v1/chat/completions", json=body(response_format=LONG, stream=True)))
    assert sum("content" in chunk["choices"][0]["delta"] for chunk in chunks) > 5


async def test_the_last_chunk_has_the_usage_if_it_is_asked_for(client):
    request = body(seed=1, n=2)
    options = {"include_usage": True}
    streamed = await client.post("/v1/chat/completions", json={**request, "stream": True, "stream_options": options})
    *chunks, last = events(streamed)
    assert [chunk["usage"] for chunk in chunks] == [None] * len(chunks)
    whole = (await client.post("/v1/chat/completions", json=request)).json()
    assert (last["choices"], last["usage"]) == ([], whole["usage"])


async def test_an_error_under_way_is_the_last_event(service, client, monkeypatch):
    engine = service._bindings["junior"].lane.engine
    forward, calls = engine.forward, iter(range(100))

    def fail(*arguments):
        if next(calls) == 5:
            raise RuntimeError("out of memory")
        return forward(*arguments)

    monkeypatch.setattr(engine, "forward", fail)
    response = await client.post("/v1/chat/completions", json=body(response_format=LONG, stream=True, temperature=2))
    *chunks, last, end = response.text.split("\n\n")
    assert (response.status_code, end) == (200, "")
    assert len(chunks) > 2
    assert "out of memory" in json.loads(last.removeprefix("data: "))["error"]["message"]


async def test_a_caller_that_leaves_ends_its_streams_and_frees_their_slots(service):
    """Straight to the application, which a server tells of the closed connection. Both slots are taken until then."""
    binding, before = service._bindings["junior"], service.counters()["answers"]
    started = asyncio.Event()
    endless = body(response_format=LONG, max_tokens=500, n=2, stream=True)
    sent = [{"type": "http.request", "body": json.dumps(endless).encode()}]

    async def receive():
        if sent:
            return sent.pop()
        await started.wait()
        return {"type": "http.disconnect"}

    async def send(message):
        if not started.is_set() and b"content" in message.get("body", b""):
            assert len(binding.running) == 2
            started.set()

    headers = [(b"authorization", AUTHORIZATION["Authorization"].encode()), (b"host", b"127.0.0.1")]
    scope = {"type": "http", "method": "POST", "path": "/v1/chat/completions", "headers": headers, "query_string": b""}
    await create_app(service, KEY)(scope, receive, send)
    assert not binding.running
    await service.complete(parse_request(body(max_tokens=2)))
    assert service.counters()["answers"] == before + 1


PIECES = ["yes", " ", "\n", "é", "\U0001f600", OPEN, OPEN[:4], "<", "</tool_call>", '{"name":"f","arguments":{"a":1}}']
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}


@given(st.lists(st.sampled_from(PIECES), max_size=8), st.booleans(), st.randoms(use_true_random=False))
def test_text_that_is_cut_anywhere_adds_up(pieces, offered, random):
    """Whether what follows the mark of a call is one, or is content, shows at the end."""
    text = "".join(pieces)
    called = offered and OPEN in text and random.random() < 0.5
    message = {"role": "assistant", "content": (text.partition(OPEN)[0].strip() or None) if called else text}
    message |= {"tool_calls": [CALL]} if called else {}
    whole = {"choices": [{"index": 0, "message": message, "finish_reason": "stop", "logprobs": None}]}
    head = dict.fromkeys(("id", "created", "model", "system_fingerprint", "weights_version"))
    maker = Chunks(head, mark=OPEN if offered else None, usage=False)
    data, sent = text.encode(), []
    while data and random.random() < 0.9:
        size = random.randint(1, 12)
        sent += maker.grown(0, data[:size], 1, {})
        data = data[size:]
    sent += maker.rest(whole)
    (choice,), (expected,) = added_up(sent), as_added_up(whole)
    assert {**choice, "content": choice["content"] or ""} == {**expected, "content": expected["content"] or ""}
