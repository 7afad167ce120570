"""The part of the OpenAI chat API that this server supports: requests, errors, and the envelope of answers.

An unsupported feature of a request is refused by name, never ignored.
"""

import secrets
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError, model_validator
from pydantic_core import ErrorDetails

FunctionName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.-]{1,64}$")]

NEUTRAL: dict[str, tuple[Any, ...]] = {
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "logit_bias": ({},),
    "modalities": (["text"],),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "reasoning_effort": ("none", "minimal", "low", "medium", "high", "xhigh"),
    "verbosity": ("low", "medium", "high"),
}
"""Known parameters that are not supported, with the values that have no effect; null is always accepted."""

WITHOUT_EFFECT = {
    *("user", "metadata", "store", "service_tier", "safety_identifier"),
    *("prompt_cache_key", "prompt_cache_retention", "prediction"),
}
"""Parameters that by definition do not change the answer."""
LONGEST_SHOWN = 80
"""Characters of a wrong value that an error repeats."""


class ApiError(Exception):
    """An error with its place in OpenAI's error form."""

    status = 500
    kind = "server_error"

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message, self.param, self.code = message, param, code

    def body(self) -> dict[str, Any]:
        return {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}}


class BadRequest(ApiError):
    """The request cannot be served as it is."""

    status, kind = 400, "invalid_request_error"


class NotFound(ApiError):
    """No such model."""

    status, kind = 404, "invalid_request_error"


def unknown_model(name: str, names: Iterable[str]) -> NotFound:
    """The error for a request to a model that the server does not have."""
    return NotFound(f"unknown model {name!r}: this server has {sorted(names)}", param="model", code="model_not_found")


def no_embedded_model(name: str, names: Iterable[str]) -> NotFound:
    """The error for new weights of a model that has none here."""
    return NotFound(f"no embedded model {name!r} to load weights into: there are {sorted(names)}")


class Unavailable(ApiError):
    """The server is shutting down."""

    status, kind = 503, "server_error"


class _RequestPart(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)


class Function(_RequestPart):
    """A tool's name, description and parameters (JSON schema)."""

    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = None


class OfferedTool(_RequestPart):
    """One offered tool."""

    type: Literal["function"]
    function: Function


class CalledFunction(_RequestPart):
    """The function and its arguments in an assistant message."""

    name: str
    arguments: str


class AssistantCall(_RequestPart):
    """One tool call of an assistant message."""

    id: str
    type: Literal["function"] = "function"
    function: CalledFunction


class TextPart(_RequestPart):
    """One text part of a message's content; other kinds of parts are refused."""

    type: Literal["text"]
    text: str


class ChatMessage(_RequestPart):
    """One message of the conversation; `function_call` (before there were `tool_calls`) and `audio` are refused."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[TextPart] | None = None
    tool_calls: list[AssistantCall] | None = None
    tool_call_id: str | None = None
    function_call: None = None
    audio: None = None
    name: str | None = None

    @property
    def text(self) -> str:
        if isinstance(self.content, list):
            return "".join(part.text for part in self.content)
        return self.content or ""


class JsonSchema(_RequestPart):
    """A named JSON schema; the name tells graders who asks."""

    name: str
    schema_: dict[str, Any] = Field(alias="schema")


class ResponseFormat(_RequestPart):
    """What form the answer takes; a schema always constrains decoding, whatever `strict` says."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None

    @model_validator(mode="after")
    def _schema_given(self) -> "ResponseFormat":
        if self.type == "json_schema" and self.json_schema is None:
            raise ValueError("type json_schema needs json_schema: {name, schema}")
        return self


class NamedToolChoice(_RequestPart):
    """A tool choice that names the function that must be called."""

    type: Literal["function"]
    function: Function


class Sampling(_RequestPart):
    """How tokens are drawn. A field that is None is the model's own (generation_config.json), otherwise off.

    Attributes:
        top_k: Only so many of the likeliest tokens; 0 and -1 mean all.
        min_p: Only tokens that are at least so likely, as a share of the likeliest one's probability.
        repetition_penalty: Divides positive and multiplies negative logits of tokens that the prompt or answer holds.
    """

    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Field(ge=0.01, le=10)] | None = None


class StreamOptions(_RequestPart):
    """What a stream has beyond its deltas: with `include_usage`, a last chunk with the usage of the whole answer."""

    include_usage: bool | None = None


