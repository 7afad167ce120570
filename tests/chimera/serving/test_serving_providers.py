"""Models of other providers through LangChain, and fields that servers do not take."""

import asyncio
import json

import httpx
import pytest
import respx
from message_kit import refused
from provider_kit import serve

from agents.roles import ROLES
from agents.visit.quoting import answer_format
from agents.visit.react import echo
from chimera.config.tree import dump_config
from chimera.core.errors import ConfigError, ModelError, UnreachableError
from chimera.serving.client import Endpoint, HttpModel
from chimera.serving.process import check_models, user_endpoint
from training.configuration import load_config

KEY = "sk-ant-a-users-own-key-4711"
MESSAGES = [{"role": "system", "content": "You are the Geneticist."}, {"role": "user", "content": '{"goal":"why"}'}]
SEARCH = {
    "type": "function",
    "function": {
        "name": "search",
        "description": "Search.",
        "parameters": {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]},
    },
}
PROVIDERS = ("anthropic", "ollama")


def model_of(provider, url, **options):
    fields = {"structured": "final", "timeout_s": 600.0, **options}
    return HttpModel({"junior": Endpoint(url, "m1", KEY, provider=provider, **fields)}, max_retries=0)


@pytest.mark.parametrize("provider", PROVIDERS)
async def test_a_tool_call_its_result_and_the_answer_go_there_and_back(provider):
    def play(request):
        return [("search", {"query": "zinc"})] if request["messages"][-1]["role"] == "user" else "found it"

    with serve(play) as server:
        model = model_of(provider, server.url, temperature=0.5, max_tokens=55)
        first = await model.complete("junior", MESSAGES, tools=[SEARCH], seed=7)
        (call,) = first.tool_calls
        assert (call.name, call.arguments, first.finish_reason) == ("search", {"query": "zinc"}, "tool_calls")
        assert (first.prompt_tokens, first.completion_tokens) == (11, 7)
        result = {"role": "tool", "tool_call_id": call.id, "content": '{"results":[]}'}
        last = await model.complete("junior", [*MESSAGES, first.message, result], tools=[SEARCH], seed=7)
        assert (last.content, last.tool_calls, last.finish_reason) == ("found it", (), "stop")
        assert first.response_id != last.response_id
    sent = server.requests[0][2]
    limits = sent if provider == "anthropic" else sent["options"]
    assert limits["temperature"] == 0.5
    assert 55 in (limits.get("max_tokens"), limits.get("num_predict"))
    assert limits.get("seed") == (7 if provider == "ollama" else None)
    assert KEY in str(server.requests[0][1])


async def test_a_providers_thoughts_go_back_to_it_and_are_not_its_answer():
    thought = {"type": "thinking", "thinking": "Hm.", "signature": "SIG"}
    call = {"type": "tool_use", "id": "tu_1", "name": "search", "input": {"query": "zinc"}}
    texts = [{"type": "text", "text": "searching"}]
    usual = {"id": "m", "type": "message", "role": "assistant", "model": "m1", "stop_reason": "tool_use"}
    usual["usage"] = {"input_tokens": 1, "output_tokens": 1}
    with serve(lambda _request: (200, {**usual, "content": [thought, *texts, call]})) as server:
        model = model_of("anthropic", server.url)
        first = await model.complete("junior", MESSAGES, tools=[SEARCH])
        result = {"role": "tool", "tool_call_id": "tu_1", "content": "{}"}
        recorded = json.loads(json.dumps(echo(first)))
        await model.complete("junior", [*MESSAGES, recorded, result], tools=[SEARCH])
        other = HttpModel({"junior": Endpoint(server.url, "m2", KEY, provider="anthropic", timeout_s=600)})
        await other.complete("junior", [*MESSAGES, recorded, result], tools=[SEARCH])
    assert (first.content, first.tool_calls[0].arguments) == ("searching", {"query": "zinc"})
    back, elsewhere = (
        next(message["content"] for message in body["messages"] if message["role"] == "assistant")
        for _, _, body in server.requests[1:]
    )
    assert back == [thought, *texts, call]
    assert "Hm." not in json.dumps(elsewhere)


