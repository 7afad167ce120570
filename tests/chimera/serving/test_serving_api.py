"""The chat API over the application itself (no sockets): answers, errors, the list of models, rubrics."""

import asyncio
import json

import pytest
from embedded_kit import KEY, client_of, embedded
from message_kit import PROTOCOL
from openai.types.chat import ChatCompletion
from stream_kit import TOOL

from agents.roles import ROLES
from agents.visit.prompting import opening, response_format, schema_format
from chimera.config.sections.models import ModelConfig

CONTEXT = 1200
QUESTION = [{"role": "user", "content": "the rate?"}]
LONG = schema_format("Long", {"type": "string", "minLength": 400, "maxLength": 500})


@pytest.fixture(scope="module")
def service(serving_model):
    one, two = (ModelConfig(path=str(serving_model(seed=seed))) for seed in (0, 1))
    models = {"junior": one, "supervisor": one, "senior": one, "other": two, "board": ModelConfig(kind="rubric")}
    with embedded(models, slots=4, context_length=CONTEXT) as service:
        yield service


@pytest.fixture
async def client(service):
    async with client_of(service) as client:
        yield client


async def chat(client, **fields):
    body = {"model": "junior", "messages": QUESTION, "max_tokens": 20, "seed": 1} | fields
    response = await client.post("/v1/chat/completions", json=body)
    assert response.status_code == 200, response.text
    ChatCompletion.model_validate(response.json(), strict=False)
    return response.json()


def tokens_of(answer):
    return [choice["token_ids"] for choice in answer["choices"]]


async def test_an_answer_has_openais_form_and_vllms_token_ids(client):
    answer = await chat(client, return_token_ids=True)
    assert answer["object"] == "chat.completion"
    assert answer["model"] == "junior"
    usage, choice = answer["usage"], answer["choices"][0]
    assert usage["prompt_tokens"] == len(answer["prompt_token_ids"])
    assert usage["completion_tokens"] == len(choice["token_ids"])
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert answer["weights_version"] == answer["system_fingerprint"]
    plain = await chat(client)
    assert "prompt_token_ids" not in plain
    assert "token_ids" not in plain["choices"][0]
    assert plain["id"] != answer["id"]


async def test_all_n_samples_come_and_are_reproducible(client):
    first = await chat(client, n=6, return_token_ids=True)
    assert [choice["index"] for choice in first["choices"]] == list(range(6))
    assert len({tuple(tokens) for tokens in tokens_of(first)}) > 1
    assert first["usage"]["completion_tokens"] == sum(map(len, tokens_of(first)))
    assert tokens_of(await chat(client, n=6, return_token_ids=True)) == tokens_of(first)
    assert tokens_of(await chat(client, n=2, return_token_ids=True)) == tokens_of(first)[:2]
    assert tokens_of(await chat(client, n=6, seed=2, return_token_ids=True)) != tokens_of(first)
    unseeded = [await chat(client, seed=None, return_token_ids=True) for _ in range(4)]
    assert len({tuple(tokens_of(answer)[0]) for answer in unseeded}) > 1


async def test_temperature_zero_tiny_ones_and_tiny_top_p_are_greedy(client):
    for fields in ({"temperature": 1e-39}, {"top_p": 1e-6}, {"top_p": 1e-300}):
        greedy = await chat(client, temperature=0, return_token_ids=True)
        narrow = await chat(client, return_token_ids=True, seed=9, **fields)
        hot = await chat(client, temperature=1.5, return_token_ids=True, seed=9)
        assert tokens_of(greedy) == tokens_of(narrow) != tokens_of(hot)


async def test_the_limit_ends_an_answer(client):
    answer = await chat(client, max_tokens=3, response_format=LONG, return_token_ids=True)
    assert answer["choices"][0]["finish_reason"] == "length"
    assert len(tokens_of(answer)[0]) == 3
    both = await chat(client, max_tokens=7, max_completion_tokens=2, response_format=LONG)
    assert both["usage"]["completion_tokens"] == 2


