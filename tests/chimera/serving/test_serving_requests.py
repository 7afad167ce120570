"""Bodies of chat requests: what is accepted, and what is refused by its name."""

import pytest

from chimera.serving.embedded.protocol import BadRequest, parse_request

TOOL = {"type": "function", "function": {"name": "literature_search"}}
REQUEST = {"model": "junior", "messages": [{"role": "user", "content": "q"}]}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"frequency_penalty": 0.5}, "frequency_penalty=0.5 is not supported"),
        ({"logit_bias": {"1": 5}}, "logit_bias"),
        ({"top_k": -2}, "top_k"),
        ({"min_p": 1.5}, "min_p"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"guided_regex": "a*"}, "unknown parameter 'guided_regex'"),
        ({"response_format": {"type": "grammar"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "needs json_schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
            "response_format.json_schema.schema",
        ),
        ({"temperature": -1}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"n": 0}, "n: "),
        ({"max_tokens": 0}, "max_tokens"),
        ({"stop": ["a", "b", "c", "d", "e"]}, "stop"),
        ({"stop": ""}, "stop: an empty string"),
        ({"top_logprobs": 3}, "top_logprobs needs logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"tool_choice": "required"}, "tool_choice needs tools"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "other"}}}, "names 'other'"),
        ({"tools": [TOOL, TOOL]}, "names must be unique"),
        ({"tools": [{"type": "web_search"}]}, "tools.0"),
        ({"tools": [{"type": "function", "function": {"name": 'f","x":"'}}]}, "tools.0.function.name"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "robot", "content": "q"}]}, "messages.0.role"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages.0.content"),
        ({"model": None}, "model"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(fields, message):
    with pytest.raises(BadRequest) as caught:
        parse_request(REQUEST | fields)
    assert message in caught.value.message


def test_parameters_that_ask_for_nothing_are_accepted():
    neutral = {
        "stream": False,
        "frequency_penalty": 0.0,
        "logit_bias": {},
        "top_k": -1,
        "functions": None,
        "user": "me",
    }
    request = parse_request(REQUEST | neutral | {"max_tokens": 9, "max_completion_tokens": 5, "stop": "\n"})
    assert request.token_limit == 5
    assert request.stops == ("\n",)


def test_a_body_must_be_an_object():
    with pytest.raises(BadRequest, match="must be a JSON object, not list"):
        parse_request([])