async def test_ollamas_thoughts_go_back_to_it():
    message = {"role": "assistant", "content": "", "thinking": "Hm."}
    message["tool_calls"] = [{"function": {"name": "search", "arguments": {"query": "zinc"}}}]
    ended = {"model": "m1", "done": True, "done_reason": "stop", "created_at": "2026-01-01T00:00:00Z"}
    with serve(lambda _request: (200, {**ended, "message": message})) as server:
        model = model_of("ollama", server.url, provider_options={"reasoning": True})
        first = await model.complete("junior", MESSAGES, tools=[SEARCH])
        result = {"role": "tool", "tool_call_id": first.tool_calls[0].id, "content": "{}"}
        await model.complete("junior", [*MESSAGES, first.message, result], tools=[SEARCH])
    assert [sent.get("thinking") for sent in server.requests[1][2]["messages"]] == [None, None, "Hm.", None]


async def test_a_providers_refusal_is_told_in_its_own_words():
    usual = {"id": "m", "type": "message", "role": "assistant", "model": "m1", "stop_reason": "refusal"}
    usual["usage"] = {"input_tokens": 1, "output_tokens": 1}
    for content, words in (([], "refusal"), ([{"type": "text", "text": "I cannot."}], "I cannot.")):
        with serve(lambda _request, content=content: (200, {**usual, "content": content})) as server:
            answer = await model_of("anthropic", server.url).complete("junior", MESSAGES)
        assert words in answer.refusal


@pytest.mark.parametrize("provider", PROVIDERS)
async def test_a_busy_provider_is_asked_again(provider):
    answers = iter([429, 503])

    def play(_request):
        status = next(answers, None)
        return "yes" if status is None else (status, {"type": "error", "error": {"message": "busy"}})

    with serve(play) as server:
        endpoint = Endpoint(server.url, "m1", KEY, provider=provider, timeout_s=600.0)
        answer = await HttpModel({"junior": endpoint}, max_retries=1, pause_s=60).complete("junior", MESSAGES)
    assert (answer.content, len(server.requests)) == ("yes", 3)


@pytest.mark.parametrize("provider", PROVIDERS)
async def test_a_schema_makes_the_answer_json_where_no_tools_are_offered(provider):
    answer = {"evidence": [], "comparison": "none", "claim": "none", "answer": "maybe"}
    with serve(lambda _request: json.dumps(answer)) as server:
        form = answer_format(ROLES["Geneticist"], MESSAGES, "read")
        found = await model_of(provider, server.url).complete("junior", MESSAGES, response_format=form)
    assert json.loads(found.content) == answer
    assert (found.tool_calls, found.finish_reason) == ((), "stop" if provider == "ollama" else found.finish_reason)
    sent = json.dumps(server.requests[0][2])
    assert '"enum": ["yes", "no", "maybe"]' in sent


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize(("status", "retriable"), [(400, False), (401, False), (429, True), (500, True), (529, True)])
async def test_a_providers_error_is_one_sentence_with_model_address_and_status(provider, status, retriable):
    body = {"type": "error", "error": {"type": "x", "message": "the model\nis out"}}
    body = body if provider == "anthropic" else {"error": "the model\nis out"}
    with serve(lambda _request: (status, body, ("retry-after", "7"))) as server:
        with pytest.raises(ModelError) as caught:
            await model_of(provider, server.url).complete("junior", MESSAGES)
        assert str(caught.value).startswith(f"model 'junior' (m1 of {provider} at {server.url}) answered {status}: ")
    assert "the model is out" in str(caught.value)
    assert caught.value.retriable is retriable
    assert caught.value.wait_s == (
        7 if provider == "anthropic" and status != 400 else None
    )  # Ollama's client drops it.
    assert KEY not in str(caught.value)


@pytest.mark.parametrize("provider", [*PROVIDERS, "openai"])
async def test_a_provider_that_cannot_be_reached_says_so(provider):
    with serve(lambda _request: "x") as server:
        pass
    with refused(UnreachableError, "'junior'", "m1", "http://127.0.0.1", "is its address right"):
        await model_of(provider, server.url).complete("junior", MESSAGES)


@pytest.mark.parametrize("provider", PROVIDERS)
async def test_the_time_limit_holds(provider):
    import threading

    late = threading.Event()

    def play(_request):
        late.wait(600)
        return "x"

    with serve(play) as server:
        with refused(ModelError, "'junior'", "0.2 s") as caught:
            await model_of(provider, server.url, timeout_s=0.2).complete("junior", MESSAGES)
        late.set()
    assert caught.value.retriable


