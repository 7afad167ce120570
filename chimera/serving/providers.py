"""Chat models of any provider that LangChain knows, as OpenAI chat completions (`models.<slot>.provider`).

A request in OpenAI's form is answered by the provider's LangChain model, and its answer is told in OpenAI's form: so it
is recorded, counted and read like that of any server. LangChain and the provider's package are imported when a provider
is used.
"""

import asyncio
import json
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from chimera.core.errors import ConfigError, ModelError, UnreachableError
from chimera.core.rate_limits import RateLimited, named_wait
from chimera.serving.client import LONGEST_MESSAGE, Endpoint
from chimera.serving.requests.refusals import BUSY, REFUSALS, RefusedRequest, words

if TYPE_CHECKING:
    from langchain_core.language_models import BaseChatModel
    from langchain_core.messages import AIMessage, BaseMessage

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
CREDENTIALS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("bedrock", "bedrock_converse", "anthropic_bedrock"), ("AWS_*",)),
    **dict.fromkeys(
        ("google_vertexai", "google_anthropic_vertex"), ("GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_CLOUD_*")
    ),
    "azure_openai": ("OPENAI_API_VERSION",),
}
"""Environment variables that a provider's package reads itself."""
LANGCHAIN = "langchain"
"""The key in a message of LangChain's own form of it, which goes back to the provider with thoughts and signatures."""
REFUSALS_OF_PROVIDERS = (
    *("refusal", "content_filter", "content_filtered", "guardrail_intervened", "safety", "recitation", "blocklist"),
    *("prohibited_content", "spii"),
)
"""Why providers say that an answer ended where they refused it or held it back."""


def chat_model(endpoint: Endpoint, setting: str) -> "BaseChatModel":
    """LangChain's chat model of an endpoint.

    Args:
        setting: The setting of the model in messages, such as "models.junior".

    Raises:
        ConfigError: The provider is unknown, its package is missing, or it does not take the settings.
    """
    from langchain.chat_models import init_chat_model

    options = _options(endpoint) | dict(endpoint.provider_options)
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


def _keyless(endpoint: Endpoint) -> bool:
    """True if the provider's credentials are no key, or it needs none."""
    return (endpoint.provider or "").startswith(KEYLESS)


def _options(endpoint: Endpoint) -> dict[str, Any]:
    """Address, key and limits, under the names that most providers share. Further tries are the client's."""
    options: dict[str, Any] = {"base_url": endpoint.base_url} if endpoint.base_url else {}
    if endpoint.provider == "ollama":
        key = {"headers": {"Authorization": f"Bearer {endpoint.api_key}"}} if endpoint.api_key else {}
        return options | {"client_kwargs": {"timeout": endpoint.timeout_s, "follow_redirects": False, **key}}
    if endpoint.api_key or not _keyless(endpoint):
        options["api_key"] = endpoint.api_key or "none"  # LangChain would take a key that the settings do not name.
    if endpoint.provider in ("openai", "azure_openai"):
        from chimera.serving.openai_http import BoundedClient

        # A redirection would send prompts to any address that an answer names.
        options["http_async_client"] = BoundedClient(follow_redirects=False)
    return options | {"timeout": endpoint.timeout_s, "max_retries": 0}


class ProviderModels:
    """Answers requests by LangChain's chat models, which are made when they are first asked."""

    def __init__(self) -> None:
        self._models: dict[tuple[Any, ...], BaseChatModel] = {}

    async def answer(self, endpoint: Endpoint, request: Mapping[str, Any], where: str) -> dict[str, Any]:
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
            if (cut := getattr(error, "completion", None)) is not None:  # OpenAI's client, of a schema's half answer
                return cut.model_dump(mode="json")
            raise explained(where, error) from error
        return completion(message, endpoint.model)

    def _model(self, endpoint: Endpoint) -> "BaseChatModel":
        options = repr(sorted(endpoint.provider_options.items()))
        place = endpoint.provider, endpoint.base_url, endpoint.model, endpoint.api_key, endpoint.timeout_s, options
        if place not in self._models:
            self._models[place] = chat_model(endpoint, endpoint.model)
        return self._models[place]


async def _invoke(model: "BaseChatModel", request: Mapping[str, Any]) -> "AIMessage":
    """Ask with the request's own sampling, tools and JSON schema; a schema only counts where no tools are offered."""
    messages, sampled = _messages(request["messages"]), model.model_copy(update=sampling(model, request))
    if tools := request.get("tools"):
        return await sampled.bind_tools(tools).ainvoke(messages)
    if form := request.get("response_format"):
        schema = {"title": form["json_schema"]["name"], **form["json_schema"]["schema"]}
        reply: Any = await sampled.with_structured_output(schema, include_raw=True).ainvoke(messages)
        return _as_text(reply["raw"])
    return await sampled.ainvoke(messages)


