"""The configuration: one frozen, typed tree. Every key has an effect; unknown keys are errors."""

import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from chimera.config.data import DataConfig
from chimera.config.evaluation import EvaluationConfig
from chimera.config.learning import GateConfig, WandbConfig
from chimera.config.loader import ConfigSection, check_keys, effective, overlay, validate, without_effect
from chimera.config.pipeline import DEFAULT, PhaseSettings, Pipeline, algorithm_of, find_algorithm
from chimera.config.roles import GRADING, JUDGE, RolesConfig
from chimera.config.source import COMMAND_LINE, Setting, parse_overrides, read_yaml, to_yaml
from chimera.core.errors import ConfigError
from chimera.core.types import Decision


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


class ModelConfig(ConfigSection):
    """One slot: a named set of weights, or an endpoint, that roles use, and how it is sampled."""

    like: str | None = Field(
        default=None, min_length=1, description="the slot from which it takes what it does not set itself"
    )
    kind: Literal["embedded", "endpoint", "rubric"] = Field(
        default="embedded", description="in-project server, any OpenAI-compatible server, or deterministic grader"
    )
    path: str = Field(default="nano", min_length=1, description="embedded: 'nano', a folder, or a hub name")
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
    "endpoint": ("path",),
    "rubric": ("path", *OF_ENDPOINTS, "structured", "temperature", "top_p", "max_tokens"),
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
TAKEN = ("base", "final", "all", "ledger", "eval", "parts", "stages", "confusion")
"""Names of stages, metrics and files. No phase may have such a name."""


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


Quotes = Literal["read", "numbered", "free"]
"""How roles quote (`society.quotes`)."""


class SocietyConfig(ConfigSection):
    """How the society works on a task."""

    evidence: Literal["retrieved", "given"] = Field(
        default="retrieved", description="retrieved: juniors find the abstract by search; given: it is in their prompt"
    )
    quotes: Quotes = Field(
        default="read",
        description="read: evidence is chosen among the sentences that a role has read; numbered: by their numbers, "
        "for long texts or servers that limit enums; free: a role writes its quotes itself",
    )
    refiner: Literal["reads", "trusts"] = Field(
        default="reads", description="reads: the refiner sees the passages that the juniors found; trusts: it does not"
    )
    refiner_max_chars: int = Field(
        default=1200, ge=100, le=1_000_000, description="passages that the refiner is shown, in characters altogether"
    )
    max_tool_calls: int = Field(
        default=2, ge=0, le=100, description="tool calls that one role may make in one turn of the society"
    )
    max_major_revisions: int = Field(default=1, ge=0, le=100, description="returns to the protocol designer")
    max_critical_revisions: int = Field(default=1, ge=0, le=100, description="returns to the hypothesis refiner")
    max_revisions: int = Field(default=2, ge=0, le=200, description="returns in total")
    confirm: tuple[Decision, ...] = Field(
        default=(), description="ask: decisions that take effect only when a person has confirmed them, such as [GO]"
    )
    node_timeout_s: float = Field(
        default=180.0, gt=0, le=604_800, description="seconds that one role may take in one visit"
    )
    node_retries: int = Field(
        default=1, ge=0, le=100, description="further tries of a role after a retriable model error"
    )

    def unused(self) -> Mapping[str, str]:
        """Limits of revisions if the total is 0, an unreachable total, and the size of texts that are not shown."""
        found: dict[str, str] = {}
        reachable = self.max_major_revisions + self.max_critical_revisions
        if self.max_revisions == 0:
            found |= dict.fromkeys(("max_major_revisions", "max_critical_revisions"), "society.max_revisions is 0")
        elif self.max_revisions > reachable:
            found["max_revisions"] = f"max_major_revisions and max_critical_revisions allow only {reachable} in total"
        if self.evidence == "given":
            found |= dict.fromkeys(("refiner", "refiner_max_chars"), "society.evidence=given shows it the abstract")
        elif self.refiner == "trusts":
            found["refiner_max_chars"] = "society.refiner is 'trusts'"
        return found


