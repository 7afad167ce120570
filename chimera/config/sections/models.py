"""Models: the slots that roles use, and the embedded server."""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, field_validator, model_validator

from chimera.config.loader import ConfigSection, When


def _http_address(value: str) -> str:
    try:
        sound = re.fullmatch(r"https?://[^\s/@:][^\s/@]*(/[^\s@]*)?", value) and urlsplit(value).port != 0
    except ValueError:  # Host or port is none.
        sound = False
    if not sound:
        raise ValueError("it must be http(s)://HOST:PORT/PATH without user or password, like http://127.0.0.1:11434/v1")
    return value


def _variable_name(value: str) -> str:
    if not re.fullmatch(r"[A-Z][A-Z0-9_]*", value):
        raise ValueError("must be the name of an environment variable, such as OPENAI_API_KEY, never the key itself")
    return value


HttpAddress = Annotated[str, AfterValidator(_http_address)]
"""An address that may stand in a configuration."""
VariableName = Annotated[str, AfterValidator(_variable_name)]
"""The name of an environment variable."""

OWN_SAMPLING = ("top_k", "min_p", "repetition_penalty")
"""How tokens are drawn beside temperature and top_p, in `extra_body`; a model's makers may have named values for it."""
Precision = Literal["float32", "bfloat16"]
"""The numbers that a model computes with."""
ENDPOINT, VLLM, WEIGHTS = (
    When.equal("kind", "endpoint"),
    When.equal("kind", "vllm"),
    When.equal("kind", "embedded", "vllm"),
)
SAMPLED = When.unless("kind", "rubric")
OWN_SERVERS, OPENAI = When.set("python"), When.unset("provider")