async def test_a_stop_string_ends_an_answer_and_is_left_out(client):
    free = await chat(client, temperature=0, response_format=LONG, max_tokens=40, return_token_ids=True)
    text = free["choices"][0]["message"]["content"]
    stop = text[5:8]
    answer = await chat(
        client, temperature=0, response_format=LONG, max_tokens=40, stop=["never in it", stop], return_token_ids=True
    )
    choice = answer["choices"][0]
    assert choice["finish_reason"] == "stop"
    assert choice["message"]["content"] == text[: text.index(stop)]
    assert choice["token_ids"] == tokens_of(free)[0][: len(choice["token_ids"])]
    assert len(choice["token_ids"]) < 40


async def test_log_probs_of_model_and_of_the_sampled_distribution(client):
    answer = await chat(
        client, logprobs=True, top_logprobs=2, return_token_ids=True, response_format=LONG, temperature=0.5
    )
    choice = answer["choices"][0]
    content, sampled = choice["logprobs"]["content"], choice["sampled_logprobs"]
    assert len(content) == len(sampled) == len(choice["token_ids"])
    assert bytes(byte for one in content for byte in one["bytes"]).decode() == choice["message"]["content"]
    for one in content:
        first, second = one["top_logprobs"]
        assert first["logprob"] >= second["logprob"]
        assert first["logprob"] >= one["logprob"]
    assert sampled != pytest.approx([one["logprob"] for one in content], abs=1e-3)
    called = await chat(client, logprobs=True, tools=[TOOL], tool_choice="required", max_tokens=1)
    (only,) = called["choices"][0]["logprobs"]["content"]
    assert only["token"] == "<tool_call>"
    assert only["logprob"] < -0.1
    assert called["choices"][0]["sampled_logprobs"] == [pytest.approx(0, abs=1e-6)]


async def test_an_answer_ends_with_the_end_token_but_its_text_does_not(client):
    form = schema_format("Tiny", {"enum": ["yes"]})
    choice = (await chat(client, response_format=form, return_token_ids=True))["choices"][0]
    assert choice["message"]["content"] == '"yes"'
    assert choice["finish_reason"] == "stop"
    assert choice["token_ids"][-1] == 1


async def test_many_requests_at_once_each_get_their_own_answer(client):
    async def one(index):
        messages = [{"role": "user", "content": f"{index}" * (index + 1)}]
        return await chat(client, messages=messages, seed=index, n=1 + index % 3, top_k=20 ** (1 + 19 * (index % 2)))

    alone = [await one(index) for index in range(12)]
    crowd = await asyncio.gather(*[one(index) for index in range(12)])
    assert [[c["message"] for c in a["choices"]] for a in crowd] == [
        [c["message"] for c in a["choices"]] for a in alone
    ]


@pytest.mark.parametrize("stream", [False, True])
async def test_too_long_a_prompt_is_refused_with_both_numbers(client, stream):
    asked = {"model": "junior", "messages": [{"role": "user", "content": "x1" * CONTEXT}], "stream": stream}
    response = await client.post("/v1/chat/completions", json=asked)
    error = response.json()["error"]
    assert response.status_code == 400
    assert error["code"] == "context_length_exceeded"
    assert f"context length is {CONTEXT}" in error["message"]
    assert "the prompt has 24" in error["message"]


async def test_the_longest_prompt_that_fits_gets_exactly_one_token(client):
    base = (await chat(client, messages=[{"role": "user", "content": ""}]))["usage"]["prompt_tokens"]
    longest = [{"role": "user", "content": "\x00" * (CONTEXT - 1 - base)}]
    answer = await chat(client, messages=longest, max_tokens=50)
    assert answer["usage"]["total_tokens"] == CONTEXT
    longer = [{"role": "user", "content": "\x00" * (CONTEXT - base)}]
    response = await client.post("/v1/chat/completions", json={"model": "junior", "messages": longer})
    assert response.status_code == 400


