"""Chat models of any provider that LangChain knows, as OpenAI chat completions (`models.<slot>.provider`).

A request in OpenAI's form is answered by the provider's LangChain model, and its answer is told in OpenAI's form: so it
is recorded, counted and read like that of any server. LangChain and the provider's package are imported when a provider
is used.
"""

import asyncio
import json
import time
import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from chimera.core.errors import ConfigError, ModelError, UnreachableError
from chimera.serving.refusals import REFUSALS, RefusedRequest

if TYPE_CHECKING:
    from langchain_core.language_models import BaseChatModel
    from langchain_core.messages import AIMessage

    from chimera.serving.client import Endpoint

EXTRAS: Mapping[str, str] = {
    "anthropic": "anthropic",
    "bedrock": "aws",
    "bedrock_converse": "aws",
    "google_genai": "google",
    "ollama": "ollama",
}
"""The pip extra of Chimera that brings a provider's package."""
FIELDS: Mapping[str, tuple[str, ...]] = {
    "temperature": ("temperature",),
    "top_p": ("top_p",),
    "max_tokens": ("max_tokens", "max_output_tokens", "num_predict"),
    "seed": ("seed",),
}
"""The names that chat models of LangChain have for what a request sets."""
KEYLESS = ("ollama", "bedrock", "anthropic_bedrock", "google_vertexai", "google_anthropic_vertex", "litellm")
"""Starts of the names of providers that work without a key: local ones, and those with other credentials."""
LONGEST = 1000
"""Most characters of a provider's error message that are kept."""


def chat_model(endpoint: "Endpoint", setting: str, max_retries: int = 0) -> "BaseChatModel":
    """LangChain's chat model of an endpoint.

    Args:
        setting: The setting of the model in messages, such as "models.junior".
        max_retries: Further tries after an error that may pass.

    Raises:
        ConfigError: The provider is unknown, its package is missing, or it does not take the settings.
    """
    from langchain.chat_models import init_chat_model

    options = _options(endpoint, max_retries) | dict(endpoint.provider_options)
    try:
        model = init_chat_model(endpoint.model, model_provider=endpoint.provider, **options)
    except ImportError as error:
        extra = EXTRAS.get(endpoint.provider or "")
        remedy = f"pip install 'chimera-lab[{extra}]' -c constraints.txt" if extra else _line(error)
        raise ConfigError(
            f"{setting}.provider={endpoint.provider} needs a package that is missing: {remedy}"
        ) from error
    except Exception as error:
        raise ConfigError(
            f"{setting}.provider={endpoint.provider}: LangChain cannot make its model {endpoint.model!r} of these "
            f"settings: {_line(error)}"
        ) from error
    if not (endpoint.api_key or endpoint.base_url or _keyless(endpoint)):
        raise ConfigError(
            f"{setting}.provider={endpoint.provider} needs a key: name its environment variable in "
            f"{setting}.api_key_env"
        )
    return model


def _keyless(endpoint: "Endpoint") -> bool:
    """True if the provider's credentials are no key, or it needs none."""
    return (endpoint.provider or "").startswith(KEYLESS)


def _options(endpoint: "Endpoint", max_retries: int) -> dict[str, Any]:
    """Address, key and limits, under the names that most providers share."""
    options: dict[str, Any] = {"base_url": endpoint.base_url} if endpoint.base_url else {}
    if endpoint.provider == "ollama":
        key = {"headers": {"Authorization": f"Bearer {endpoint.api_key}"}} if endpoint.api_key else {}
        return options | {"client_kwargs": {"timeout": endpoint.timeout_s, "follow_redirects": False, **key}}
    if endpoint.api_key or not _keyless(endpoint):
        options["api_key"] = endpoint.api_key or "none"  # LangChain would take a key that the settings do not name.
    if endpoint.provider in ("openai", "azure_openai"):
        from chimera.serving.openai_http import BoundedClient

        options["http_async_client"] = BoundedClient()
    return options | {"timeout": endpoint.timeout_s, "max_retries": max_retries}


class ProviderModels:
    """Answers requests by LangChain's chat models, which are made when they are first asked.

    Args:
        max_retries: Further tries after an error that may pass.
    """

    def __init__(self, max_retries: int = 0) -> None:
        self._max_retries = max_retries
        self._models: dict[tuple[Any, ...], BaseChatModel] = {}

    async def answer(self, endpoint: "Endpoint", request: Mapping[str, Any], where: str) -> dict[str, Any]:
        """Answer a request for an OpenAI chat completion.

        Args:
            request: The body of the request; what the chat model has no setting for is left out.
            where: The model's name in messages.

        Raises:
            ModelError: The provider refused the request, or gave no answer in time.
            UnreachableError: It cannot be reached.
        """
        deadline = asyncio.timeout(endpoint.timeout_s)
        try:
            async with deadline:
                message = await _invoke(self._model(endpoint), request)
        except ConfigError as error:
            raise ModelError(str(error)) from error
        except Exception as error:
            if deadline.expired() or "Timeout" in type(error).__name__:
                text = f"{where} did not answer within {endpoint.timeout_s:g} s"
                raise ModelError(text, retriable=True) from error
            raise explained(where, error) from error
        return completion(message, endpoint.model)

    def _model(self, endpoint: "Endpoint") -> "BaseChatModel":
        place = endpoint.provider, endpoint.base_url, endpoint.model, endpoint.api_key, endpoint.timeout_s
        if place not in self._models:
            self._models[place] = chat_model(endpoint, endpoint.model, self._max_retries)
        return self._models[place]


