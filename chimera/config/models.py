"""Models: the slots that roles use, and the embedded server."""

import re
from collections.abc import Mapping
from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from chimera.config.loader import ConfigSection


def http_address(value: str | None) -> str | None:
    """`value`, if it is an address that may stand in a configuration."""
    if value is not None and not re.fullmatch(r"https?://[^\s/@]+(/[^\s@]*)?", value):
        raise ValueError("it must be an http(s) address without user or password, such as http://127.0.0.1:11434/v1")
    return value


def variable_name(value: str | None) -> str | None:
    """`value`, if it is the name of an environment variable."""
    if value is not None and not re.fullmatch(r"[A-Z][A-Z0-9_]*", value):
        raise ValueError("must be the name of an environment variable, such as OPENAI_API_KEY, never the key itself")
    return value


Precision = Literal["float32", "bfloat16"]
"""The numbers that a model computes with."""


class ModelConfig(ConfigSection):
    """One slot: a named set of weights, or an endpoint, that roles use, and how it is sampled."""

    like: str | None = Field(
        default=None, min_length=1, description="the slot from which it takes what it does not set itself"
    )
    kind: Literal["embedded", "endpoint", "rubric"] = Field(
        default="embedded", description="in-project server, any OpenAI-compatible server, or deterministic grader"
    )
    path: str = Field(default="nano", min_length=1, description="embedded: 'nano', a folder, or a hub name")
    dtype: Precision = Field(
        default="float32",
        description="embedded: what the server keeps weights in; bfloat16 halves their memory, and eight requests at "
        "a time take as long as with float32, or less where the processor multiplies bfloat16 itself; PPO refuses it, "
        "because it learns from float32's probabilities",
    )
    base_url: str | None = Field(
        default=None,
        description="endpoint: address of an OpenAI-compatible server, ending in /v1, without user or password; "
        "with a provider the provider's address, if it is not the usual one",
    )
    provider: str | None = Field(
        default=None,
        pattern=r"^[a-z][a-z0-9_]*$",
        description="endpoint: a provider of LangChain's init_chat_model, such as anthropic, openai, azure_openai, "
        "bedrock_converse, google_genai, ollama; without it any OpenAI-compatible server at base_url",
    )
    provider_options: dict[str, Any] = Field(
        default={},
        description="provider: further arguments of LangChain's chat model, such as {region_name: eu-central-1}",
    )
    model: str | None = Field(default=None, min_length=1, description="endpoint: the model's name there")
    api_key_env: str | None = Field(
        default=None,
        description="endpoint: name of the environment variable with the key, never the key itself",
    )
    structured: Literal["auto", "always", "final", "never"] = Field(
        default="auto",
        description="when to send a JSON schema: always, only when no tools are offered (final), or never; "
        "auto: final for endpoints, since some servers never call a tool beside a schema, always for the others",
    )
    temperature: float = Field(default=1.0, ge=0, le=2, description="sampling temperature; 0 is greedy")
    top_p: float = Field(default=1.0, gt=0, le=1, description="nucleus sampling: share of probability kept")
    max_tokens: int = Field(default=768, ge=1, le=1_000_000, description="longest answer, in tokens")
    max_completion_tokens: int | None = Field(
        default=None,
        ge=1,
        le=1_000_000,
        description="endpoint: sent in place of max_tokens, for reasoning models; it counts their thoughts too",
    )
    reasoning_effort: str | None = Field(
        default=None, min_length=1, description="endpoint: sent if it is set, such as low, medium or high"
    )
    extra_body: dict[str, Any] = Field(
        default={}, description="endpoint: further fields of each request, such as {top_k: 20}"
    )
    timeout_s: float = Field(default=60.0, gt=0, le=604_800, description="seconds that one model call may take")

    @field_validator("base_url")
    @classmethod
    def _address(cls, value: str | None) -> str | None:
        return http_address(value)

    @field_validator("api_key_env")
    @classmethod
    def _variable_name(cls, value: str | None) -> str | None:
        return variable_name(value)

    @model_validator(mode="after")
    def _endpoint_is_complete(self) -> Self:
        if self.kind == "endpoint" and (self.model is None or (self.base_url is None and self.provider is None)):
            raise ValueError("kind 'endpoint' needs both base_url and model, or provider and model")
        if self.kind == "endpoint" and self.provider is not None and self.structured == "always":
            raise ValueError(
                "structured 'always' cannot work with a provider: LangChain's chat models take a JSON schema or tools, "
                "not both; leave it at auto"
            )
        return self

    @property
    def sends_schema(self) -> Literal["always", "final", "never"]:
        """The value of `structured`; "auto" depends on the model's kind."""
        if self.structured == "auto":
            return "final" if self.kind == "endpoint" else "always"
        return self.structured

    @property
    def request_fields(self) -> dict[str, Any]:
        """The settings of what OpenAI-compatible servers are sent beyond the usual, by their names."""
        if self.kind != "endpoint" or self.provider is not None:
            return {}
        return {name: getattr(self, name) for name in ("max_completion_tokens", "reasoning_effort", "extra_body")}

    def unused(self) -> Mapping[str, str]:
        """The keys that a model of this kind does not read."""
        found = dict.fromkeys(UNUSED_OF_KIND[self.kind], f"the model's kind is {self.kind!r}")
        if self.kind == "endpoint" and self.provider is None:
            found["provider_options"] = "no provider is set"
        elif self.kind == "endpoint":
            reason = "LangChain's chat model has its own arguments (provider_options)"
            found |= dict.fromkeys(("max_completion_tokens", "reasoning_effort", "extra_body"), reason)
        if self.kind == "endpoint" and self.max_completion_tokens is not None:
            found.setdefault("max_tokens", "max_completion_tokens is sent in its place")
        return found


OF_ENDPOINTS = (
    *("base_url", "provider", "provider_options", "model", "api_key_env"),
    *("max_completion_tokens", "reasoning_effort", "extra_body"),
)
UNUSED_OF_KIND: Mapping[str, tuple[str, ...]] = {
    "embedded": OF_ENDPOINTS,
    "endpoint": ("path", "dtype"),
    "rubric": ("path", "dtype", *OF_ENDPOINTS, "structured", "temperature", "top_p", "max_tokens"),
}
"""Keys of ModelConfig that a kind of model does not read."""


SLOTS: Mapping[str, ModelConfig] = {
    "junior": ModelConfig(),
    "supervisor": ModelConfig(like="junior"),
    "senior": ModelConfig(like="junior"),
    "refiner": ModelConfig(like="senior"),
    "board": ModelConfig(kind="rubric"),
    "principal": ModelConfig(kind="rubric"),
    "judge": ModelConfig(kind="rubric"),
}
"""The slots that every configuration has."""


class ServingConfig(ConfigSection):
    """The embedded model server."""

    slots: int = Field(default=16, ge=1, le=4096, description="requests decoded together")
    context_length: int = Field(
        default=2048, ge=64, le=1_000_000, description="prompt plus answer, in tokens; longer prompts get a 400"
    )
    threads: int = Field(default=1, ge=1, le=1024, description="torch threads of the server process")
    answers: int = Field(
        default=4096,
        ge=0,
        le=1_000_000,
        description="last answers that are kept: an equal request with a seed to the same weights is not decoded again",
    )