@pytest.mark.parametrize("header", [{}, {"Authorization": "Bearer wrong"}, {"Authorization": f"Basic {KEY}"}])
async def test_without_the_key_nothing_answers(service, header):
    async with client_of(service, header) as client:
        for method, path in (
            ("POST", "/v1/chat/completions"),
            ("GET", "/v1/models"),
            ("POST", "/admin/weights"),
            ("GET", "/health"),
        ):
            response = await client.request(method, path, json={})
            assert response.status_code == 401
            assert response.json()["error"]["code"] == "invalid_api_key"
            assert KEY not in response.text


@pytest.mark.parametrize(
    ("path", "content", "status", "message"),
    [
        ("/v1/chat/completions", {"model": "nobody", "messages": QUESTION}, 404, "unknown model 'nobody'"),
        ("/v1/chat/completions", {"model": "nobody", "messages": QUESTION, "stream": True}, 404, "'nobody'"),
        ("/v1/completions", {}, 404, "POST /v1/completions"),
        ("/admin/weights", {"model": "junior"}, 400, "the body must be"),
        ("/admin/weights", {"model": "board", "folder": "/x"}, 404, "no embedded model 'board'"),
        ("/admin/weights", {"model": "junior", "folder": "/nowhere"}, 400, "stay"),
    ],
)
async def test_errors_come_in_openais_form(client, path, content, status, message):
    response = await client.post(path, json=content)
    assert response.status_code == status
    assert message in response.json()["error"]["message"]


def asking(**fields):
    return json.dumps({"model": "junior", "messages": QUESTION, "max_tokens": 2, **fields}).encode()


def saying(content, **fields):
    return asking(messages=[{"role": "user", "content": content, **fields}])


def offering(name, **fields):
    return {"type": "function", "function": {"name": name, **fields}}


def nested(depth):
    schema = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
    return asking(response_format=schema_format("Nested", schema))