async def test_chat_openai_is_a_provider_like_others(scripted_openai):
    scripted_openai.hooks.clear()
    asked = [{"role": "system", "content": "You are the Judge."}, {"role": "user", "content": '{"goal":"why"}'}]
    model = model_of("openai", scripted_openai.url, max_tokens=55)
    found = await model.complete(
        "junior", asked, response_format=answer_format(ROLES["Supervisor"], asked, "read"), seed=3
    )
    assert json.loads(found.content)["novelty"] == 0.5
    sent = scripted_openai.requests[-1]
    assert (sent["seed"], sent["max_completion_tokens"], sent["response_format"]["type"]) == (3, 55, "json_schema")
    assert (found.prompt_tokens, found.completion_tokens, found.response_id[:9]) == (3, 2, "scripted-")


@respx.mock
@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (httpx.Response(200, content=b"x" * (33 * 2**20)), "sent more than 32 MiB"),
        (httpx.Response(302, headers={"location": "http://elsewhere.test"}), "answered 302 and points elsewhere"),
    ],
)
async def test_answers_through_chat_openai_are_bounded_and_redirections_not_followed(answer, said):
    respx.post("http://models.test/v1/chat/completions").mock(return_value=answer)
    elsewhere = respx.route(host="elsewhere.test").respond(200, json={})
    with refused(ModelError, said):
        await model_of("openai", "http://models.test/v1").complete("junior", MESSAGES)
    assert not elsewhere.called


def slots(**settings):
    return [f"models.junior.{key}={value}" for key, value in {"kind": "endpoint", "model": "m1", **settings}.items()]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"provider": "groq"}, "models.junior.provider=groq needs a package that is missing: "),
        ({"provider": "google_genai"}, "pip install 'chimera-lab[google]' -c constraints.txt"),
        ({"provider": "anthropic"}, "models.junior.provider=anthropic needs a key: name its environment variable"),
        ({"provider": "nonsense"}, "models.junior.provider=nonsense"),
        ({"provider": "azure_openai", "api_key_env": "TEST_KEY"}, "LangChain cannot make its model 'm1' of these"),
    ],
)
def test_a_provider_that_cannot_work_is_one_sentence_before_anything_starts(settings, said):
    config = load_config(None, slots(**settings))
    with refused(ConfigError, said) as caught:
        check_models({"junior": config.models["junior"]}, {"TEST_KEY": KEY})
    assert KEY not in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (slots(), "needs both base_url and model, or provider and model"),
        (slots(provider="anthropic", structured="always"), "a JSON schema or tools, not both"),
        (slots(provider="anthropic", reasoning_effort="low"), "models.junior.provider is 'anthropic'"),
        (slots(base_url="http://x/v1", provider_options="{a: 1}"), "models.junior.provider is null"),
        (["models.junior.reasoning_effort=low"], "has no effect because models.junior.kind is 'embedded'"),
    ],
)
def test_settings_of_providers_that_cannot_work_are_refused(settings, said):
    with refused(ConfigError, said):
        load_config(None, settings)


def test_a_slot_takes_neither_key_nor_address_of_another_provider():
    anthropic = slots(provider="anthropic", api_key_env="TEST_KEY", base_url="http://a.test", provider_options="{a: 1}")
    config = load_config(
        None, [*anthropic, "models.senior.provider=ollama", "models.refiner.base_url=http://b.test/v1"]
    )
    supervisor, senior, refiner = (config.models[name] for name in ("supervisor", "senior", "refiner"))
    shared = supervisor.provider, supervisor.api_key_env, supervisor.provider_options
    assert shared == ("anthropic", "TEST_KEY", {"a": 1})
    assert (senior.provider, senior.api_key_env, senior.base_url, senior.provider_options) == ("ollama", None, None, {})
    assert (refiner.provider, refiner.base_url) == (None, "http://b.test/v1")
    assert user_endpoint("models.supervisor", supervisor, {"TEST_KEY": KEY}).provider == "anthropic"


def test_a_configuration_with_providers_is_written_and_read_back(tmp_path):
    more = [
        "models.senior.provider=ollama",
        "models.refiner.base_url=http://b.test/v1",
        "models.refiner.extra_body={a: {b: 1}, seed: null}",
    ]
    config = load_config(None, [*slots(provider="anthropic", provider_options="{a: [1, x]}"), *more])
    (tmp_path / "again.yaml").write_text(dump_config(config))
    assert load_config(tmp_path / "again.yaml") == config
    assert config.models["refiner"].extra_body == {"a": {"b": 1}, "seed": None}


