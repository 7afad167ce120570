"""The client side of model calls."""

import json
import re
import time
from email.utils import formatdate

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from message_kit import refused

from agents.visit.react import echo
from chimera.core.errors import ModelError, RateLimitError, UnreachableError
from chimera.serving.client import Endpoint, HttpModel, read_completions

ANSWER = {"id": "a", "choices": [{"message": {"role": "assistant", "content": "yes"}, "finish_reason": "stop"}]}
ASKED = [{"role": "user", "content": "?"}]


class Models:
    """A server on loopback that gives `answers` in turn (the last for ever) and keeps the requests.

    An answer is a JSON body, a response, or a function of the request's body that returns either.
    """

    def __init__(self, *answers):
        self.answers, self.keys, self.bodies, self.models = list(answers), [], [], []
        self.app = web.Application()
        self.app.router.add_post("/v1/chat/completions", self.answer)

    async def answer(self, request):
        self.keys.append(request.headers["authorization"])
        self.bodies.append(await request.json())
        given = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        given = given(self.bodies[-1]) if callable(given) else given
        return given if isinstance(given, web.StreamResponse) else web.json_response(given)

    async def __aenter__(self):
        self.server = TestServer(self.app)
        await self.server.start_server()
        self.url = str(self.server.make_url("/v1"))
        return self

    async def __aexit__(self, *_):
        for model in self.models:
            await model.aclose()
        await self.server.close()

    def client(self, key="key", **options):
        """A client whose junior is served here; it is closed with the server."""
        self.models.append(HttpModel({"junior": Endpoint(self.url, "m", key)}, **options))
        return self.models[-1]


def busy(status=503, **headers):
    """A function, because a response can be sent only once."""
    return lambda body: web.json_response({"error": {"message": "busy"}}, status=status, headers=headers)


async def test_two_models_at_one_address_are_asked_with_a_key_each():
    async with Models(ANSWER) as server:
        model = HttpModel({key: Endpoint(server.url, key, f"key-of-{key}") for key in ("junior", "judge")})
        for key in ("junior", "judge", "junior"):
            await model.complete(key, ASKED)
        await model.aclose()
    assert server.keys == ["Bearer key-of-junior", "Bearer key-of-judge", "Bearer key-of-junior"]


async def test_several_answers_come_from_one_request_and_share_its_tokens():
    """One answer is asked for without `n`, which some servers do not know."""

    def answer(body):
        usage = {"prompt_tokens": 30, "completion_tokens": 11, "total_tokens": 41}
        return {"id": "a", "usage": usage, "choices": ANSWER["choices"] * body.get("n", 1)}

    async with Models(answer) as server:
        model = server.client()
        found = await model.choices("junior", ASKED, n=3)
        await model.complete("junior", ASKED)
    counted = [(one.content, one.prompt_tokens, one.completion_tokens) for one in found]
    assert counted == [("yes", 30, tokens) for tokens in (4, 4, 3)]
    assert "n" not in server.bodies[-1]


@pytest.mark.parametrize("first", [busy(429, **{"Retry-After": "0.01"}), busy(502, **{"retry-after-ms": "10"})])
async def test_a_busy_server_is_asked_again_after_the_time_that_it_names(first):
    async with Models(first, first, ANSWER) as server:
        model = server.client(max_retries=2)
        assert (await model.complete("junior", ASKED)).content == "yes"
    assert len(server.bodies) == 3
    assert server.bodies[0] == server.bodies[2]


@pytest.mark.parametrize("seconds", [0, 1])
async def test_a_limit_that_a_date_names_is_waited_for_without_further_tries(seconds):
    first = busy(429, **{"Retry-After": formatdate(time.time() + seconds, usegmt=True)})
    async with Models(first, ANSWER) as server:
        model = server.client(max_retries=0, pause_s=60)
        assert (await model.complete("junior", ASKED)).content == "yes"


async def test_a_limit_that_does_not_end_is_told_with_the_servers_words_and_the_setting():
    async with Models(busy(429, **{"retry-after-ms": "10"})) as server:
        model = server.client(pause_s=0.05)
        with refused(RateLimitError, "'junior'", server.url, 429, "busy", "rollouts.pause_s"):
            await model.complete("junior", ASKED)


