"""The client side of model calls."""

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
