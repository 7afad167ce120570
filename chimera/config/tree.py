"""The configuration: one frozen, typed tree. Every key here does something; unknown keys are errors."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from chimera.config.evaluation import EvaluationConfig
from chimera.config.learning import BanditConfig, GateConfig, PpoConfig, SftConfig, WandbConfig
from chimera.config.loader import Section, check_keys, effective, overlay, refuse_unused, unused_keys, validate
from chimera.config.source import Setting, parse_overrides, read_yaml, to_yaml
from chimera.core.errors import ConfigError

HEIRS = ("supervisor", "senior")
"""Models that take what they do not set themselves from models.junior."""


class DataConfig(Section):
    """Where tasks come from and how they are split."""

    path: str = Field(
        default="generated",
        min_length=1,
        description="'generated', 'hub' (qiaojin/PubMedQA), or the authors' JSON file",
    )
    size: int = Field(
        default=1000, ge=10, le=100_000, description="how many generated tasks to make; other sources are used whole"
    )
    levels: tuple[Literal[1, 2, 3, 4], ...] = Field(
        default=(1, 2, 3, 4), min_length=1, description="difficulty levels of generated tasks"
    )
    seed: int = Field(default=0, ge=0, le=2**32 - 1, description="seed of the generator and of the split")
    test_ids: Path | None = Field(default=None, description="file of official test PMIDs; the split is then 500/500")
    validation_share: float = Field(
        default=0.2, gt=0, lt=1, description="share of tasks for the gate and for searches; of the rest with test_ids"
    )
    test_share: float = Field(default=0.2, gt=0, lt=1, description="share of tasks for reports, which no decision uses")

    def unused(self) -> Mapping[str, str]:
        """The generator's keys count for generated tasks only, the official split for PubMedQA only."""
        if self.path == "generated":
            return {"test_ids": "generated tasks have no official test set (data.path is 'generated')"}
        reason = f"only generated tasks are made to order (data.path is {self.path!r})"
        found = {"size": reason, "levels": reason}
        return found if self.test_ids is None else {**found, "test_share": "data.test_ids names the test tasks"}