OPTIONAL = {"type": "object", "properties": {f"p{number}": {"type": "integer"} for number in range(2000)}}
LOST = {"type": "string", "not": {"const": "x"}, "$ref": "#/nowhere"}
TOOL_MESSAGE = {"role": "tool", "content": "4"}
ALLOWED = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}}
IMAGE = {"type": "image_url", "image_url": {"url": "data:"}}
WRONG = {
    "half-json": (b"{", ..., ("not valid JSON",)),
    "list": (b"[]", ..., ("must be a JSON object, not list",)),
    "half-a-character": (saying("\ud83d"), None, ()),
    "half-a-character-in-a-name": (asking(tools=[offering("\ud83d")]), None, ()),
    "nested-lists": (b'{"model": ' + b"[" * 100_000, None, ()),
    "no-number": (asking(temperature=float("nan")), None, ()),
    "nested-objects-100": (nested(100), ..., ()),
    "nested-objects-400": (nested(400), None, ()),
    "optional-properties": (asking(response_format=schema_format("Many", OPTIONAL)), ..., ()),
    "optional-arguments": (asking(tools=[offering("f", parameters=OPTIONAL)], tool_choice="required"), ..., ()),
    "image": (saying([{"type": "text", "text": "?"}, IMAGE]), "messages.0.content.1.type", ("'text'", "'image_url'")),
    "number-as-content": (saying(5), "messages.0.content", ("5",)),
    "five-stops": (asking(stop=list("abcde")), "stop", ("at most 4", "5")),
    "number-in-stops": (asking(stop=["a", 5]), "stop.1", ("5",)),
    "allowed-tools": (asking(tools=[TOOL], tool_choice=ALLOWED), "tool_choice.type", ("'function'", "'allowed_tools'")),
    "unknown-choice": (asking(tools=[TOOL], tool_choice="any"), "tool_choice", ("'required'", "'any'")),
    "choice-without-name": (asking(tools=[TOOL], tool_choice={"type": "function"}), "tool_choice.function", ()),
    "choice-of-no-tools": (asking(tools=[], tool_choice="required"), None, ("tool_choice needs tools",)),
    "choice-without-tools": (asking(tool_choice="required"), None, ("tool_choice needs tools",)),
    "text-as-temperature": (asking(temperature="0.5"), "temperature", ("'0.5'",)),
    "text-as-limit": (asking(max_tokens="7"), "max_tokens", ("'7'",)),
    "truth-as-limit": (asking(max_tokens=True), "max_tokens", ("True",)),
    "text-as-truth": (asking(stream="true"), "stream", ("'true'",)),
    "part-of-a-number": (asking(n=1.5), "n", ()),
    "tool-message-without-id": (asking(messages=[*QUESTION, TOOL_MESSAGE]), None, ("messages.1", "tool_call_id")),
    "stream-options": (asking(stream_options={"include_usage": True}), None, ("stream_options", "stream: true")),
    "penalty": (asking(frequency_penalty=0.5), "frequency_penalty", ("frequency_penalty=0.5 is not supported",)),
    "logit-bias": (asking(logit_bias={"5": 1}), ..., ("logit_bias",)),
    "function-call": (asking(function_call={"name": "f"}), "function_call", ("'f'",)),
    "old-call": (saying(None, function_call={"name": "f"}), "messages.0.function_call", ("None",)),
    "top-k": (asking(top_k=-2), ..., ("top_k",)),
    "min-p": (asking(min_p=1.5), ..., ("min_p",)),
    "repetition": (asking(repetition_penalty=1e-39), ..., ("repetition_penalty",)),
    "unknown-parameter": (asking(guided_regex="a*"), ..., ("unknown parameter 'guided_regex'",)),
    "form": (asking(response_format={"type": "grammar"}), ..., ("response_format.type",)),
    "form-without-schema": (asking(response_format={"type": "json_schema"}), ..., ("needs json_schema",)),
    "form-of-a-name": (
        asking(response_format={"type": "json_schema", "json_schema": {"name": "x"}}),
        ...,
        ("response_format.json_schema.schema",),
    ),
    "schema-that-leads-nowhere": (asking(response_format=schema_format("Bad", LOST)), ..., ("#/nowhere",)),
    "temperature": (asking(temperature=-1), ..., ("temperature",)),
    "top-p": (asking(top_p=0), ..., ("top_p",)),
    "no-answer": (asking(n=0), ..., ("n: ",)),
    "no-token": (asking(max_tokens=0), ..., ("max_tokens",)),
    "empty-stop": (asking(stop=""), ..., ("stop: an empty string",)),
    "top-without-log-probs": (asking(top_logprobs=3), ..., ("top_logprobs needs logprobs",)),
    "many-log-probs": (asking(logprobs=True, top_logprobs=21), ..., ("top_logprobs",)),
    "choice-of-another": (asking(tools=[TOOL], tool_choice=offering("other")), ..., ("names 'other'",)),
    "equal-names": (asking(tools=[TOOL, TOOL]), ..., ("names must be unique",)),
    "search-tool": (asking(tools=[{"type": "web_search"}]), ..., ("tools.0",)),
    "awkward-name": (asking(tools=[offering('f","x":"')]), ..., ("tools.0.function.name",)),
    "no-messages": (asking(messages=[]), ..., ("messages",)),
    "role": (asking(messages=[{"role": "robot", "content": "q"}]), ..., ("messages.0.role",)),
    "no-model": (asking(model=None), ..., ("model",)),
    "rubric-without-a-form": (asking(model="board"), ..., ("send one",)),
    "form-that-no-rubric-knows": (
        asking(model="board", response_format=schema_format("Unknown", {"type": "object"})),
        ...,
        ("'Unknown'",),
    ),
    "nothing-to-grade": (
        asking(model="board", response_format=response_format(ROLES["SafetyOfficer"])),
        ...,
        ("cannot grade",),
    ),
}
"""By case: a request's body, the parameter that the error names (...: any), and words of its sentence."""


@pytest.mark.parametrize("case", WRONG)
@pytest.mark.parametrize("endpoint", ["plain", "stream"])
async def test_a_request_that_cannot_be_served_is_refused_with_its_place(client, case, endpoint):
    content, param, words = WRONG[case]
    if endpoint == "stream" and b'"stream' not in content:
        content = content.replace(b"{", b'{"stream": true, ', 1)
    response = await client.post("/v1/chat/completions", content=content)
    error = response.json()["error"]
    assert (response.status_code, error["type"]) == (400, "invalid_request_error")
    assert param is ... or error["param"] == param
    named = words if param in (None, ...) else (*words, param)
    assert [word for word in named if word not in error["message"]] == []
    assert len(error["message"]) < 400


