"""The client side of model calls."""

import json

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from message_kit import refused

from chimera.core.errors import ModelError, UnreachableError
from chimera.serving.client import Endpoint, HttpModel

ANSWER = {"id": "a", "choices": [{"message": {"role": "assistant", "content": "yes"}, "finish_reason": "stop"}]}
ASKED = [{"role": "user", "content": "?"}]


class Models:
    """A server on loopback that gives `answers` in turn (the last for ever) and keeps the requests.

    An answer is a JSON body, a response, or a function of the request's body that returns either.
    """

    def __init__(self, *answers):
        self.answers, self.keys, self.bodies = list(answers), [], []
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
        await self.server.close()


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
        model = HttpModel({"junior": Endpoint(server.url, "m", "key")})
        found = await model.choices("junior", ASKED, n=3)
        await model.complete("junior", ASKED)
        await model.aclose()
    assert [(one.content, one.prompt_tokens, one.completion_tokens) for one in found] == [
        ("yes", 30, 4),
        ("yes", 30, 4),
        ("yes", 30, 3),
    ]
    assert "n" not in server.bodies[-1]


@pytest.mark.parametrize("first", [busy(429, **{"Retry-After": "0.01"}), busy(502, **{"retry-after-ms": "10"})])
async def test_a_busy_server_is_asked_again_after_the_time_that_it_names(first):
    async with Models(first, first, ANSWER) as server:
        model = HttpModel({"junior": Endpoint(server.url, "m", "key")}, max_retries=2)
        assert (await model.complete("junior", ASKED)).content == "yes"
        await model.aclose()
    assert len(server.bodies) == 3
    assert server.bodies[0] == server.bodies[2]


async def test_a_server_that_stays_busy_is_named_after_the_last_try():
    async with Models(busy(500, **{"retry-after-ms": "1"})) as server:
        model = HttpModel({"junior": Endpoint(server.url, "m", "key")}, max_retries=1)
        with pytest.raises(ModelError, match=r"answered 500: busy$") as caught:
            await model.complete("junior", ASKED)
        await model.aclose()
    assert caught.value.retriable
    assert len(server.bodies) == 2


@pytest.mark.parametrize(("key", "remedy"), [("none", "no key was sent"), ("sk-1", "is the key right")])
async def test_a_refused_key_is_named_by_its_setting(key, remedy):
    async with Models(busy(401)) as server:
        model = HttpModel({"junior": Endpoint(server.url, "m", key)})
        with refused(ModelError, 401, "busy", remedy, "models.junior.api_key_env"):
            await model.complete("junior", ASKED)
        await model.aclose()


async def test_a_refusal_is_not_repeated():
    async with Models(busy(400)) as server:
        model = HttpModel({"junior": Endpoint(server.url, "m", "key")}, max_retries=5)
        with pytest.raises(ModelError, match=r"answered 400: busy$") as caught:
            await model.complete("junior", ASKED)
        await model.aclose()
    assert not caught.value.retriable
    assert len(server.bodies) == 1


async def test_a_kept_connection_that_the_server_has_closed_costs_no_answer():
    """Some servers close after an answer without saying so; the next request then finds a dead connection."""

    def closing(body):
        response = web.json_response(ANSWER)
        response.force_close()
        response.headers["Connection"] = "keep-alive"
        return response

    async with Models(closing) as server:
        model = HttpModel({"junior": Endpoint(server.url, "m", "key")}, max_retries=0)
        for _ in range(5):
            assert (await model.complete("junior", ASKED)).content == "yes"
        await model.aclose()


async def test_no_server_is_said_at_once():
    async with Models(ANSWER) as server:
        url = server.url
    model = HttpModel({"junior": Endpoint(url, "m", "key")}, max_retries=0)
    with refused(UnreachableError, "'junior'", server.url, "is the server running"):
        await model.complete("junior", ASKED)
    await model.aclose()


async def test_text_of_any_script_arrives_as_it_was_sent():
    text = 'Größe "x"\n\u2028 \U0001f9ec'
    async with Models(ANSWER) as server:
        model = HttpModel({"junior": Endpoint(server.url, "m", "key")})
        await model.complete("junior", [{"role": "user", "content": json.dumps({"goal": text})}])
        await model.aclose()
    assert json.loads(server.bodies[0]["messages"][0]["content"]) == {"goal": text}