THOUGHT = {"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}]}
SEARCH = {"name": "search", "arguments": "{}"}
WRITTEN_MESSAGES = {
    "signature of a call": {
        "tool_calls": [{"id": "c", "type": "function", "function": SEARCH, "extra_content": {"google": {"sig": "S"}}}]
    },
    "field of a function": {"tool_calls": [{"id": "c", "type": "function", "function": {**SEARCH, "thought": [1]}}]},
    "reasoning": {"content": "yes", "reasoning_content": "Hm.", "reasoning_details": [{"data": "x", "index": 0}]},
    "null": {"content": "yes", "reasoning_content": None},
    "parts": {"content": [THOUGHT, {"type": "text", "text": "yes"}]},
    "parts and calls": {"content": [THOUGHT], "tool_calls": [{"id": "c", "type": "function", "function": SEARCH}]},
}


@pytest.mark.parametrize("case", WRITTEN_MESSAGES)
async def test_a_server_gets_back_what_it_wrote_and_no_other_server_does(case):
    written = {"role": "assistant", "content": None, **WRITTEN_MESSAGES[case]}
    answer = {"id": "a", "choices": [{"message": written, "finish_reason": "stop"}]}
    async with Models(answer) as server, Models(ANSWER) as other:
        endpoints = {"junior": Endpoint(server.url, "m", "k"), "board": Endpoint(other.url, "m", "k")}
        model = HttpModel({**endpoints, "judge": Endpoint(server.url, "another", "k")})
        first = await model.complete("junior", ASKED)
        for key in ("junior", "board", "judge"):
            await model.complete(key, [*ASKED, json.loads(json.dumps(echo(first)))])
        await model.aclose()
    usual = {**written, "content": written["content"] if first.tool_calls else written["content"] or ""}
    assert server.bodies[1]["messages"][1] == usual
    plain = [body["messages"][1] for body in (other.bodies[0], server.bodies[2])]
    text = {"role": "assistant", "content": None if first.tool_calls else "yes"}
    called = {"tool_calls": [{"id": "c", "type": "function", "function": SEARCH}]} if first.tool_calls else {}
    assert plain == [{**text, **called}] * 2
    assert first.content == ("" if first.tool_calls else "yes")


async def test_a_field_of_its_messages_that_a_server_refuses_is_not_sent_back_again():
    def answer(body):
        if any("reasoning" in message for message in body["messages"]):
            error = {"message": "'messages.1': property 'reasoning' is unsupported"}
            return web.json_response({"error": error}, status=400)
        return {"id": "a", "choices": [{"message": {"content": "yes", "reasoning": "Hm."}}]}

    sentences = []
    async with Models(answer) as server:
        model = server.client(tell=sentences.append)
        first = await model.complete("junior", ASKED)
        for _ in range(2):
            assert (await model.complete("junior", [*ASKED, first.message])).content == "yes"
    assert len(server.bodies) == 4
    (sentence,) = sentences
    assert "'reasoning'" in sentence


def completion(message, finish_reason="stop"):
    body = {"choices": [{"message": message, "finish_reason": finish_reason}]}
    return read_completions(json.dumps(body).encode(), "the model")[0]


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ([{"type": "text", "text": "y"}, THOUGHT, {"type": "text", "text": "es"}], "yes"),
        (["y", {"text": "es"}], "yes"),
        ([{"type": "output_text", "text": "yes"}, {"type": "reasoning", "text": "Hm."}, None, 7], "yes"),
        ([THOUGHT], ""),
        ([], ""),
    ],
)
def test_the_text_of_content_in_parts_is_read(content, text):
    assert completion({"content": content}).content == text


@pytest.mark.parametrize(
    ("arguments", "read"),
    [
        ({"q": {"deep": [1, "ö"]}}, {"q": {"deep": [1, "ö"]}}),
        ('{"q": 1}', {"q": 1}),
        *((empty, {}) for empty in (None, "", " ", "null", [], {})),
        ([1], None),
        *((unreadable, None) for unreadable in ("{", '{"q": "\\ud800"}', "[" * 100_000, "9" * 5000, "[1]")),
    ],
    ids=lambda value: repr(value)[:20],
)
def test_arguments_are_read_in_any_form_and_what_cannot_be_read_is_told_as_it_is(arguments, read):
    (call,) = completion(
        {"tool_calls": [{"id": "c", "function": {"name": "search", "arguments": arguments}}]}
    ).tool_calls
    assert call.arguments == read
    if read is None:
        assert call.raw_arguments == (arguments if isinstance(arguments, str) else json.dumps(arguments))
    else:
        assert json.loads(call.raw_arguments) == read


