"""The client of every model call: takes a logical model name, returns a parsed chat completion.

Embedded servers and OpenAI-compatible servers are called directly, because LangChain's ChatOpenAI takes
twice the processor time of a call (6 against 3 ms) and drops what it does not know from an answer. Other providers are
reached through their LangChain chat model (`chimera.serving.providers`). The society and the judge use only the `Model`
protocol, so tests can replace servers by a scripted model.
"""

import asyncio
import copy
import json
import logging
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypedDict, Unpack

from pydantic import BaseModel, NonNegativeInt, ValidationError
from pydantic_core import from_json, to_json

from chimera.core.errors import ModelError, UnreachableError
from chimera.core.rate_limits import RateLimited, RateLimits, growing_wait, named_wait
from chimera.serving.requests.lengths import bounded
from chimera.serving.requests.refusals import BUSY, REFUSALS, RefusedFields, RefusedRequest, words
from chimera.serving.requests.written import WRITTEN, as_sent, names_written

if TYPE_CHECKING:
    from chimera.serving.connections import Connections, HttpAnswer
    from chimera.serving.providers import ProviderModels

LONGEST_MESSAGE = 1000
"""Most characters of a server's error message that are kept."""
NO_KEY = "none"
"""Sent as the key where none is set, because some servers want one."""
SHOWN = 120
"""Most characters of a detail, such as an address, in an error."""
USUAL_PAUSE_S = 60.0
"""Longest wait for a rate limit, in seconds, of callers who name none."""
LONGEST_NAMED_WAIT = 60.0
"""Most seconds before a further try when the server names a time."""
REFUSED = "content_filter"
"""The `finish_reason` of an answer that is a refusal, as OpenAI names that of its filter."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where one logical model is served and how it is sampled; the key never appears in `repr`."""

    base_url: str
    model: str
    api_key: str = field(repr=False)
    structured: Literal["always", "final", "never"] = "always"
    temperature: float = 1.0
    max_tokens: int = 768
    timeout_s: float = 60.0
    max_completion_tokens: int | None = None
    reasoning_effort: str | None = None
    extra_body: Mapping[str, Any] = field(default_factory=dict)
    provider: str | None = None
    provider_options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    bounded: bool = False
    """True if its answers' texts must fit into `max_tokens` (`chimera.serving.requests.lengths`)."""

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
    `refusal` is the server's own words where it refused to answer; empty where it did not.
    """

    message: dict[str, Any]
    content: str
    tool_calls: tuple[ToolCall, ...]
    finish_reason: str
    prompt_tokens: int
    completion_tokens: int
    response_id: str
    weights_version: str | None
    refusal: str = ""


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


def warn(sentence: str) -> None:
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
        pause_s: float | None = None,
        tell: Callable[[str], None] = warn,
    ) -> None:
        """Call `endpoints`, and wait at most `pause_s` for a rate limit (None: the usual time, 0 without retries).

        `tell` is called with a sentence when a server does not take a field, or has calls wait.
        """
        self.endpoints = dict(endpoints)
        self._limits = RateLimits(USUAL_PAUSE_S * bool(max_retries) if pause_s is None else pause_s, tell)
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
        request = self.request(key, messages, **options) | ({"n": n} if n > 1 else {})
        return self.read(key, await self.ask(key, request))

    def read(self, key: str, body: bytes) -> list[Completion]:
        """The answers in what `ask` returned; raises ModelError if they are none."""
        return read_completions(body, self.where(key), self._endpoint(key).place)

    def request(
        self, key: str, messages: Sequence[Mapping[str, Any]], **options: Unpack[RequestOptions]
    ) -> dict[str, Any]:
        """The body of the HTTP request for these arguments, the same whatever the server has refused (see `sent`).

        Raises:
            ModelError: `key` has no endpoint.
        """
        endpoint, tools = self._endpoint(key), options.get("tools")
        form, seed = options.get("response_format"), options.get("seed")
        request: dict[str, Any] = {
            "model": endpoint.model,
            "messages": list(messages),
            "top_p": 1.0,  # Before the temperature: where a server takes only one of both, this one is left out.
            "temperature": endpoint.temperature,
        }
        if endpoint.max_completion_tokens is None:
            request["max_tokens"] = endpoint.max_tokens
        else:
            request["max_completion_tokens"] = endpoint.max_completion_tokens
        if endpoint.reasoning_effort is not None:
            request["reasoning_effort"] = endpoint.reasoning_effort
        if tools:
            request["tools"] = list(tools)
        if form and (endpoint.structured == "always" or (endpoint.structured == "final" and not tools)):
            request["response_format"] = bounded(form, endpoint.max_tokens) if endpoint.bounded else form
        if seed is not None:
            request["seed"] = seed
        return request | dict(endpoint.extra_body)

    def sent(self, key: str, request: Mapping[str, Any]) -> dict[str, Any]:
        """A request's body as the server of `key` is sent it: without the fields that it has refused."""
        return self._shared.refused.without(self._endpoint(key).place, request)

    async def ask(self, key: str, request: Mapping[str, Any]) -> bytes:
        """Send a request's body to the server of `key`; returns the body of its answer, not yet parsed.

        A field that the server does not take is left out from now on, and `tell` says so. The server gets back what it
        wrote into messages of the conversation.

        Raises:
            ModelError: The server refused it or did not answer in time.
            RateLimitError: It has refused all calls for their rate, for too long.
            UnreachableError: The server cannot be reached.
        """
        place = self._endpoint(key).place
        while True:
            sent, refused = self._shared.refused.without(place, request), self._shared.refused.at(place)
            sent["messages"] = [as_sent(message, place, refused) for message in request["messages"]]
            try:
                return await self._limits.call(place, partial(self._send, key, sent))
            except RefusedRequest as error:
                names = (*sent, *(name for message in request["messages"] for name in names_written(message)))
                lacking = self._shared.refused.learn(place, names, error.said, error.field)
                if lacking is not None:
                    self._tell(f"models.{key} {lacking}")
                elif self._shared.refused.at(place) == refused:  # Otherwise another call has learned it meanwhile.
                    raise

    async def _send(self, key: str, request: Mapping[str, Any]) -> bytes:
        """Ask once, and up to `max_retries` times more if the server is busy (not 429) or gives no whole answer."""
        ask = self._ask_server if self._endpoint(key).provider is None else self._ask_provider
        for number in range(self._max_retries):
            try:
                return await ask(key, request)
            except ModelError as error:
                if isinstance(error, RateLimited) or not error.retriable:
                    raise
                wait = growing_wait(number) if error.wait_s is None else min(error.wait_s, LONGEST_NAMED_WAIT)
            await asyncio.sleep(wait)
        return await ask(key, request)

    async def _ask_server(self, key: str, request: Mapping[str, Any]) -> bytes:
        from chimera.serving.connections import BadAnswerError, Connections, NoAnswerError

        endpoint, where = self._endpoint(key), self.where(key)
        if self._shared.connections is None:
            self._shared.connections = Connections()
        url = f"{endpoint.base_url.rstrip('/')}/chat/completions"
        body = to_json(request, inf_nan_mode="constants")
        try:
            answer = await self._shared.connections.send(url, endpoint.api_key, body, limit_s=endpoint.timeout_s)
        except TimeoutError as error:
            raise ModelError(f"{where} did not answer within {endpoint.timeout_s:g} s", retriable=True) from error
        except BadAnswerError as error:
            raise ModelError(f"{where} {error}", retriable=True) from error
        except NoAnswerError as error:
            text = f"{where} cannot be reached ({error}): is the server running, and its address right?"
            raise UnreachableError(text, retriable=True) from error
        if answer.status in REFUSALS:
            raise RefusedRequest(f"{where} {_refused(answer)}", answer.error())
        if answer.status == 429:
            raise RateLimited(f"{where} {_refused(answer)}", named_wait(answer.headers))
        if not 200 <= answer.status < 300:
            about_key = _about_key(key, endpoint) if answer.status in (401, 403) else ""
            raise ModelError(
                f"{where} {_refused(answer)}{about_key}",
                retriable=answer.status in BUSY or answer.status >= 500,
                wait_s=named_wait(answer.headers),
            )
        return answer.content

    async def _ask_provider(self, key: str, request: Mapping[str, Any]) -> bytes:
        from chimera.serving.providers import ProviderModels

        if self._shared.providers is None:
            self._shared.providers = ProviderModels()
        answer = await self._shared.providers.answer(self._endpoint(key), request, self.where(key))
        return json.dumps(answer).encode()

    def where(self, key: str) -> str:
        """The model of `key` and its address, as named in errors."""
        return f"model {key!r} ({self._endpoint(key).place})"

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