class McpServer(ConfigSection):
    """One MCP server, whose tools roles may call: a program of this machine, or an address."""

    command: tuple[str, ...] = Field(
        default=(), description="program with its arguments, which speaks MCP through its input and output"
    )
    env: tuple[str, ...] = Field(
        default=(), description="environment variables that the program gets, besides PATH, HOME and the like"
    )
    url: str | None = Field(default=None, description="address of a server that speaks MCP over streamable HTTP")
    api_key_env: str | None = Field(
        default=None, description="name of the environment variable with the key of the server at url"
    )

    @field_validator("url")
    @classmethod
    def _address(cls, value: str | None) -> str | None:
        return http_address(value)

    @field_validator("env")
    @classmethod
    def _names(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(name for name in value if variable_name(name))

    @field_validator("api_key_env")
    @classmethod
    def _variable(cls, value: str | None) -> str | None:
        return variable_name(value)

    def unused(self) -> Mapping[str, str]:
        """What a program does not read, or an address."""
        return {"env": "the server is not started here"} if self.url else {"api_key_env": "the server has no url"}


class ToolsConfig(ConfigSection):
    """The tools' back ends. Live ones need the network, and only Tavily needs a key."""

    literature: Literal["local", "pubmed", "tavily"] = Field(
        default="local", description="abstracts of the data set, PubMed E-utilities, or Tavily web search"
    )
    trials: Literal["local", "clinicaltrials", "tavily"] = Field(
        default="local", description="clinical trials: the local index, ClinicalTrials.gov, or Tavily web search"
    )
    protein: Literal["local", "uniprot"] = Field(default="local", description="proteins: the database, or UniProt")
    ontology: Literal["local", "quickgo"] = Field(
        default="local", description="gene ontology: the database, or QuickGO"
    )
    results: int = Field(default=1, ge=1, le=10, description="passages that one search returns")
    max_chars: int = Field(default=1200, ge=100, le=1_000_000, description="length limit of one passage, in characters")
    timeout_s: float = Field(
        default=10.0,
        gt=0,
        le=604_800,
        description="seconds that one live request, or one call of a LangChain tool, may take",
    )
    retries: int = Field(default=2, ge=0, le=100, description="further tries after 429 or 5xx")
    database: Path | None = Field(
        default=None, description="SQLite file of proteins and GO terms; the shipped seed otherwise"
    )
    mcp: dict[str, McpServer] = Field(default={}, description="MCP servers by free names")

    def secret_names(self) -> tuple[str, ...]:
        """The environment variables that MCP servers name."""
        named = [name for server in self.mcp.values() for name in (*server.env, server.api_key_env) if name]
        return tuple(dict.fromkeys(named))

    @property
    def local(self) -> bool:
        """True if no back end uses the network."""
        return (self.literature, self.trials, self.protein, self.ontology) == ("local",) * 4

    def unused(self) -> Mapping[str, str]:
        """Retries if no back end is live; the database if none of its tools is local."""
        found: dict[str, str] = {}
        if self.local:
            found["retries"] = "no back end uses the network (all are 'local')"
        if self.protein != "local" and self.ontology != "local":
            found["database"] = "tools.protein and tools.ontology are both live"
        return found


class RewardConfig(ConfigSection):
    """Weights of the reward's named parts. Each part is logged; the reward is the sum of the parts."""

    novelty: float = Field(default=0.1, ge=-1000, le=1000, description="weight of the judge's score for novelty")
    feasibility: float = Field(
        default=0.2, ge=-1000, le=1000, description="weight of the judge's score for feasibility"
    )
    impact: float = Field(default=0.3, ge=-1000, le=1000, description="weight of the judge's score for impact")
    clarity: float = Field(default=0.15, ge=-1000, le=1000, description="weight of the judge's score for clarity")
    groundedness: float = Field(
        default=0.2, ge=-1000, le=1000, description="weight of the judge's score for groundedness"
    )
    efficiency: float = Field(default=0.05, ge=-1000, le=1000, description="weight of the judge's score for efficiency")
    alignment: float = Field(default=1.0, ge=-1000, le=1000, description="when the answer is the label")
    parsed: float = Field(
        default=0.05,
        ge=-1000,
        le=1000,
        description="per rollout: share of role outputs that parsed at the first attempt",
    )
    call_valid: float = Field(default=0.05, ge=-1000, le=1000, description="per valid tool call, at most three count")
    tool_succeeded: float = Field(
        default=0.05, ge=-1000, le=1000, description="per tool call that succeeded, at most three count"
    )
    repeated_call: float = Field(default=-0.1, ge=-1000, le=0, description="per identical repeated tool call")
    unverifiable_quote: float = Field(
        default=-0.1, ge=-1000, le=0, description="per final evidence sentence that no source contains"
    )
    overlong: float = Field(default=-0.1, ge=-1000, le=0, description="when an answer was cut at its token limit")


class RolloutsConfig(ConfigSection):
    """The runner processes and the servers between them and the models."""

    runners: int = Field(default=8, ge=1, le=1024, description="runner processes, each works on one rollout at a time")
    timeout_s: float = Field(
        default=300.0, gt=0, le=604_800, description="seconds after which a rollout counts as failed"
    )
    max_attempts: int = Field(
        default=3,
        ge=1,
        le=100,
        description="attempts of one rollout whose runner died or hung; a failed answer is not repeated",
    )
    exploration: float = Field(
        default=0.5,
        ge=0,
        le=1,
        description="share of choices among hypotheses in training rollouts that are made evenly at random",
    )


GatewayEngine = Literal["thin", "litellm"]
"""The program that attributes, forwards and records model calls (`gateway.engine`)."""


class GatewayConfig(ConfigSection):
    """The process that forwards model calls from runners to models."""

    engine: GatewayEngine = Field(
        default="thin",
        description="thin: our own; litellm: Agent Lightning's LLMProxy, which takes twenty times the processor time",
    )
    store_timeout_s: float = Field(
        default=60.0,
        gt=0,
        le=604_800,
        description="thin: seconds without the store, which records every call, that end the run",
    )

    def unused(self) -> Mapping[str, str]:
        """The time limit of the store, for which LiteLLM's gateway does not wait."""
        return {"store_timeout_s": "gateway.engine is 'litellm'"} if self.engine == "litellm" else {}


class Config(ConfigSection):
    """The whole tree."""

    seed: int = Field(
        default=0, ge=0, le=2**32 - 1, description="seed of everything random that has no seed of its own"
    )
    runs_dir: Path = Field(default=Path("runs"), description="folder in which runs are kept")
    data: DataConfig = DataConfig()
    models: dict[str, ModelConfig] = Field(default=dict(SLOTS), description="slots by free names")
    roles: RolesConfig = RolesConfig()
    serving: ServingConfig = ServingConfig()
    society: SocietyConfig = SocietyConfig()
    tools: ToolsConfig = ToolsConfig()
    reward: RewardConfig = RewardConfig()
    rollouts: RolloutsConfig = RolloutsConfig()
    gateway: GatewayConfig = GatewayConfig()
    pipeline: Pipeline = Field(default=DEFAULT, validate_default=True, description="phases, in their order")
    gate: GateConfig = GateConfig()
    wandb: WandbConfig = WandbConfig()
    evaluation: EvaluationConfig = EvaluationConfig()

    @field_validator("models", mode="before")
    @classmethod
    def _with_usual_slots(cls, value: Any) -> Any:
        return {**SLOTS, **value} if isinstance(value, Mapping) else value

    @model_validator(mode="after")
    def _names_are_known(self) -> Self:
        for name in self.pipeline:
            if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or name in (*type(self).model_fields, *TAKEN):
                raise ValueError(
                    f"pipeline.{name}: a phase's name has small letters, digits and _ only, and is none of "
                    f"{', '.join(TAKEN)} and the sections of the configuration"
                )
        for role, slot in self.roles.slots().items():
            if slot not in self.models:
                raise ValueError(f"roles.{role}.model is {slot!r}, {_near(slot, self.models)}")
        for name, phase in self.pipeline.items():
            for slot in phase.asks():
                if slot not in self.models:
                    raise ValueError(f"pipeline.{name} asks the model of {slot!r}, {_near(slot, self.models)}")
        for reference, name in self.roles.mcp().items():
            server = self.tools.mcp.get(name)
            if server is None or bool(server.command) == bool(server.url):
                fault = (
                    "which is not in tools.mcp" if server is None else "which needs a command or a url, and not both"
                )
                raise ValueError(f"the tool {reference!r} is one of the server {name!r}, {fault}")
        for name, model in self.models.items():
            if model.like is not None and model.like not in self.models:
                raise ValueError(f"models.{name}.like is {model.like!r}, {_near(model.like, self.models)}")
        foreign = [name for name, model in self.served().items() if model.kind == "endpoint" and model.provider]
        if foreign and self.gateway.engine == "litellm":
            raise ValueError(
                "gateway.engine=litellm records only OpenAI-compatible servers, and "
                f"models.{foreign[0]} has a provider: set gateway.engine=thin"
            )
        if near := self.evaluation.unknown_prices(set(self.models) - {self.roles.Judge.model}):
            raise ValueError(near)
        return self

    def slot(self, role: str) -> str:
        """The slot whose model plays `role`."""
        return self.roles.slots()[role]

    def used(self) -> dict[str, ModelConfig]:
        """The slots that roles use."""
        playing = set(self.roles.slots().values())
        return {name: model for name, model in self.models.items() if name in playing}

    def served(self) -> dict[str, ModelConfig]:
        """The slots that training serves: those that roles use, and those whose models its phases call."""
        asked = {slot for phase in self.pipeline.values() for slot in phase.asks()}
        return {name: model for name, model in self.models.items() if name in asked or name in self.used()}

    def secret_names(self) -> tuple[str, ...]:
        """The environment variables that models and MCP servers name."""
        keys = (model.api_key_env for model in self.models.values())
        return tuple(sorted({*filter(None, keys), *self.tools.secret_names()}))

    def unused(self) -> Mapping[str, str]:
        """Keys that have no effect because of another section's values."""
        found: dict[str, str] = {}
        for name in set(self.tools.mcp) - set(self.roles.mcp().values()):
            reason = f"no role has a tool of the server {name!r} (mcp:{name}/tool)"
            found |= {f"tools.mcp.{name}.{key}": reason for key in McpServer.model_fields}
        serving = {*self.served(), *(model.like for model in self.models.values() if model.like)}
        for name in set(self.models) - serving:
            reason = f"no role uses the slot {name!r} (roles.<role>.model)"
            found |= {f"models.{name}.{key}": reason for key in ModelConfig.model_fields}
        if all(model.kind != "embedded" for model in self.served().values()):
            found |= {f"serving.{key}": "no model is 'embedded'" for key in ServingConfig.model_fields}
        if self.tools.local and not self.roles.foreign():
            found["tools.timeout_s"] = "all back ends are 'local', and roles have Chimera's own tools only"
        for role, slot in self.roles.slots().items():
            if role == JUDGE:
                found[f"roles.{role}.tools"] = "the judge calls no tools"
            elif self.models[slot].kind == "rubric":
                found[f"roles.{role}.tools"] = f"a rubric plays the role (models.{slot}.kind)"
        if self.society.max_tool_calls == 0:
            reason = "society.max_tool_calls is 0"
            found |= {f"tools.{key}": reason for key in ToolsConfig.model_fields}
            found |= {f"roles.{role}.tools": reason for role in self.roles.slots()}
        return found


def load_config(path: Path | str | None = None, overrides: Sequence[str] = (), *, own_question: bool = False) -> Config:
    """Read the configuration: defaults, then the YAML file, then `key=value` overrides.

    A file's `pipeline` lists all phases of the run; a file without one gets the default phases. `sft.epochs` is short
    for `pipeline.sft.epochs`. A key of the file that has no effect gives a warning on stderr.

    Args:
        path: a YAML file; None keeps the defaults, which configs/local.yaml spells out.
        overrides: such as "gather.tasks=20"; values are YAML, the last override of a key counts.
        own_question: the society will answer a user's question, so no article is blocked in live searches.

    Raises:
        ConfigError: names the key, where it was set, and the nearest valid key or what is allowed.
    """
    file = {} if path is None else read_yaml(Path(path))
    given = parse_overrides(overrides)
    phases = _phases(file, given)
    file, given = _in_full(file, phases), _in_full(given, phases)
    tree = _shape(overlay(file, given), phases)
    settings = _inherit(overlay(check_keys(tree, file), check_keys(tree, given)))
    config = validate(tree, settings)
    for setting, sentence in without_effect(config, settings):
        if setting.place == COMMAND_LINE:
            raise ConfigError(sentence)
        print(f"warning: {sentence}", file=sys.stderr)
    _check_players(config)
    if not own_question:
        _check_evidence(config)
    return config


def dump_config(config: Config) -> str:
    """The whole tree as YAML, with inherited values, without keys that have no effect. It loads to an equal tree."""
    return to_yaml(effective(config))


def _phases(file: Mapping[str, Setting], given: Mapping[str, Setting]) -> tuple[str, ...]:
    """The names of the phases: those in the file, or the default ones; then those that only overrides name."""
    listed = _below(file, "pipeline")
    return tuple(dict.fromkeys((*(listed or DEFAULT), *_below(given, "pipeline"))))


def _below(settings: Mapping[str, Setting], section: str) -> list[str]:
    """The names directly below `section` in `settings`."""
    parts = [key.removeprefix(f"{section}.").split(".") for key in settings if key.startswith(f"{section}.")]
    return list(dict.fromkeys(part[0] for part in parts))


def _in_full(settings: Mapping[str, Setting], phases: Sequence[str]) -> dict[str, Setting]:
    """`settings` with `pipeline.` put before keys that begin with a phase's name."""
    found: dict[str, Setting] = {}
    for key, setting in settings.items():
        first = key.partition(".")[0]
        found[f"pipeline.{key}" if first in phases and first not in Config.model_fields else key] = setting
    return found


def _shape(settings: Mapping[str, Setting], phases: Sequence[str]) -> Config:
    """The defaults with the slots and phases of `settings`, each phase with its algorithm's settings.

    Raises:
        ConfigError: There is no such algorithm.
    """
    pipeline: dict[str, PhaseSettings] = {}
    for name in phases:
        setting = settings.get(f"pipeline.{name}.algorithm")
        algorithm = algorithm_of(name, setting.value if setting else None)
        try:
            kind = find_algorithm(algorithm).Settings
        except ConfigError as error:
            raise ConfigError(f"pipeline.{name}{f' {setting.place}' if setting else ''}: {error}") from error
        usual = DEFAULT.get(name, {})
        taken = usual if algorithm == algorithm_of(name) else {key: usual[key] for key in usual if key == "roles"}
        pipeline[name] = kind.model_validate({**taken, "algorithm": algorithm})
    slots = {name: SLOTS.get(name, ModelConfig()) for name in (*SLOTS, *_below(settings, "models"))}
    tools = ToolsConfig(mcp={name: McpServer() for name in _below(settings, "tools.mcp")})
    return Config.model_construct(**{**dict(Config()), "models": slots, "pipeline": pipeline, "tools": tools})


def _inherit(settings: Mapping[str, Setting]) -> dict[str, Setting]:
    """Let each slot inherit from the slot that its `like` names: the settings that it does not set and its kind reads.

    A slot with its own `base_url` or `provider` does not inherit the API key, which would be sent to another address.

    Raises:
        ConfigError: Slots are like each other in a circle.
    """
    merged = dict(settings)
    names = dict.fromkeys((*SLOTS, *_below(settings, "models")))
    done: list[str] = []

    def inherit(name: str, heirs: tuple[str, ...]) -> None:
        if name in heirs:
            raise ConfigError(f"models.{name}.like goes round in a circle: {' like '.join((*heirs, name))}")
        usual = SLOTS[name].like if name in SLOTS else None
        setting = settings.get(f"models.{name}.like")
        like = usual if setting is None else setting.value
        if like not in names or name in done:
            return  # None, or a name that validation refuses.
        inherit(like, (*heirs, name))
        done.append(name)
        _take(merged, name, like, settings)

    for name in names:
        inherit(name, ())
    return merged


def _take(merged: dict[str, Setting], name: str, like: str, own: Mapping[str, Setting]) -> None:
    """Add to `merged` the settings that the slot `name` inherits from `like`."""
    usual = SLOTS[like].kind if like in SLOTS else ModelConfig.model_fields["kind"].default
    kind_of = own.get(f"models.{name}.kind", merged.get(f"models.{like}.kind"))
    kind = str(kind_of.value) if kind_of else usual
    if kind_of is None and kind != ModelConfig.model_fields["kind"].default:
        merged[f"models.{name}.kind"] = Setting(kind, f"from models.{like}.kind")
    for field in ModelConfig.model_fields:
        source, key = merged.get(f"models.{like}.{field}"), f"models.{name}.{field}"
        if field == "like" or source is None or key in own or field in UNUSED_OF_KIND.get(kind, ()):
            continue
        if field in OF_PLACE and own.keys() & {f"models.{name}.{key}" for key in OF_PLACE[field]}:
            continue
        place = (
            source.place if source.place.startswith("from models.") else f"from models.{like}.{field} {source.place}"
        )
        merged[key] = Setting(source.value, place)


OF_PLACE: Mapping[str, tuple[str, ...]] = {
    "api_key_env": ("base_url", "provider"),
    "base_url": ("provider",),
    "provider": ("base_url",),
    **dict.fromkeys(
        ("provider_options", "max_completion_tokens", "reasoning_effort", "extra_body"), ("base_url", "provider")
    ),
}
"""Settings that belong to an address: a slot that sets one of the named settings itself does not inherit them."""


def _near(name: str, known: Iterable[str]) -> str:
    """The end of an error message about a slot that is not in `known`."""
    near = get_close_matches(name, list(known), n=1)
    return f"which is no slot: did you mean {near[0]}?" if near else f"which is no slot: there are {', '.join(known)}"


def _check_players(config: Config) -> None:
    """Make sure that a rubric plays only the review board, the principal investigator or the judge."""
    for role, slot in config.roles.slots().items():
        if config.models[slot].kind == "rubric" and role not in GRADING:
            raise ConfigError(
                f"models.{slot}.kind=rubric cannot work for {role}: a rubric grades what others wrote; "
                "set it to embedded or endpoint"
            )


def _check_evidence(config: Config) -> None:
    if config.society.evidence == "retrieved" and config.tools.literature != "local":
        raise ConfigError(
            f"society.evidence=retrieved cannot work with tools.literature={config.tools.literature}: the article "
            "behind each question is blocked in live searches; set society.evidence=given or tools.literature=local"
        )
    if config.society.evidence == "retrieved" and config.society.max_tool_calls == 0:
        raise ConfigError(
            "society.evidence=retrieved cannot work with society.max_tool_calls=0: no role could search; "
            "set society.evidence=given or allow a tool call"
        )
