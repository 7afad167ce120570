"""The configuration: one frozen, typed tree. Every key here does something; unknown keys are errors."""

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class Section(BaseModel):
    """Base of every configuration section: frozen, and unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class DataConfig(Section):
    """Where tasks come from and how they are split."""

    path: str = Field(
        default="generated", description="'generated', 'hub' (qiaojin/PubMedQA), or the authors' JSON file"
    )
    size: int = Field(default=1000, ge=10, description="how many generated tasks to make; other sources are used whole")
    levels: tuple[Literal[1, 2, 3, 4], ...] = Field(
        default=(1, 2, 3, 4), description="difficulty levels of generated tasks"
    )
    seed: int = Field(default=0, description="seed of the generator and of the split")
    test_ids: Path | None = Field(default=None, description="file of official test PMIDs; the split is then 500/500")
    validation_share: float = Field(
        default=0.2, gt=0, lt=1, description="share of held-out tasks in the stratified split"
    )


class ModelConfig(Section):
    """One logical model: what stands behind it and how it is sampled."""

    kind: Literal["embedded", "endpoint", "rubric"] = "embedded"
    path: str = Field(default="nano", description="embedded: 'nano', a folder, or a hub name")
    base_url: str | None = Field(
        default=None, description="endpoint: address of an OpenAI-compatible server, ending in /v1"
    )
    model: str | None = Field(default=None, description="endpoint: the model's name there")
    api_key_env: str | None = Field(default=None, description="endpoint: name of the environment variable with the key")
    structured: Literal["always", "final", "never"] = Field(
        default="always", description="when to send a JSON schema: always, only when no tools are offered, or never"
    )
    temperature: float = Field(default=1.0, ge=0, le=2)
    top_p: float = Field(default=1.0, gt=0, le=1)
    max_tokens: int = Field(default=256, ge=1)
    timeout_s: float = Field(default=60.0, gt=0, description="seconds that one model call may take")


class ModelsConfig(Section):
    """Which model plays which part; supervisor and senior fall back on junior's entry in the configuration file."""

    junior: ModelConfig = ModelConfig()
    supervisor: ModelConfig = ModelConfig()
    senior: ModelConfig = ModelConfig()
    board: ModelConfig = ModelConfig(kind="rubric")
    principal: ModelConfig = ModelConfig(kind="rubric")
    judge: ModelConfig = ModelConfig(kind="rubric")


class ServingConfig(Section):
    """The embedded model server."""

    slots: int = Field(default=16, ge=1, description="requests decoded together")
    context_length: int = Field(
        default=1536, ge=64, description="prompt plus answer, in tokens; longer prompts get a 400"
    )
    threads: int = Field(default=1, ge=1, description="torch threads of the server process")


class SocietyConfig(Section):
    """How the society works on a task."""

    evidence: Literal["retrieved", "given"] = Field(
        default="retrieved", description="retrieved: juniors find the abstract by search; given: it is in their prompt"
    )
    max_tool_calls: int = Field(
        default=2, ge=0, description="tool calls that one role may make in one turn of the society"
    )
    max_major_revisions: int = Field(default=1, ge=0, description="returns to the protocol designer")
    max_critical_revisions: int = Field(default=1, ge=0, description="returns to the hypothesis refiner")
    max_revisions: int = Field(default=2, ge=0, description="returns in total")
    node_timeout_s: float = Field(default=180.0, gt=0, description="seconds that one role may take in one visit")
    node_retries: int = Field(default=1, ge=0, description="further tries of a role after a retriable model error")


class ToolsConfig(Section):
    """The tools' back ends. Live ones need the network, and only Tavily needs a key."""

    literature: Literal["local", "pubmed", "tavily"] = "local"
    trials: Literal["local", "clinicaltrials", "tavily"] = "local"
    protein: Literal["local", "uniprot"] = "local"
    ontology: Literal["local", "quickgo"] = "local"
    results: int = Field(default=1, ge=1, le=10, description="passages that one search returns")
    max_chars: int = Field(default=1200, ge=100, description="length limit of one passage, in characters")
    timeout_s: float = Field(default=10.0, gt=0, description="seconds that one live request may take")
    retries: int = Field(default=2, ge=0, description="further tries after 429 or 5xx")
    database: Path | None = Field(
        default=None, description="SQLite file of proteins and GO terms; the shipped seed otherwise"
    )


class RewardConfig(Section):
    """Weights of the reward's named parts; each part is logged and they sum to the reward."""

    novelty: float = 0.1
    feasibility: float = 0.2
    impact: float = 0.3
    clarity: float = 0.15
    groundedness: float = 0.2
    efficiency: float = 0.05
    alignment: float = Field(default=1.0, description="when the decision corresponds to the label")
    parsed: float = Field(
        default=0.05, description="per rollout: share of role outputs that parsed at the first attempt"
    )
    call_valid: float = Field(default=0.05, description="per valid tool call, at most three count")
    tool_succeeded: float = Field(default=0.05, description="per tool call that succeeded, at most three count")
    repeated_call: float = Field(default=-0.1, le=0, description="per identical repeated tool call")
    unverifiable_quote: float = Field(
        default=-0.1, le=0, description="per final evidence sentence that no source contains"
    )
    overlong: float = Field(default=-0.1, le=0, description="when an answer was cut at its token limit")


class RolloutsConfig(Section):
    """The runner processes and the servers between them and the models."""

    runners: int = Field(default=8, ge=1, description="runner processes, each works on one rollout at a time")
    timeout_s: float = Field(default=300.0, gt=0, description="seconds after which a rollout counts as failed")
    max_attempts: int = Field(default=1, ge=1, description="attempts of one rollout")


class GatherConfig(Section):
    """The gather phase: the society as it is answers training tasks."""

    tasks: int = Field(default=40, ge=1, description="training tasks to answer")
    repeats: int = Field(default=1, ge=1, description="rollouts per task")


class Config(Section):
    """The whole tree."""

    seed: int = 0
    runs_dir: Path = Path("runs")
    data: DataConfig = DataConfig()
    models: ModelsConfig = ModelsConfig()
    serving: ServingConfig = ServingConfig()
    society: SocietyConfig = SocietyConfig()
    tools: ToolsConfig = ToolsConfig()
    reward: RewardConfig = RewardConfig()
    rollouts: RolloutsConfig = RolloutsConfig()
    gather: GatherConfig = GatherConfig()