class ModelConfig(Section):
    """One logical model: what stands behind it and how it is sampled."""

    kind: Literal["embedded", "endpoint", "rubric"] = Field(
        default="embedded", description="in-project server, any OpenAI-compatible server, or deterministic grader"
    )
    path: str = Field(default="nano", min_length=1, description="embedded: 'nano', a folder, or a hub name")
    base_url: str | None = Field(
        default=None,
        description="endpoint: address of an OpenAI-compatible server, ending in /v1, without user or password",
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
    timeout_s: float = Field(default=60.0, gt=0, le=604_800, description="seconds that one model call may take")

    @field_validator("base_url")
    @classmethod
    def _address(cls, value: str | None) -> str | None:
        if value is not None and not re.fullmatch(r"https?://[^\s/@]+(/[^\s@]*)?", value):
            raise ValueError(
                "it must be an http(s) address without user or password, such as http://127.0.0.1:11434/v1"
            )
        return value

    @field_validator("api_key_env")
    @classmethod
    def _variable_name(cls, value: str | None) -> str | None:
        if value is not None and not re.fullmatch(r"[A-Z][A-Z0-9_]*", value):
            raise ValueError(
                "must be the name of an environment variable, such as OPENAI_API_KEY, never the key itself"
            )
        return value

    @model_validator(mode="after")
    def _endpoint_is_complete(self) -> Self:
        if self.kind == "endpoint" and (self.base_url is None or self.model is None):
            raise ValueError("kind 'endpoint' needs both base_url and model")
        return self

    @property
    def sends_schema(self) -> Literal["always", "final", "never"]:
        """`structured`, with "auto" resolved by the model's kind."""
        if self.structured == "auto":
            return "final" if self.kind == "endpoint" else "always"
        return self.structured

    def unused(self) -> Mapping[str, str]:
        """Which keys a model of this kind does not read."""
        return dict.fromkeys(UNUSED_OF_KIND[self.kind], f"the model's kind is {self.kind!r}")


UNUSED_OF_KIND: Mapping[str, tuple[str, ...]] = {
    "embedded": ("base_url", "model", "api_key_env"),
    "endpoint": ("path",),
    "rubric": ("path", "base_url", "model", "api_key_env", "structured", "temperature", "top_p", "max_tokens"),
}
"""Keys of ModelConfig that a kind of model does not read."""


class ModelsConfig(Section):
    """Which model plays which part; supervisor and senior take what they do not set themselves from junior."""

    junior: ModelConfig = ModelConfig()
    supervisor: ModelConfig = ModelConfig()
    senior: ModelConfig = ModelConfig()
    board: ModelConfig = ModelConfig(kind="rubric")
    principal: ModelConfig = ModelConfig(kind="rubric")
    judge: ModelConfig = ModelConfig(kind="rubric")


class ServingConfig(Section):
    """The embedded model server."""

    slots: int = Field(default=16, ge=1, le=4096, description="requests decoded together")
    context_length: int = Field(
        default=2048, ge=64, le=1_000_000, description="prompt plus answer, in tokens; longer prompts get a 400"
    )
    threads: int = Field(default=1, ge=1, le=1024, description="torch threads of the server process")


Quotes = Literal["read", "numbered", "free"]
"""How roles quote (`society.quotes`)."""


class SocietyConfig(Section):
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
    node_timeout_s: float = Field(
        default=180.0, gt=0, le=604_800, description="seconds that one role may take in one visit"
    )
    node_retries: int = Field(
        default=1, ge=0, le=100, description="further tries of a role after a retriable model error"
    )

    def unused(self) -> Mapping[str, str]:
        """Revisions that the total forbids, a total that cannot be reached, and the size of what is not shown."""
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


class ToolsConfig(Section):
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
    timeout_s: float = Field(default=10.0, gt=0, le=604_800, description="seconds that one live request may take")
    retries: int = Field(default=2, ge=0, le=100, description="further tries after 429 or 5xx")
    database: Path | None = Field(
        default=None, description="SQLite file of proteins and GO terms; the shipped seed otherwise"
    )

    def unused(self) -> Mapping[str, str]:
        """Network keys count when a back end is live, the database when one of its tools is local."""
        found: dict[str, str] = {}
        if (self.literature, self.trials, self.protein, self.ontology) == ("local",) * 4:
            found |= dict.fromkeys(("timeout_s", "retries"), "no tool uses the network (all back ends are 'local')")
        if self.protein != "local" and self.ontology != "local":
            found["database"] = "tools.protein and tools.ontology are both live"
        return found


class RewardConfig(Section):
    """Weights of the reward's named parts; each part is logged and they sum to the reward."""

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


class RolloutsConfig(Section):
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


GatewayEngine = Literal["thin", "litellm"]
"""What attributes, forwards and records model calls (`gateway.engine`)."""


class GatewayConfig(Section):
    """The process between runners and models."""

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
        """LiteLLM's gateway does not wait for the store."""
        return {"store_timeout_s": "gateway.engine is 'litellm'"} if self.engine == "litellm" else {}


class GatherConfig(Section):
    """The gather phase: the society as it is answers training tasks."""

    tasks: int = Field(default=160, ge=1, le=1_000_000, description="training tasks to answer")
    repeats: int = Field(default=1, ge=1, le=100_000, description="rollouts per task")


class Config(Section):
    """The whole tree."""

    seed: int = Field(
        default=0, ge=0, le=2**32 - 1, description="seed of everything random that has no seed of its own"
    )
    runs_dir: Path = Field(default=Path("runs"), description="folder in which runs are kept")
    data: DataConfig = DataConfig()
    models: ModelsConfig = ModelsConfig()
    serving: ServingConfig = ServingConfig()
    society: SocietyConfig = SocietyConfig()
    tools: ToolsConfig = ToolsConfig()
    reward: RewardConfig = RewardConfig()
    rollouts: RolloutsConfig = RolloutsConfig()
    gateway: GatewayConfig = GatewayConfig()
    gather: GatherConfig = GatherConfig()
    sft: SftConfig = SftConfig()
    ppo: PpoConfig = PpoConfig()
    bandit: BanditConfig = BanditConfig()
    gate: GateConfig = GateConfig()
    wandb: WandbConfig = WandbConfig()
    evaluation: EvaluationConfig = EvaluationConfig()

    def unused(self) -> Mapping[str, str]:
        """Keys that depend on another section."""
        found: dict[str, str] = {}
        models = [getattr(self.models, name) for name in ModelsConfig.model_fields]
        if all(model.kind != "embedded" for model in models):
            found |= {f"serving.{key}": "no model is 'embedded'" for key in ServingConfig.model_fields}
        if self.society.max_tool_calls == 0:
            found |= {f"tools.{key}": "society.max_tool_calls is 0" for key in ToolsConfig.model_fields}
        return found


def load_config(path: Path | str | None = None, overrides: Sequence[str] = (), *, own_question: bool = False) -> Config:
    """Read the configuration: defaults, then the YAML file, then `key=value` overrides.

    Args:
        path: a YAML file; None keeps the defaults, which configs/local.yaml spells out.
        overrides: such as "gather.tasks=20"; values are YAML, the last of two for one key counts.
        own_question: the society will answer a user's question, so no article is blocked in live searches.

    Raises:
        ConfigError: names the key, where it was set, and the nearest valid key or what is allowed.
    """
    file = check_keys(Config, {} if path is None else read_yaml(Path(path)))
    given = check_keys(Config, parse_overrides(overrides))
    settings = _inherit(overlay(file, given))
    config = validate(Config, settings)
    if outdated := _outdated(file, given, config):
        settings = _inherit(overlay({key: setting for key, setting in file.items() if key not in outdated}, given))
        config = validate(Config, settings)
    refuse_unused(config, settings)
    _check_players(config.models)
    if not own_question:
        _check_evidence(config)
    return config


def dump_config(config: Config) -> str:
    """The whole tree as YAML, inherited values included, without keys that have no effect; loads to an equal tree."""
    return to_yaml(effective(config))


def _outdated(file: Mapping[str, Setting], given: Mapping[str, Setting], config: Config) -> set[str]:
    """Keys of the file that have an effect there, and have none only because of an override: the override wins."""
    unused = {key for key in unused_keys(config) if key in file and key not in given}
    if not unused or not given:
        return set()
    try:
        alone = validate(Config, _inherit(file))
    except ConfigError:  # the file needs its overrides to be valid, so it cannot tell what it would do without them
        return set()
    return unused - set(unused_keys(alone))


def _inherit(settings: Mapping[str, Setting]) -> dict[str, Setting]:
    """Give each heir the junior's settings that it does not set itself and that its kind reads.

    An heir with a server of its own does not take the junior's key: it would be sent to another address.
    """
    merged = dict(settings)
    for heir in HEIRS:
        own = settings.get(f"models.{heir}.kind", settings.get("models.junior.kind"))
        kind = str(own.value) if own else ModelConfig.model_fields["kind"].default
        for field in ModelConfig.model_fields:
            source, key = settings.get(f"models.junior.{field}"), f"models.{heir}.{field}"
            if source is None or key in settings or field in UNUSED_OF_KIND.get(kind, ()):
                continue
            if field == "api_key_env" and f"models.{heir}.base_url" in settings:
                continue
            merged[key] = Setting(source.value, f"from models.junior.{field} {source.place}")
    return merged


def _check_players(models: ModelsConfig) -> None:
    if graders := [name for name in ("junior", *HEIRS) if getattr(models, name).kind == "rubric"]:
        raise ConfigError(
            f"models.{graders[0]}.kind=rubric cannot work: a rubric grades what others wrote; "
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