REFUSALS = {
    "openai": (
        {"message": "Unsupported parameter: 'seed' is not supported with this model.", "param": "seed", "code": "x"},
        "seed",
    ),
    "value": (
        {
            "message": "Unsupported value: 'temperature' does not support 0.5 with this model. Only the default is.",
            "param": "temperature",
            "code": "unsupported_value",
        },
        "temperature",
    ),
    "pydantic": ({"message": "[{'type': 'extra_forbidden', 'loc': ('body', 'top_k')}]", "param": None}, "top_k"),
    "old": ({"message": "Unrecognized request argument supplied: reasoning_effort"}, "reasoning_effort"),
    "both": ({"message": "`temperature` and `top_p` cannot both be specified for this model."}, "top_p"),
    "schema": ({"message": "response_format is not supported by this model"}, "response_format"),
    "deepseek": ({"message": "This response_format type is unavailable now"}, "response_format"),
    "groq": ({"message": "This model does not support response format `json_schema`."}, "response_format"),
    "openrouter": (
        {"message": "Provider returned error", "metadata": {"raw": "Unsupported parameter: 'temperature' is odd."}},
        "temperature",
    ),
}


def lean(server, told, **options):
    return HttpModel({"junior": Endpoint(f"{server.url}/v1", "m1", "key", **options)}, max_retries=0, tell=told.append)


@pytest.mark.parametrize("case", REFUSALS)
async def test_a_field_that_a_server_refused_is_left_out_from_then_on_and_told_once(case):
    error, field = REFUSALS[case]
    told = []
    options = {"temperature": 0.5, "reasoning_effort": "low", "extra_body": {"top_k": 20}}
    form = answer_format(ROLES["Geneticist"], MESSAGES, "read")
    with serve(lambda request: (400, {"error": error}) if field in request else "{}") as server:
        model = lean(server, told, **options)
        for asked in (model.at(model.endpoints), model, model.at(model.endpoints)):
            await asked.complete("junior", MESSAGES, response_format=form, seed=1)
        await model.aclose()
    assert len(server.requests) == 4
    (sentence,) = told
    place = f"models.junior (m1 at {server.url}/v1)"
    assert sentence.startswith(f"{place} does not take {field!r}, which is no longer sent: ")
    sent = server.requests[-1][2]
    others = {"temperature", "seed", "reasoning_effort", "top_k", "response_format", "max_tokens"} - {field}
    assert field not in sent
    assert others <= set(sent)


async def test_calls_that_are_under_way_when_a_field_is_refused_are_all_asked_again():
    error = REFUSALS["openai"][0]
    with serve(lambda request: (400, {"error": error}) if "seed" in request else "yes") as server:
        model = lean(server, told := [])
        answers = await asyncio.gather(*(model.complete("junior", MESSAGES, seed=1) for _ in range(4)))
        await model.aclose()
    assert ([answer.content for answer in answers], len(told)) == (["yes"] * 4, 1)


async def test_a_limit_that_a_server_refuses_gets_the_name_that_it_wants():
    message = "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens'."
    error = {"message": message, "param": "max_tokens"}
    with serve(lambda request: (400, {"error": error}) if "max_tokens" in request else "yes") as server:
        model = lean(server, [], max_tokens=55)
        await model.complete("junior", MESSAGES)
        await model.aclose()
    assert server.requests[-1][2]["max_completion_tokens"] == 55


@pytest.mark.parametrize(
    "message",
    [
        "This model's maximum context length is 2048 tokens, but max_tokens is 4000: reduce it",
        "the messages must not be empty",
        "tools are not supported by this model",
    ],
)
async def test_a_refusal_about_something_else_is_an_error_and_costs_no_field(message):
    told = []
    with serve(lambda _request: (400, {"error": {"message": message}})) as server:
        model = lean(server, told)
        with pytest.raises(ModelError) as caught:
            await model.complete("junior", MESSAGES, tools=[SEARCH], seed=1)
        await model.aclose()
    assert message in str(caught.value)
    assert (len(server.requests), told, caught.value.retriable) == (1, [], False)


async def test_the_fields_of_a_slot_are_sent():
    fields = {"max_completion_tokens": 99, "reasoning_effort": "low", "extra_body": "{top_k: 20, top_p: 0.9}"}
    with serve(lambda _request: "yes") as server:
        junior = load_config(None, slots(base_url=f"{server.url}/v1", **fields)).models["junior"]
        model = HttpModel({"junior": user_endpoint("models.junior", junior, {})})
        await model.complete("junior", MESSAGES)
        await model.aclose()
    sent = server.requests[-1][2]
    names = ("max_completion_tokens", "reasoning_effort", "top_k", "top_p")
    assert [sent[name] for name in names] == [99, "low", 20, 0.9]
    assert "max_tokens" not in sent