def _messages(messages: Sequence[Mapping[str, Any]]) -> "list[BaseMessage]":
    """Messages in LangChain's form; those of the provider are as it wrote them."""
    from langchain_core.messages import convert_to_messages

    plain = [{name: value for name, value in message.items() if name != LANGCHAIN} for message in messages]
    return [
        converted.model_copy(update=message.get(LANGCHAIN, {}))
        for message, converted in zip(messages, convert_to_messages(plain), strict=True)
    ]


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
    return message.model_copy(update={"content": text, "tool_calls": [], "additional_kwargs": {}})


def completion(message: "AIMessage", model: str) -> dict[str, Any]:
    """A message of LangChain as an OpenAI chat completion."""
    about, reason = message.response_metadata, _finish(message)
    reply: dict[str, Any] = {"role": "assistant", "content": str(message.text) or None}
    more = {name: value for name, value in message.additional_kwargs.items() if value is not None}
    if more or not isinstance(message.content, str):
        form = {name: about[name] for name in ("model_provider", "output_version") if name in about}
        reply[LANGCHAIN] = {"content": message.content, "additional_kwargs": more, "response_metadata": form}
    if reason == "content_filter":
        reply["refusal"] = more.get("refusal") or reply["content"] or f"it ended with {_reason(message)!r}"
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
        "choices": [{"index": 0, "message": reply, "finish_reason": reason}],
        "usage": {
            "prompt_tokens": used["input_tokens"],
            "completion_tokens": used["output_tokens"],
            "total_tokens": used["total_tokens"],
        },
    }


def _reason(message: "AIMessage") -> str:
    """Why an answer ended, in the provider's word."""
    names = ("finish_reason", "stop_reason", "stopReason", "done_reason")
    return str(next(filter(None, map(message.response_metadata.get, names)), "stop"))


def _finish(message: "AIMessage") -> str:
    """Why an answer ended, in OpenAI's words where there is one."""
    reason = _reason(message).lower()
    if reason in ("length", "max_tokens"):
        return "length"
    if message.tool_calls or message.invalid_tool_calls:
        return "tool_calls"
    if reason in REFUSALS_OF_PROVIDERS or message.additional_kwargs.get("refusal"):
        return "content_filter"
    return "stop" if reason in ("stop", "end_turn", "stop_sequence", "tool_use", "tool_calls") else reason


def explained(where: str, error: Exception) -> ModelError:
    """A provider's error as one sentence, which says whether another try may succeed."""
    status = _status(error)
    if (bad := _bad_answer(error)) is not None:
        return ModelError(f"{where} {bad}", retriable=True)
    if status is not None and 300 <= status < 400:
        return ModelError(f"{where} answered {status} and points elsewhere: set base_url to the right address")
    if status is not None:
        text = f"{where} answered {status}: {_line(error)}"
        if status in REFUSALS:
            return RefusedRequest(text, getattr(error, "body", None))
        wait_s = named_wait(getattr(getattr(error, "response", None), "headers", {}))
        if status == 429:
            return RateLimited(text, wait_s)
        return ModelError(text, retriable=status in BUSY or status >= 500, wait_s=wait_s)
    if isinstance(error, ConnectionError) or "Connect" in type(error).__name__:
        return UnreachableError(f"{where} cannot be reached ({_line(error)}): is its address right?", retriable=True)
    return ModelError(f"{where} failed: {type(error).__name__}: {_line(error)}")


def _status(error: Exception) -> int | None:
    """The HTTP status of a provider's error, in the ways of OpenAI's and Anthropic's clients, boto's and Google's."""
    response = getattr(error, "response", None)
    if isinstance(response, Mapping):
        return response.get("ResponseMetadata", {}).get("HTTPStatusCode")
    places = ((error, "status_code"), (response, "status_code"), (error, "code"))
    statuses = (getattr(part, name, None) for part, name in places)
    return next((status for status in statuses if isinstance(status, int) and 100 <= status < 600), None)


def _bad_answer(error: BaseException | None) -> str | None:
    """What was wrong with an answer that was too long or incomplete; None if the error has another cause."""
    from chimera.serving.connections import BadAnswerError

    while error is not None:
        if isinstance(error, BadAnswerError):
            return str(error)
        error = error.__cause__
    return None


def _line(error: Exception) -> str:
    text = words(getattr(error, "body", None)) or str(error)
    return " ".join(text.encode("utf-8", "replace").decode().split())[:LONGEST_MESSAGE]