class _Function(BaseModel, frozen=True, extra="allow"):
    name: str
    arguments: str | dict[str, Any] | list[Any] | None = None


class _Call(BaseModel, frozen=True, extra="allow"):
    id: Any = None
    function: _Function


class _Message(BaseModel, frozen=True, extra="allow"):
    content: str | list[Any] | None = None
    tool_calls: list[_Call] | None = None


class _Choice(BaseModel, frozen=True):
    message: _Message
    finish_reason: str | None = None


class _Usage(BaseModel, frozen=True):
    prompt_tokens: NonNegativeInt | None = None
    completion_tokens: NonNegativeInt | None = None


class _Response(BaseModel, frozen=True):
    """The parts of an OpenAI chat completion that are read."""

    id: str | None = None
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    weights_version: str | None = None
    error: Any = None


def read_completions(response: Mapping[str, Any] | bytes, where: str, place: str | None = None) -> list[Completion]:
    """The answers in an OpenAI chat completion, given as JSON text or parsed; `where` names the model in errors.

    Args:
        place: The server, which will get back what it wrote beyond OpenAI's fields; None: that is dropped.

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
        error = " ".join(words(read.error).split())[:LONGEST_MESSAGE]
        raise ModelError(f"{where} answered without choices{error and f': {error}'}", retriable=True)
    usage = read.usage or _Usage()
    each, more = divmod(usage.completion_tokens or 0, len(read.choices))
    return [
        _completion(read, choice, usage.prompt_tokens or 0, each + (number < more), place)
        for number, choice in enumerate(read.choices)
    ]


def _fault(response: Mapping[str, Any] | bytes, error: ValidationError) -> str:
    """What the server sent instead of a chat completion, and what the user should check."""
    if isinstance(response, bytes) and response.lstrip().startswith(b"<"):
        what = "a web page"
    elif response == b"":
        what = "nothing"
    else:
        fault = error.errors(include_url=False, include_input=False, include_context=False)[0]
        place = ".".join(map(str, fault["loc"])).removesuffix(".str") or "the whole answer"
        what = f"something else ({place}: {fault['msg'][:SHOWN]})"
    return f"{what} instead of a chat completion: is base_url an OpenAI-compatible server, with its /v1?"


def _completion(
    response: _Response, choice: _Choice, prompt_tokens: int, completion_tokens: int, place: str | None
) -> Completion:
    message, reason = choice.message, choice.finish_reason or ""
    text, calls = _text(message.content), _calls(message.tool_calls or ())
    reply: dict[str, Any] = {"role": "assistant", "content": text}
    if calls:
        reply["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.raw_arguments}}
            for call in calls
        ]
    refusal = "" if calls else _refusal(message)
    if refusal:
        reply["refusal"] = refusal
    elif reason == REFUSED and not calls:
        refusal = text or f"finish_reason {reason}"
    written = {**reply, WRITTEN: {"by": place, "message": message.model_dump(exclude_unset=True)}}
    # Our own servers, which name their weights, want nothing back.
    if place is not None and response.weights_version is None and as_sent(written, place) != as_sent(reply, place):
        reply = written
    return Completion(
        message=reply,
        content=text or "",
        tool_calls=calls,
        finish_reason=REFUSED if refusal else reason,
        prompt_tokens=prompt_tokens,
        completion_tokens=completion_tokens,
        response_id=response.id or "",
        weights_version=response.weights_version,
        refusal=refusal,
    )


def _text(content: str | list[Any] | None) -> str | None:
    """The text of a message without its other parts, such as thoughts."""
    if not isinstance(content, list):
        return content
    parts = (part if isinstance(part, dict) else {"text": part} for part in content)
    texts = (part.get("text") for part in parts if part.get("type", "text") in ("text", "output_text"))
    return "".join(text for text in texts if isinstance(text, str)) or None


def _refusal(message: _Message) -> str:
    """The words of a refusal, which may be a part of the content; empty if the message is none."""
    parts = [message.model_extra, *(message.content if isinstance(message.content, list) else ())]
    return " ".join(filter(None, (words(part.get("refusal")) for part in parts if isinstance(part, dict))))


def _calls(calls: Sequence[_Call]) -> tuple[ToolCall, ...]:
    """The tool calls of a message. A call without an id, or with that of another, gets one that all servers take."""
    read: dict[str, ToolCall] = {}
    for call in calls:
        usable = isinstance(call.id, str) and call.id and call.id not in read
        id_, text = call.id if usable else uuid.uuid4().hex[:9], _as_json(call.function.arguments)
        read[id_] = ToolCall(id_, call.function.name, _arguments(text), text)
    return tuple(read.values())


def _as_json(arguments: str | dict[str, Any] | list[Any] | None) -> str:
    """Arguments as JSON text, as OpenAI's servers send them. Some send null, nothing or [] where there are none."""
    if isinstance(arguments, dict | list):
        return json.dumps(arguments or {}, ensure_ascii=False)
    text = arguments or ""
    return "{}" if text.strip() in ("", "null") else text


def _arguments(raw: str) -> dict[str, Any] | None:
    try:
        # Python's json accepts half a surrogate pair, which cannot be encoded, and fails on deep nesting.
        value = from_json(raw)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None