class ChatRequest(Sampling):
    """POST /v1/chat/completions.

    Beyond OpenAI's API: `return_token_ids` adds `prompt_token_ids` to the response and `token_ids` to every choice,
    as vLLM does. With `logprobs` every choice also has `sampled_logprobs`: see `chimera.serving.embedded.completion`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    model: str
    messages: Annotated[list[ChatMessage], Field(min_length=1)]
    tools: list[OfferedTool] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedToolChoice | None = None
    parallel_tool_calls: bool | None = None
    response_format: ResponseFormat | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    stop: str | Annotated[list[str], Field(max_length=4)] | None = None
    seed: int | None = None
    n: Annotated[int, Field(ge=1, le=128)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    return_token_ids: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None

    @model_validator(mode="after")
    def _consistent(self) -> "ChatRequest":
        if self.top_logprobs and not self.logprobs:
            raise ValueError("top_logprobs needs logprobs: true")
        if "" in self.stops:
            raise ValueError("stop: an empty string would end every answer at once")
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options needs stream: true")
        if not self.tools and self.tool_choice not in (None, "none", "auto"):
            raise ValueError("tool_choice needs tools")
        for number, message in enumerate(self.messages):
            if message.role == "tool" and message.tool_call_id is None:
                raise ValueError(f"messages.{number}: a tool's message needs tool_call_id, the id of its call")
        names = [tool.function.name for tool in self.tools or []]
        if len(set(names)) != len(names):
            raise ValueError(f"tools: names must be unique, not {names}")
        if isinstance(self.tool_choice, NamedToolChoice) and self.tool_choice.function.name not in names:
            raise ValueError(f"tool_choice names {self.tool_choice.function.name!r}, and the tools are {names}")
        return self

    @property
    def stops(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    @property
    def token_limit(self) -> int | None:
        """The most tokens to generate; None: as many as fit."""
        limits = [limit for limit in (self.max_tokens, self.max_completion_tokens) if limit is not None]
        return min(limits, default=None)


def parse_request(body: Mapping[str, Any]) -> ChatRequest:
    """Read a request body. A parameter that this server does not support is an error, never ignored.

    Raises:
        BadRequest: naming the parameter.
    """
    fields: dict[str, Any] = {}
    for name, value in body.items():
        if name in WITHOUT_EFFECT or value is None:
            continue
        if name in NEUTRAL:
            if value not in NEUTRAL[name]:
                raise BadRequest(f"{name}={value!r} is not supported by this server: leave {name} out", param=name)
            continue
        if name not in ChatRequest.model_fields:
            raise BadRequest(f"unknown parameter {name!r}: this server does not support it, leave it out", param=name)
        fields[name] = value
    try:
        return ChatRequest.model_validate(fields)
    except ValidationError as error:
        raise _refusal(error.errors(include_url=False, include_context=False), fields) from error


def _refusal(faults: Sequence[ErrorDetails], fields: dict[str, Any]) -> BadRequest:
    """The error for the fault that says most: a union has one for each of its cases, most of them not meant."""

    def weight(fault: ErrorDetails) -> tuple[bool, int]:
        return not fault["type"].endswith("_type"), len(_place(fault, fields))

    fault = max(faults, key=weight)
    where = ".".join(map(str, _place(fault, fields)))
    text, value = fault["msg"].removeprefix("Value error, "), fault["input"]
    if fault["type"].endswith(("_type", "literal_error")) and not isinstance(value, dict | list):
        text += f", not {str(value)[:LONGEST_SHOWN]!r}" if isinstance(value, str) else f", not {value!r}"
    return BadRequest(f"{where}: {text}" if where else text, param=where or None)


def _place(fault: ErrorDetails, fields: Any) -> list[Any]:
    """Where in the request's `fields` the fault is; pydantic's names of a union's cases are left out."""
    steps: list[Any] = []
    step: Any
    for step in fault["loc"]:
        if (isinstance(fields, dict) and step in fields) or (isinstance(fields, list) and isinstance(step, int)):
            steps.append(step)
            fields = fields[step]
    return [*steps, fault["loc"][-1]] if fault["type"] == "missing" else steps


def new_id() -> str:
    return f"chatcmpl-{secrets.token_hex(12)}"


def envelope(model: str, version: str, prompt_tokens: int, generated: int, cached: int) -> dict[str, Any]:
    """A completion without choices."""
    return {
        "id": new_id(),
        "object": "chat.completion",
        "created": int(time.time()),
        "model": model,
        "system_fingerprint": version,
        "weights_version": version,
        "choices": [],
        "usage": {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": generated,
            "total_tokens": prompt_tokens + generated,
            "prompt_tokens_details": {"cached_tokens": cached},
        },
    }
