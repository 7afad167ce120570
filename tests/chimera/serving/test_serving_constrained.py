"""Answers constrained by schemas and tools, from random weights, through the service behind the API."""

import asyncio
import json
import shutil

import pytest
from embedded_kit import PLAIN_TEMPLATE, embedded, without_tags
from hypothesis import given, settings
from hypothesis import strategies as st
from stream_kit import TOOL
from tokenizers import Tokenizer

from agents.roles import ROLES
from agents.visit.prompting import response_format, schema_format
from chimera.serving.embedded.protocol import parse_request

OTHER = {"type": "function", "function": {"name": "other_tool", "parameters": {"type": "object", "properties": {}}}}
QUESTION = [{"role": "user", "content": "the rate?"}]


@pytest.fixture(scope="module")
def service(serving_model):
    with embedded(serving_model(), slots=4, context_length=1200) as service:
        yield service


async def chat(service, **fields):
    return await service.complete(
        parse_request({"model": "junior", "messages": QUESTION, "max_tokens": 20, "seed": 1} | fields)
    )


@pytest.mark.parametrize("role", ROLES.values(), ids=ROLES)
async def test_every_role_gets_answers_of_its_schema_from_random_weights(service, role):
    messages = [{"role": "user", "content": role.name}]
    answer = await chat(service, messages=messages, response_format=response_format(role), n=8, max_tokens=None)
    finished = [one["message"]["content"] for one in answer["choices"] if one["finish_reason"] == "stop"]
    assert len(finished) >= 4
    for content in finished:
        role.schema.model_validate_json(content)
        assert json.dumps(json.loads(content), ensure_ascii=False, separators=(",", ":")).count('":') == content.count(
            '":'
        )


def schemas():
    leaves = st.one_of(
        st.just({"type": "boolean"}),
        st.builds(
            lambda low, more: {"type": "integer", "minimum": low, "maximum": low + more},
            st.integers(-50, 50),
            st.integers(0, 99),
        ),
        st.builds(lambda size: {"type": "string", "maxLength": size}, st.integers(0, 6)),
        st.builds(
            lambda words: {"enum": words},
            st.lists(st.sampled_from(["yes", "no", 'q"', "é", "{"]), min_size=1, unique=True),
        ),
    )

    def nest(inner):
        arrays = st.builds(
            lambda items, low: {"type": "array", "items": items, "minItems": low, "maxItems": low + 1},
            inner,
            st.integers(0, 2),
        )
        names = st.lists(st.sampled_from(["a", "b c", "ü", "x_1"]), min_size=1, max_size=3, unique=True)
        objects = st.builds(
            lambda keys, value: {
                "type": "object",
                "properties": dict.fromkeys(keys, value),
                "required": keys,
                "additionalProperties": False,
            },
            names,
            inner,
        )
        return st.one_of(arrays, objects)

    return st.recursive(leaves, nest, max_leaves=4)


@settings(max_examples=25, deadline=None)
@given(schema=schemas(), seed=st.integers(0, 2**40), temperature=st.sampled_from([0.0, 0.7, 2.0]))
def test_any_schema_is_obeyed(service, schema, seed, temperature):
    import jsonschema

    form = schema_format("Any", schema)
    answer = asyncio.run(chat(service, response_format=form, seed=seed, temperature=temperature, max_tokens=None))
    choice = answer["choices"][0]
    assert choice["finish_reason"] == "stop"
    jsonschema.validate(json.loads(choice["message"]["content"]), schema)


async def test_json_object_mode_gives_an_object(service):
    answer = await chat(service, response_format={"type": "json_object"}, n=4, max_tokens=None)
    finished = [one["message"]["content"] for one in answer["choices"] if one["finish_reason"] == "stop"]
    assert finished
    assert all(isinstance(json.loads(content), dict) for content in finished)


async def test_with_tools_and_a_schema_an_answer_is_either(service):
    form = response_format(ROLES["Geneticist"])
    answer = await chat(
        service, tools=[TOOL, OTHER], response_format=form, n=24, max_tokens=None, parallel_tool_calls=False
    )
    kinds = {choice["finish_reason"] for choice in answer["choices"]}
    assert {"tool_calls", "stop"} <= kinds
    for choice in answer["choices"]:
        message = choice["message"]
        if choice["finish_reason"] == "tool_calls":
            assert message["content"] is None
            (call,) = message["tool_calls"]
            arguments = json.loads(call["function"]["arguments"])
            if call["function"]["name"] == "literature_search":
                assert list(arguments) == ["query"]
                assert len(arguments["query"]) <= 8
            else:
                assert call["function"]["name"] == "other_tool"
        elif choice["finish_reason"] == "stop":
            ROLES["Geneticist"].schema.model_validate_json(message["content"])
    ids = [call["id"] for choice in answer["choices"] for call in choice["message"].get("tool_calls", [])]
    assert len(set(ids)) == len(ids)


