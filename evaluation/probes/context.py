"""The longest prompt that a server takes, if it tells it: vLLM, llama.cpp and Chimera list it with their models."""

from chimera.serving.client import Endpoint

ROOM = 1024
"""Tokens that a prompt needs at least: instructions, question, and what the tools found."""
LIMIT_S, MOST_BYTES = 10.0, 4 * 2**20


async def told_context(endpoint: Endpoint) -> int | None:
    """The context length of `endpoint`'s model in tokens, from GET /models; None if it is not told.

    It is `max_model_len` with vLLM and Chimera, `meta.n_ctx` with llama.cpp.
    """
    if endpoint.provider is not None:
        return None
    import httpx

    from chimera.core.files import parse_json

    headers = {"authorization": f"Bearer {endpoint.api_key}"} if endpoint.api_key else {}
    try:
        async with (
            httpx.AsyncClient(timeout=LIMIT_S, headers=headers) as client,
            client.stream("GET", f"{endpoint.base_url}/models") as answer,
        ):
            body = b""
            async for part in answer.aiter_bytes():
                body += part
                if len(body) > MOST_BYTES:
                    return None
        listed = parse_json(body)["data"] if answer.status_code == 200 else []
        (model,) = [entry for entry in listed if entry["id"] == endpoint.model]
        length = model["max_model_len"] if "max_model_len" in model else model["meta"]["n_ctx"]
    except (httpx.HTTPError, ValueError, KeyError, TypeError):
        return None
    return length if isinstance(length, int) and not isinstance(length, bool) and length > 0 else None