def test_calls_without_an_id_of_their_own_get_one():
    calls = [{"function": SEARCH}, *({"id": id_, "function": SEARCH} for id_ in (None, "", 7, "same", "same"))]
    answer = completion({"tool_calls": [*calls, {"id": "x", "function": {"name": "search"}}]})
    ids = [call.id for call in answer.tool_calls]
    assert len(set(ids)) == 7
    assert all(re.fullmatch("[A-Za-z0-9]{9}", id_) for id_ in [*ids[:4], ids[5]])
    assert (ids[4], ids[6]) == ("same", "x")
    assert [call["id"] for call in answer.message["tool_calls"]] == ids


@pytest.mark.parametrize(
    ("message", "finish_reason", "words"),
    [
        ({"content": None, "refusal": "I cannot."}, "stop", "I cannot."),
        ({"content": [{"type": "refusal", "refusal": "I cannot."}]}, "stop", "I cannot."),
        ({"content": ""}, "content_filter", "content_filter"),
        ({"content": "Withheld by policy 7."}, "content_filter", "policy 7"),
        ({"content": "yes", "refusal": None}, "stop", ""),
        ({"content": "yes", "refusal": ""}, "stop", ""),
    ],
)
def test_a_refusal_is_told_in_the_servers_own_words(message, finish_reason, words):
    answer = completion(message, finish_reason)
    assert words in answer.refusal
    assert (answer.finish_reason == "content_filter") == bool(answer.refusal) == bool(words)


@pytest.mark.parametrize(("status", "retries", "tries"), [(500, 1, 2), (400, 5, 1)])
async def test_a_busy_server_is_named_after_the_last_try_and_a_refusal_is_not_repeated(status, retries, tries):
    async with Models(busy(status, **{"retry-after-ms": "1"})) as server:
        model = server.client(max_retries=retries)
        with pytest.raises(ModelError, match=rf"answered {status}: busy$") as caught:
            await model.complete("junior", ASKED)
    assert (caught.value.retriable, len(server.bodies)) == (tries > 1, tries)


@pytest.mark.parametrize(("key", "remedy"), [("none", "no key was sent"), ("sk-1", "is the key right")])
async def test_a_refused_key_is_named_by_its_setting(key, remedy):
    async with Models(busy(401)) as server:
        model = server.client(key)
        with refused(ModelError, 401, "busy", remedy, "models.junior.api_key_env"):
            await model.complete("junior", ASKED)


async def test_a_kept_connection_that_the_server_has_closed_costs_no_answer():
    """Some servers close after an answer without saying so; the next request then finds a dead connection."""

    def closing(body):
        response = web.json_response(ANSWER)
        response.force_close()
        response.headers["Connection"] = "keep-alive"
        return response

    async with Models(closing) as server:
        model = server.client(max_retries=0)
        for _ in range(5):
            assert (await model.complete("junior", ASKED)).content == "yes"


async def test_no_server_is_said_at_once_with_the_reason_but_without_a_proxys_password(monkeypatch):
    monkeypatch.setenv("http_proxy", "me:sk-secret@proxy")
    async with Models(ANSWER) as server:
        gone = server.url
    for url, reason in ((gone, "Connect call failed"), ("http://far.invalid/v1", "InvalidURL")):
        model = HttpModel({"junior": Endpoint(url, "m", "key")}, max_retries=0)
        with refused(UnreachableError, "'junior'", url, reason, "is the server running", "address") as caught:
            await model.complete("junior", ASKED)
        assert "sk-secret" not in str(caught.value)
        await model.aclose()


async def test_text_of_any_script_arrives_as_it_was_sent():
    text = 'Größe "x"\n\u2028 \U0001f9ec'
    async with Models(ANSWER) as server:
        model = server.client()
        await model.complete("junior", [{"role": "user", "content": json.dumps({"goal": text})}])
    assert json.loads(server.bodies[0]["messages"][0]["content"]) == {"goal": text}