async def _invoke(model: "BaseChatModel", request: Mapping[str, Any]) -> "AIMessage":
    """Ask with the request's own sampling, tools and JSON schema; a schema only counts where no tools are offered."""
    from langchain_core.messages import convert_to_messages

    messages, sampled = convert_to_messages(request["messages"]), model.model_copy(update=sampling(model, request))
    if tools := request.get("tools"):
        return await sampled.bind_tools(tools).ainvoke(messages)
    if form := request.get("response_format"):
        schema = {"title": form["json_schema"]["name"], **form["json_schema"]["schema"]}
        reply: Any = await sampled.with_structured_output(schema, include_raw=True).ainvoke(messages)
        return _as_text(reply["raw"])
    return await sampled.ainvoke(messages)


def sampling(model: "BaseChatModel", request: Mapping[str, Any]) -> dict[str, Any]:
    """The chat model's fields for what the request sets. `top_p` is left out where it has no effect, because some
    providers refuse it beside a temperature."""
    settings = {**request, "max_tokens": request.get("max_completion_tokens", request.get("max_tokens"))}
    if settings.get("top_p") == 1:
        del settings["top_p"]
    fields = {
        name: next((field for field in names if field in type(model).model_fields), None)
        for name, names in FIELDS.items()
    }
    return {field: settings[name] for name, field in fields.items() if field and settings.get(name) is not None}


def _as_text(message: "AIMessage") -> "AIMessage":
    """A structured answer as text. Some providers give it as the arguments of a tool call that LangChain makes up."""
    if not message.tool_calls:
        return message
    text = json.dumps(message.tool_calls[0]["args"], ensure_ascii=False)
    return message.model_copy(update={"content": text, "tool_calls": []})


def completion(message: "AIMessage", model: str) -> dict[str, Any]:
    """A message of LangChain as an OpenAI chat completion."""
    about = message.response_metadata
    reply: dict[str, Any] = {"role": "assistant", "content": str(message.text) or None}
    calls = [(call["id"], call["name"], json.dumps(call["args"], ensure_ascii=False)) for call in message.tool_calls]
    calls += [(call["id"], call["name"] or "", call["args"] or "") for call in message.invalid_tool_calls]
    if calls:
        reply["tool_calls"] = [
            {"id": id_ or f"call-{number}", "type": "function", "function": {"name": name, "arguments": arguments}}
            for number, (id_, name, arguments) in enumerate(calls)
        ]
    used = message.usage_metadata or {"input_tokens": 0, "output_tokens": 0, "total_tokens": 0}
    return {
        "id": about.get("id") or message.id or uuid.uuid4().hex,
        "object": "chat.completion",
        "created": int(time.time()),
        "model": model,
        "choices": [{"index": 0, "message": reply, "finish_reason": _finish(about, called=bool(calls))}],
        "usage": {
            "prompt_tokens": used["input_tokens"],
            "completion_tokens": used["output_tokens"],
            "total_tokens": used["total_tokens"],
        },
    }


def _finish(about: Mapping[str, Any], *, called: bool) -> str:
    """Why an answer ended, in OpenAI's words where there is one."""
    reason = str(about.get("finish_reason") or about.get("stop_reason") or about.get("stopReason") or "").lower()
    reason = reason or str(about.get("done_reason") or "stop").lower()
    if reason in ("length", "max_tokens"):
        return "length"
    if called:
        return "tool_calls"
    return "stop" if reason in ("stop", "end_turn", "stop_sequence", "tool_use", "tool_calls") else reason


def explained(where: str, error: Exception) -> ModelError:
    """A provider's error as one sentence, which says whether another try may succeed."""
    status = getattr(error, "status_code", None) or getattr(getattr(error, "response", None), "status_code", None)
    if (bad := _bad_answer(error)) is not None:
        return ModelError(f"{where} {bad}", retriable=True)
    if isinstance(status, int) and 300 <= status < 400:
        return ModelError(f"{where} answered {status} and points elsewhere: set base_url to the right address")
    if isinstance(status, int) and status > 0:
        text = f"{where} answered {status}: {_line(error)}"
        if status in REFUSALS:
            return RefusedRequest(text, getattr(error, "body", None))
        return ModelError(text, retriable=status == 429 or status >= 500)
    if isinstance(error, ConnectionError) or "Connect" in type(error).__name__:
        return UnreachableError(f"{where} cannot be reached ({_line(error)}): is its address right?", retriable=True)
    return ModelError(f"{where} failed: {type(error).__name__}: {_line(error)}")


def _bad_answer(error: BaseException | None) -> str | None:
    """What was wrong with an answer that was too long or incomplete; None if the error has another cause."""
    from chimera.serving.connections import BadAnswerError

    while error is not None:
        if isinstance(error, BadAnswerError):
            return str(error)
        error = error.__cause__
    return None


def _line(error: Exception) -> str:
    body = getattr(error, "body", None)
    inner = body.get("error", body) if isinstance(body, Mapping) else None
    message = inner.get("message") if isinstance(inner, Mapping) else None
    text = message if isinstance(message, str) and message else str(error)
    return " ".join(text.encode("utf-8", "replace").decode().split())[:LONGEST]