@pytest.mark.parametrize(
    "fields",
    [
        {"reasoning_effort": "low", "verbosity": "high", "prompt_cache_key": "k", "prediction": {"type": "content"}},
        {"top_k": -1, "functions": None},
        {"frequency_penalty": 0, "presence_penalty": 0.0, "function_call": "none", "functions": [], "logit_bias": {}},
        {"store": False, "metadata": {"a": "b"}, "user": "u", "service_tier": "auto", "parallel_tool_calls": True},
        {"logprobs": False, "top_logprobs": 0, "modalities": ["text"], "tool_choice": "auto", "stream": False},
        {"audio": None, "stop": None, "stream_options": None, "temperature": 1, "top_p": 1},
    ],
)
async def test_what_changes_nothing_is_accepted(client, fields):
    assert (await chat(client, **fields))["choices"][0]["message"] == (await chat(client))["choices"][0]["message"]


async def test_a_failing_batch_is_an_error_of_its_requests_only(service, client, monkeypatch):
    engine = service._bindings["other"].lane.engine

    def fail(*_):
        raise RuntimeError("out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(engine, "forward", fail)
        asked = {"model": "other", "messages": QUESTION, "response_format": LONG}
        broken, fine = await asyncio.gather(client.post("/v1/chat/completions", json=asked), chat(client))
    assert broken.status_code == 500
    assert "out of memory" in broken.json()["error"]["message"]
    assert fine["choices"]
    assert (await chat(client, model="other"))["choices"]


async def test_models_are_listed_with_their_weights(client):
    listed = {entry["id"]: entry for entry in (await client.get("/v1/models")).json()["data"]}
    assert set(listed) == {"junior", "supervisor", "senior", "other", "board"}
    assert listed["junior"]["max_model_len"] == CONTEXT
    assert listed["board"]["kind"] == "rubric"
    health = (await client.get("/health")).json()
    assert health["models"]["junior"] == listed["junior"]["weights_version"]
    assert health["counters"]["answers"] > 0
    assert [(await client.get(f"/v1/models/{name}")).json() for name in listed] == list(listed.values())
    missing = await client.get("/v1/models/owner/name")
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "model_not_found")


async def test_rubric_models_answer_in_the_same_form(client):
    from chimera.rubric.grader import grade

    payload = {
        "protocol": PROTOCOL,
        "hypothesis": {"evidence": ["It fell."], "comparison": "lower", "claim": "It works", "answer": "yes"},
        "peer_review": {"issues": [], "severity": "NONE", "verdict": "APPROVE"},
    }
    role = ROLES["SafetyOfficer"]
    messages = opening(role, "Does it work?", **payload)
    answer = await chat(
        client, model="board", messages=messages, response_format=response_format(role), return_token_ids=True
    )
    assert json.loads(answer["choices"][0]["message"]["content"]) == grade(
        "SafetyReview", json.loads(messages[1]["content"])
    )
    assert answer["weights_version"] == "rubric"
    assert answer["prompt_token_ids"] == []


@pytest.mark.parametrize("unit", ["the rate ", "a", "<|im_end|>", "\u1100\u1161\u11a8", "e\u0301"])
async def test_a_prompt_that_cannot_fit_is_refused_before_it_is_tokenized(client, service, monkeypatch, unit):
    """Tokenizing a million characters takes the server seconds, in which nobody else is answered."""
    chat = service._bindings["junior"].text.chat
    monkeypatch.setattr(type(chat), "_tokens", lambda *_: pytest.fail("it was tokenized"))
    response = await client.post("/v1/chat/completions", content=saying(unit * (1_000_000 // len(unit))))
    error = response.json()["error"]
    assert (response.status_code, error["code"], error["param"]) == (400, "context_length_exceeded", "messages")
    assert "the prompt has at least " in error["message"]
    assert f"This model's maximum context length is {CONTEXT} tokens" in error["message"]