class ModelConfig(ConfigSection):
    """One slot: a named set of weights, or an endpoint, that roles use, and how it is sampled."""

    like: str | None = Field(
        default=None, min_length=1, description="the slot from which it takes what it does not set itself"
    )
    kind: Literal["embedded", "vllm", "endpoint", "rubric"] = Field(
        default="embedded",
        description="in-project server, vLLM servers whose weights follow training, any OpenAI-compatible server, or "
        "deterministic grader",
    )
    path: Annotated[str, WEIGHTS] = Field(
        default="nano",
        min_length=1,
        description="embedded, vllm: a folder, a GGUF file, a hub name, smollm2 (fetched at its first use), or a "
        "bundled model (nano, nano_review)",
    )
    dtype: Annotated[Precision, WEIGHTS] = Field(
        default="float32",
        description="embedded, vllm: what the server keeps weights in; bfloat16 halves their memory, and eight "
        "requests at a time take as long as with float32, or less where the processor multiplies bfloat16 itself; PPO "
        "refuses it, because it learns from float32's probabilities",
    )
    base_url: Annotated[HttpAddress | None, ENDPOINT] = Field(
        default=None,
        description="endpoint: address of an OpenAI-compatible server, ending in /v1, without user or password; "
        "with a provider the provider's address, if it is not the usual one",
    )
    provider: Annotated[str | None, ENDPOINT] = Field(
        default=None,
        pattern=r"^[a-z][a-z0-9_]*$",
        description="endpoint: a provider of LangChain's init_chat_model, such as anthropic, openai, azure_openai, "
        "bedrock_converse, google_genai, ollama; without it any OpenAI-compatible server at base_url",
    )
    provider_options: Annotated[dict[str, Any], ENDPOINT, When.set("provider")] = Field(
        default={},
        description="provider: further arguments of LangChain's chat model, such as {region_name: eu-central-1}",
    )
    model: Annotated[str | None, ENDPOINT] = Field(
        default=None, min_length=1, description="endpoint: the model's name there"
    )
    api_key_env: Annotated[VariableName | None, When.equal("kind", "endpoint", "vllm"), When.unset("python")] = Field(
        default=None,
        description="endpoint, vllm with urls: name of the environment variable with the key, never the key itself",
    )
    python: Annotated[str | None, VLLM] = Field(
        default=None,
        min_length=1,
        description="vllm: the Python of the environment in which vLLM is installed; the run starts its own servers",
    )
    urls: Annotated[list[HttpAddress], VLLM] = Field(
        default=[],
        description="vllm: addresses of servers that run already, in place of python, such as [http://127.0.0.1:8001]",
    )
    replicas: Annotated[int, VLLM, OWN_SERVERS] = Field(
        default=1, ge=1, le=64, description="vllm with python: servers that share the slot's calls"
    )
    gpus: Annotated[list[str], VLLM, OWN_SERVERS] = Field(
        default=[],
        description="vllm with python: the GPUs of each replica by their numbers, such as ['4', '5'], or ['4,5'] for "
        "one replica that is divided among two; empty: its servers compute on the processor",
    )
    cache_gib: Annotated[float, VLLM, OWN_SERVERS] = Field(
        default=1.0, gt=0, le=10_000, description="vllm with python: GiB of key/value cache of each replica"
    )
    adapter_rank: Annotated[int, VLLM] = Field(
        default=0,
        ge=0,
        le=512,
        description="vllm: largest rank of LoRA adapters that are published alone, beside the weights that they "
        "change, while the servers go on answering; it must be at least the lora_rank of the slot's phases; 0: merged "
        "weights are published whole",
    )
    sleep: Annotated[bool, VLLM] = Field(
        default=False,
        description="vllm: its servers give their GPUs' memory away while a phase of the run computes an update, and "
        "answer nothing meanwhile (vLLM's sleep mode, which needs GPUs)",
    )
    args: Annotated[list[str], VLLM, OWN_SERVERS] = Field(
        default=[], description="vllm with python: further arguments of its servers, such as [--enforce-eager]"
    )
    start_timeout_s: Annotated[float, VLLM] = Field(
        default=600.0, gt=0, le=86_400, description="vllm: seconds in which its servers have to answer"
    )
    structured: Annotated[Literal["auto", "always", "final", "never"], SAMPLED] = Field(
        default="auto",
        description="when to send a JSON schema: always, only when no tools are offered (final), or never; "
        "auto: final for endpoints and vllm, since some servers never call a tool beside a schema, always for the rest",
    )
    temperature: Annotated[float, SAMPLED] = Field(
        default=1.0, ge=0, le=2, description="sampling temperature; 0 is greedy"
    )
    max_tokens: Annotated[int, SAMPLED] = Field(
        default=768, ge=1, le=1_000_000, description="longest answer, in tokens"
    )
    max_completion_tokens: Annotated[int | None, ENDPOINT, OPENAI] = Field(
        default=None,
        ge=1,
        le=1_000_000,
        description="endpoint: sent in place of max_tokens, for reasoning models; it counts their thoughts too",
    )
    reasoning_effort: Annotated[str | None, ENDPOINT, OPENAI] = Field(
        default=None, min_length=1, description="endpoint: sent if it is set, such as low, medium or high"
    )
    extra_body: Annotated[dict[str, Any], SAMPLED, OPENAI] = Field(
        default={},
        description="further fields of each request, such as {top_p: 0.9, top_k: 20, min_p: 0.1, repetition_penalty: "
        "1.1}; without them top_p is 1, and the others are the model's own (embedded: of its generation_config.json)",
    )
    timeout_s: Annotated[float | None, SAMPLED] = Field(
        default=None, gt=0, le=604_800, description="seconds that one call may take; null: 60, with weights here 600"
    )

    @field_validator("urls")
    @classmethod
    def _without_slash(cls, value: list[str]) -> list[str]:
        return [address.rstrip("/") for address in value]

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

    @model_validator(mode="after")
    def _vllm_is_complete(self) -> Self:
        if self.kind != "vllm":
            return self
        if bool(self.python) == bool(self.urls):
            raise ValueError(
                "kind 'vllm' needs either python, the Python of an environment with vLLM in it, or urls of servers "
                "that run already"
            )
        if self.gpus and len(self.gpus) != self.replicas:
            raise ValueError(
                f"gpus names {len(self.gpus)} places, and there are {self.replicas} replicas: name as many"
            )
        if self.sleep and self.python and not self.gpus:
            raise ValueError("sleep needs gpus: vLLM on a processor keeps its memory whatever it is told")
        return self

    @property
    def call_limit_s(self) -> float:
        """Seconds that one call may take. On the run's own machine calls wait for each other."""
        return self.timeout_s or (600.0 if self.has_weights else 60.0)

    @property
    def has_weights(self) -> bool:
        """True if the run has access to the weights, so that it can learn and publish them."""
        return self.kind in ("embedded", "vllm")

    @property
    def sends_schema(self) -> Literal["always", "final", "never"]:
        """The value of `structured`; "auto" depends on the model's kind."""
        if self.structured == "auto":
            return "final" if self.kind in ("endpoint", "vllm") else "always"
        return self.structured

    @property
    def request_fields(self) -> dict[str, Any]:
        """The settings of what OpenAI-compatible servers are sent beyond the usual, by their names."""
        if self.provider is not None:
            return {}
        names = ("extra_body",) if self.has_weights else ("max_completion_tokens", "reasoning_effort", "extra_body")
        return {name: getattr(self, name) for name in names}


OF_VLLM = tuple(name for name, field in ModelConfig.model_fields.items() if VLLM in field.metadata)
"""Keys of ModelConfig that only vLLM's slots have."""
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
    threads: int = Field(default=1, ge=1, le=1024, description="torch threads of each process that decodes")
    processes: int | None = Field(
        default=None,
        ge=1,
        le=1024,
        description="processes that decode, each with all weights and its share of the slots; null: two where there "
        "are two cores and the weights of both take at most a quarter of the memory, otherwise one",
    )
    answers: int = Field(
        default=4096,
        ge=0,
        le=1_000_000,
        description="last answers that are kept: an equal request with a seed to the same weights is not decoded again",
    )
