"""The client side of model calls."""

import json

import httpx
import respx

from chimera.serving.client import Endpoint, HttpModel

ANSWER = {"id": "a", "choices": [{"message": {"role": "assistant", "content": "yes"}, "finish_reason": "stop"}]}


@respx.mock
async def test_two_models_at_one_address_are_asked_with_a_key_each():
    route = respx.post("http://models.test/v1/chat/completions").mock(
        return_value=httpx.Response(200, json={"object": "chat.completion", "created": 1, "model": "m", **ANSWER})
    )
    model = HttpModel({key: Endpoint("http://models.test/v1", key, f"key-of-{key}") for key in ("junior", "judge")})
    for key in ("junior", "judge", "junior"):
        await model.complete(key, [{"role": "user", "content": "?"}])
    sent = [call.request.headers["authorization"] for call in route.calls]
    assert sent == ["Bearer key-of-junior", "Bearer key-of-judge", "Bearer key-of-junior"]
    await model.aclose()


@respx.mock
async def test_several_answers_come_from_one_request_and_share_its_tokens():
    """One answer is asked for without `n`, which some servers do not know."""

    def answer(request):
        choices = ANSWER["choices"] * json.loads(request.content).get("n", 1)
        usage = {"prompt_tokens": 30, "completion_tokens": 11, "total_tokens": 41}
        body = {"object": "chat.completion", "created": 1, "model": "m", "id": "a", "usage": usage}
        return httpx.Response(200, json={**body, "choices": choices})

    route = respx.post("http://models.test/v1/chat/completions").mock(side_effect=answer)
    model = HttpModel({"junior": Endpoint("http://models.test/v1", "m", "key")})
    found = await model.choices("junior", [{"role": "user", "content": "?"}], n=3)
    assert [(one.content, one.prompt_tokens, one.completion_tokens) for one in found] == [
        ("yes", 30, 4),
        ("yes", 30, 4),
        ("yes", 30, 3),
    ]
    await model.complete("junior", [{"role": "user", "content": "?"}])
    assert "n" not in json.loads(route.calls.last.request.content)
    await model.aclose()