async def test_tool_choice_is_obeyed(service):
    many = {"tools": [TOOL, OTHER], "n": 6, "max_tokens": 60}
    required = await chat(service, tool_choice="required", **many)
    named = await chat(service, tool_choice={"type": "function", "function": {"name": "literature_search"}}, **many)
    none = await chat(service, tool_choice="none", **many)
    called = [choice for choice in required["choices"] if choice["finish_reason"] != "length"]
    assert called
    assert all(choice["message"]["tool_calls"] for choice in called)
    assert {choice["finish_reason"] for choice in named["choices"]} == {"tool_calls"}
    for choice in named["choices"]:
        assert [call["function"]["name"] for call in choice["message"]["tool_calls"]] == ["literature_search"]
    assert all("tool_calls" not in choice["message"] for choice in none["choices"])


@pytest.mark.parametrize("limit", [1, 4, 12, 20])
async def test_a_forced_call_that_is_cut_is_a_partial_call(service, limit):
    named = {"type": "function", "function": {"name": "literature_search"}}
    longer = TOOL | {"function": {"name": "literature_search", "parameters": {"properties": {"q": {"minLength": 200}}}}}
    answer = await chat(service, tools=[OTHER, longer], tool_choice=named, max_tokens=limit)
    (choice,) = answer["choices"]
    (call,) = choice["message"]["tool_calls"]
    assert choice["finish_reason"] == "length"
    assert call["function"]["name"] == "literature_search"
    assert not call["function"]["arguments"].endswith("}")
    assert choice["message"]["content"] is None


async def test_a_tool_without_arguments_gets_none(service):
    answer = await chat(service, tools=[OTHER], tool_choice="required", parallel_tool_calls=False, n=6, max_tokens=80)
    assert {choice["finish_reason"] for choice in answer["choices"]} == {"tool_calls"}
    calls = [choice["message"]["tool_calls"] for choice in answer["choices"]]
    assert {call["function"]["arguments"] for (call,) in calls} == {"{}"}


async def test_a_conversation_with_a_call_goes_on(service):
    called = await chat(service, tools=[TOOL], tool_choice="required", parallel_tool_calls=False, max_tokens=60)
    message = called["choices"][0]["message"]
    result = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": '{"results":[]}'}
    answer = await chat(service, messages=[*QUESTION, message, result], tools=[TOOL])
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] >= called["usage"]["prompt_tokens"]


@pytest.fixture(scope="module")
def untaught(serving_model, tmp_path_factory):
    """A model whose vocabulary has no tags for calls and whose chat template knows no tools."""
    folder = shutil.copytree(serving_model(), tmp_path_factory.mktemp("untaught"), dirs_exist_ok=True)
    without_tags(Tokenizer.from_file(str(folder / "tokenizer.json"))).save(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").write_text(PLAIN_TEMPLATE)
    with embedded(folder, slots=4, context_length=1200) as service:
        yield service


@pytest.mark.parametrize("choice", ["auto", "required"])
async def test_a_model_without_tags_calls_tools_in_plain_text(untaught, choice):
    form = schema_format("x", {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]})
    fields = {"tools": [TOOL, OTHER], "tool_choice": choice, "n": 16, "temperature": 2, "max_tokens": 200}
    answer = await chat(untaught, **fields, response_format=form)
    called = [choice["message"] for choice in answer["choices"] if choice["finish_reason"] == "tool_calls"]
    assert called
    for message in called:
        (call,) = message["tool_calls"]
        assert call["function"]["name"] in ("literature_search", "other_tool")
        assert isinstance(json.loads(call["function"]["arguments"]), dict)
    content = [choice["message"]["content"] for choice in answer["choices"] if choice["finish_reason"] == "stop"]
    assert all(isinstance(json.loads(text), dict) for text in content)
    assert choice == "auto" or not content
    result = {"role": "tool", "tool_call_id": called[0]["tool_calls"][0]["id"], "content": '{"results":[]}'}
    more = await chat(untaught, messages=[*QUESTION, called[0], result], tools=[TOOL], max_tokens=5)
    assert more["usage"]["prompt_tokens"] > answer["usage"]["prompt_tokens"]


async def test_free_text_beside_tools_stays_text_until_a_call_begins(untaught):
    answer = await chat(untaught, tools=[TOOL], n=8, max_tokens=40)
    assert all(choice["message"]["content"] for choice in answer["choices"])
