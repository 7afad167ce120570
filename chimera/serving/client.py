"""The client of every model call: takes a logical model name, returns a parsed chat completion.

Embedded servers and OpenAI-compatible servers are called directly, because LangChain's ChatOpenAI takes
twice the processor time of a call (6 against 3 ms) and drops what it does not know from an answer. Other providers are
reached through their LangChain chat model (`chimera.serving.providers`). The society and the judge use only the `Model`
protocol, so tests can replace servers by a scripted model.
"""

import copy
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypedDict, Unpack

from pydantic import BaseModel, ConfigDict, NonNegativeInt, ValidationError
from pydantic_core import from_json

from chimera.core.errors import ModelError, UnreachableError
from chimera.serving.lengths import bounded
from chimera.serving.refusals import REFUSALS, RefusedFields, RefusedRequest

if TYPE_CHECKING:
    from chimera.serving.connections import Connections, HttpAnswer
    from chimera.serving.providers import ProviderModels

LONGEST_MESSAGE = 1000
"""Most characters of a server's error message that are kept."""
NO_KEY = "none"
"""Sent as the key where none is set, because some servers want one."""
SHOWN = 120
"""Most characters of a detail, such as an address, in an error."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where one logical model is served and how it is sampled; the key never appears in `repr`."""

    base_url: str
    model: str
    api_key: str = field(repr=False)
    structured: Literal["always", "final", "never"] = "always"
    temperature: float = 1.0
    top_p: float = 1.0
    max_tokens: int = 768
    timeout_s: float = 60.0
    max_completion_tokens: int | None = None
    reasoning_effort: str | None = None
    extra_body: Mapping[str, Any] = field(default_factory=dict)
    provider: str | None = None
    provider_options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    bounded: bool = False
    """True if its answers' texts must fit into `max_tokens` (`chimera.serving.lengths`)."""

    @property
    def place(self) -> str:
        """The model and its address, as named in errors."""
        of = f" of {self.provider}" if self.provider else ""
        return f"{self.model}{of}{f' at {self.base_url}' if self.base_url else ''}"


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One tool call of an assistant message; `arguments` is None if they were not a JSON object."""

    id: str
    name: str
    arguments: Mapping[str, Any] | None
    raw_arguments: str


@dataclass(frozen=True, slots=True)
class Completion:
    """One answer of a model.

    `message` is the assistant message to append to the conversation; `weights_version` names the server's weights.
    """

    message: dict[str, Any]
    content: str
    tool_calls: tuple[ToolCall, ...]
    finish_reason: str
    prompt_tokens: int
    completion_tokens: int
    response_id: str
    weights_version: str | None


class RequestOptions(TypedDict, total=False):
    """What a request may hold beside its messages: the tools that are offered, a JSON schema, and a seed."""

    tools: Sequence[Mapping[str, Any]]
    response_format: Mapping[str, Any] | None
    seed: int | None


class Model(Protocol):
    """Anything that answers chat messages for a logical model name."""

    async def complete(
        self, key: str, messages: Sequence[Mapping[str, Any]], **options: Unpack[RequestOptions]
    ) -> Completion:
        """Answer `messages` as the logical model `key`; raises ModelError."""
        ...


def _warn(sentence: str) -> None:
    logging.getLogger(__name__).warning(sentence)


@dataclass(slots=True)
class _Shared:
    """What all views of one client share: connections, and what servers have refused."""

    refused: RefusedFields = field(default_factory=RefusedFields)
    providers: "ProviderModels | None" = None
    connections: "Connections | None" = None


class HttpModel:
    """`Model` over OpenAI-compatible HTTP, one `Endpoint` for each logical model."""

    def __init__(
        self,
        endpoints: Mapping[str, Endpoint],
        *,
        max_retries: int = 2,
        tell: Callable[[str], None] = _warn,
    ) -> None:
        """Call `endpoints`; `tell` is called with a sentence when a server does not take a field."""
        self.endpoints = dict(endpoints)
        self._max_retries = max_retries
        self._tell = tell
        self._shared = _Shared()

    def at(self, endpoints: Mapping[str, Endpoint]) -> "HttpModel":
        """The models of other `endpoints`, through the same connections, which this object closes."""
        model = copy.copy(self)
        model.endpoints = dict(endpoints)
        return model

    async def complete(
        self, key: str, messages: Sequence[Mapping[str, Any]], **options: Unpack[RequestOptions]
    ) -> Completion:
        """Answer `messages` as `key`; an empty tool list is never sent because several servers reject it."""
        return (await self.choices(key, messages, **options))[0]

    async def choices(
        self, key: str, messages: Sequence[Mapping[str, Any]], *, n: int = 1, **options: Unpack[RequestOptions]
    ) -> list[Completion]:
        """Answer `messages` up to `n` times in one request; servers that do not know `n` answer once.

        Each answer counts all tokens of the prompt, as in a request of its own. Servers give one sum of generated
        tokens for all answers; it is divided evenly.

        Raises:
            ModelError: The model gave no answer, or its answer is no chat completion.
        """
        request = self.request(key, messages, **options)
        if n > 1:
            request["n"] = n
        return read_completions(await self.ask(key, request), self.where(key))

    def request(
        self, key: str, messages: Sequence[Mapping[str, Any]], **options: Unpack[RequestOptions]
    ) -> dict[str, Any]:
        """The body of the HTTP request that `complete` sends for these arguments.

        Raises:
            ModelError: `key` has no endpoint.
        """
        endpoint, tools = self._endpoint(key), options.get("tools")
        response_format, seed = options.get("response_format"), options.get("seed")
        request: dict[str, Any] = {
            "model": endpoint.model,
            "messages": list(messages),
            "temperature": endpoint.temperature,
            "top_p": endpoint.top_p,
        }
        if endpoint.max_completion_tokens is None:
            request["max_tokens"] = endpoint.max_tokens
        else:
            request["max_completion_tokens"] = endpoint.max_completion_tokens
        if endpoint.reasoning_effort is not None:
            request["reasoning_effort"] = endpoint.reasoning_effort
        if tools:
            request["tools"] = list(tools)
        if response_format and (endpoint.structured == "always" or (endpoint.structured == "final" and not tools)):
            request["response_format"] = (
                bounded(response_format, endpoint.max_tokens) if endpoint.bounded else response_format
            )
        if seed is not None:
            request["seed"] = seed
        return self._shared.refused.without(endpoint.place, request | dict(endpoint.extra_body))

    async def ask(self, key: str, request: Mapping[str, Any]) -> bytes:
        """Send a request's body to the server of `key`; returns the body of its answer, not yet parsed.

        A field that the server does not take is left out from now on, and `tell` says so.

        Raises:
            ModelError: The server refused it or did not answer in time.
            UnreachableError: The server cannot be reached.
        """
        place = self._endpoint(key).place
        while True:
            sent = self._shared.refused.without(place, request)
            try:
                return await self._send(key, sent)
            except RefusedRequest as error:
                lacking = self._shared.refused.learn(place, sent, error.said, error.field)
                if lacking is None:
                    raise
                self._tell(f"models.{key} {lacking}")

    async def _send(self, key: str, request: Mapping[str, Any]) -> bytes:
        if self._endpoint(key).provider is not None:
            return await self._ask_provider(key, request)
        from chimera.serving.connections import BadAnswerError, Connections, NoAnswerError

        endpoint, where = self._endpoint(key), self.where(key)
        if self._shared.connections is None:
            self._shared.connections = Connections()
        url = f"{endpoint.base_url.rstrip('/')}/chat/completions"
        try:
            answer = await self._shared.connections.post(
                url, endpoint.api_key, request, limit_s=endpoint.timeout_s, retries=self._max_retries
            )
        except TimeoutError as error:
            raise ModelError(f"{where} did not answer within {endpoint.timeout_s:g} s", retriable=True) from error
        except BadAnswerError as error:
            raise ModelError(f"{where} {error}", retriable=True) from error
        except NoAnswerError as error:
            raise UnreachableError(f"{where} cannot be reached: is the server running?", retriable=True) from error
        if answer.status in REFUSALS:
            raise RefusedRequest(f"{where} {_refused(answer)}", answer.error())
        if not 200 <= answer.status < 300:
            about_key = _about_key(key, endpoint) if answer.status in (401, 403) else ""
            raise ModelError(f"{where} {_refused(answer)}{about_key}", retriable=answer.retriable)
        return answer.content

    async def _ask_provider(self, key: str, request: Mapping[str, Any]) -> bytes:
        from chimera.serving.providers import ProviderModels

        if self._shared.providers is None:
            self._shared.providers = ProviderModels(self._max_retries)
        return json.dumps(await self._shared.providers.answer(self._endpoint(key), request, self.where(key))).encode()

    def where(self, key: str) -> str:
        """The model of `key` and its address, as named in errors."""
        endpoint = self._endpoint(key)
        return f"model {key!r} ({endpoint.place})"

    def _endpoint(self, key: str) -> Endpoint:
        if key not in self.endpoints:
            raise ModelError(f"no endpoint for model {key!r}: configure models.{key}")
        return self.endpoints[key]

    async def aclose(self) -> None:
        if self._shared.connections is not None:
            await self._shared.connections.aclose()
        self._shared.connections = None
        self._shared.providers = None


def _refused(answer: "HttpAnswer") -> str:
    """What the server sent instead of a completion. A redirection is named, not followed."""
    if 300 <= answer.status < 400:
        place = answer.headers.get("location", "")[:SHOWN]
        return (
            f"answered {answer.status} and points to {place!r}: prompts go to the configured address only, so set "
            "base_url to the right one"
        )
    return f"answered {answer.status}: {answer.refusal(LONGEST_MESSAGE)}"


def _about_key(key: str, endpoint: Endpoint) -> str:
    """What to check after a server has refused the key."""
    if endpoint.api_key == NO_KEY:
        return f" (no key was sent: name its environment variable in models.{key}.api_key_env)"
    return f" (is the key right that models.{key}.api_key_env names?)"


class _AnswerPart(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class _Function(_AnswerPart):
    name: str
    arguments: str


class _Call(_AnswerPart):
    id: str
    function: _Function


class _Message(_AnswerPart):
    content: str | None = None
    tool_calls: list[_Call] | None = None


class _Choice(_AnswerPart):
    message: _Message
    finish_reason: str | None = None


class _Usage(_AnswerPart):
    prompt_tokens: NonNegativeInt | None = None
    completion_tokens: NonNegativeInt | None = None


class _Response(_AnswerPart):
    """The parts of an OpenAI chat completion that are read."""

    id: str | None = None
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    weights_version: str | None = None


def read_completions(response: Mapping[str, Any] | bytes, where: str) -> list[Completion]:
    """The answers in an OpenAI chat completion, given as JSON text or parsed; `where` names the model in errors.

    Raises:
        ModelError: `response` is no chat completion, or it has no choice.
    """
    try:
        read = (
            _Response.model_validate_json(response)
            if isinstance(response, bytes)
            else _Response.model_validate(response)
        )
    except ValidationError as error:
        raise ModelError(f"{where} answered 200 with {_fault(response, error)}", retriable=True) from None
    if not read.choices:
        raise ModelError(f"{where} answered without choices", retriable=True)
    usage = read.usage or _Usage()
    each, more = divmod(usage.completion_tokens or 0, len(read.choices))
    return [
        _completion(read, choice, usage.prompt_tokens or 0, each + (place < more))
        for place, choice in enumerate(read.choices)
    ]


def _fault(response: Mapping[str, Any] | bytes, error: ValidationError) -> str:
    """What the server sent instead of a chat completion, and what the user should check."""
    if isinstance(response, bytes) and response.lstrip().startswith(b"<"):
        what = "a web page"
    elif response == b"":
        what = "nothing"
    else:
        fault = error.errors(include_url=False, include_input=False, include_context=False)[0]
        place = ".".join(map(str, fault["loc"])) or "the whole answer"
        what = f"something else ({place}: {fault['msg'][:SHOWN]})"
    return f"{what} instead of a chat completion: is base_url an OpenAI-compatible server, with its /v1?"


def _completion(response: _Response, choice: _Choice, prompt_tokens: int, completion_tokens: int) -> Completion:
    message = choice.message
    calls = tuple(
        ToolCall(call.id, call.function.name, _arguments(call.function.arguments), call.function.arguments)
        for call in message.tool_calls or ()
    )
    reply: dict[str, Any] = {"role": "assistant", "content": message.content}
    if calls:
        reply["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.raw_arguments}}
            for call in calls
        ]
    return Completion(
        message=reply,
        content=message.content or "",
        tool_calls=calls,
        finish_reason=choice.finish_reason or "",
        prompt_tokens=prompt_tokens,
        completion_tokens=completion_tokens,
        response_id=response.id or "",
        weights_version=response.weights_version,
    )


def _arguments(raw: str) -> dict[str, Any] | None:
    try:
        # Python's json accepts half a surrogate pair, which cannot be encoded, and fails on deep nesting.
        value = from_json(raw)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None
