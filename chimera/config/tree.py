"""The configuration: one frozen, typed tree. Every key has an effect; unknown keys are errors."""

import hashlib
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from pydantic import Field, field_validator, model_validator

from chimera.config.loader import AnyPath, ConfigSection, When, check_keys, effective, overlay, validate, without_effect
from chimera.config.names_elsewhere import GONE, NAMES, OF_RUN, OPTIONS
from chimera.config.pipeline import DEFAULT, SETTINGS_OF, PhaseSettings, Pipeline, PlainPhase, SettingsOf, algorithm_of
from chimera.config.roles import DECIDER, GRADING, JUDGE, RolesConfig, expand
from chimera.config.sections.bundled import heeds_guidance
from chimera.config.sections.cluster import ClusterConfig
from chimera.config.sections.data import DataConfig
from chimera.config.sections.evaluation import EvaluationConfig
from chimera.config.sections.learning import GateConfig, WandbConfig
from chimera.config.sections.models import SLOTS, ModelConfig, ServingConfig
from chimera.config.sections.rollouts import RewardConfig, RolloutsConfig
from chimera.config.sections.society import Guidance, SocietyConfig
from chimera.config.sections.telemetry import TelemetryConfig
from chimera.config.sections.tools import McpServer, ToolsConfig
from chimera.config.source import COMMAND_LINE, Setting, parse_overrides, read_yaml, to_yaml
from chimera.config.trial import FROM_TRIAL, trial_sizes
from chimera.core.errors import ConfigError, suggestion
from chimera.core.files import check_utf8
from chimera.core.types import POLICIES

TAKEN = (
    *("base", "final", "all", "ledger", "eval", "rollout", "protocols", "artifact"),
    *("majority", "tfidf", "reader", "labels", "parts", "stages", "confusion", "tokens", "studies"),
)
"""Names of stages, baselines, metrics, plots and files. No phase may have such a name."""


class Config(ConfigSection):
    """The whole tree."""

    seed: int = Field(
        default=0, ge=0, le=2**32 - 1, description="seed of everything random that has no seed of its own"
    )
    runs_dir: AnyPath = Field(default=Path("runs"), description="folder in which runs are kept")
    data: DataConfig = DataConfig()
    models: dict[str, ModelConfig] = Field(default=dict(SLOTS), description="slots by free names")
    roles: RolesConfig = RolesConfig()
    serving: ServingConfig = ServingConfig()
    society: SocietyConfig = SocietyConfig()
    tools: ToolsConfig = ToolsConfig()
    reward: RewardConfig = RewardConfig()
    rollouts: RolloutsConfig = RolloutsConfig()
    cluster: ClusterConfig = ClusterConfig()
    pipeline: Pipeline = Field(default=DEFAULT, validate_default=True, description="phases, in their order")
    gate: GateConfig = GateConfig()
    wandb: WandbConfig = WandbConfig()
    telemetry: TelemetryConfig = TelemetryConfig()
    evaluation: EvaluationConfig = EvaluationConfig()

    @field_validator("models", mode="before")
    @classmethod
    def _with_usual_slots(cls, value: Any) -> Any:
        return {**SLOTS, **value} if isinstance(value, Mapping) else value

    @model_validator(mode="after")
    def _names_are_known(self) -> Self:
        for name in self.pipeline:
            if not re.fullmatch(r"[a-z][a-z0-9_]{0,39}", name) or name in (*type(self).model_fields, *TAKEN):
                raise ValueError(
                    f"pipeline.{name}: a phase's name has at most 40 small letters, digits and _, and is none of "
                    f"{', '.join(TAKEN)} and the sections of the configuration"
                )
        if keys := sorted({*POLICIES} & {*self.models}):
            raise ValueError(f"models.{keys[0]}: tables of versions name a policy {keys[0]!r}: rename the slot")
        for place, slot in self._places_of_slots():
            if slot not in self.models:
                near = suggestion(slot, self.models, f"there are {', '.join(self.models)}")
                raise ValueError(f"{place} {slot!r}, which is no slot: {near}")
        for reference, name in self.roles.mcp().items():
            server = self.tools.mcp.get(name)
            if server is None or bool(server.command) == bool(server.url):
                fault = (
                    "which is not in tools.mcp" if server is None else "which needs a command or a url, and not both"
                )
                raise ValueError(f"the tool {reference!r} is one of the server {name!r}, {fault}")
        if self.gate.tasks == 1:
            raise ValueError("gate.tasks is 1, but one task gives no interval: set 0 or at least 2")
        if self.rollouts.on == "ray" and self.cluster.address is None:
            raise ValueError("rollouts.on=ray needs a Ray cluster: set cluster.address=HOST:PORT or auto")
        judge = self.roles.Judge.model
        free = {judge} if judge in self.models and self.models[judge].kind == "rubric" else set[str]()
        if near := self.evaluation.unknown_prices(set(self.models) - free):
            raise ValueError(near)
        return self

    def _places_of_slots(self) -> Iterator[tuple[str, str]]:
        """The beginning of a sentence for each place that names a slot, with the slot."""
        yield from ((f"roles.{role}.model is", slot) for role, slot in self.roles.slots().items())
        yield from ((f"society.fallback.{name} names", slot) for name, slot in self.society.fallback.items())
        yield from (("rollouts.judges names", slot) for slot in self.rollouts.judges)
        for name, phase in self.pipeline.items():
            yield from ((f"pipeline.{name} asks the model of", slot) for slot in phase.asks())
        yield from ((f"models.{name}.like is", model.like) for name, model in self.models.items() if model.like)

    def slot(self, role: str) -> str:
        """The slot whose model plays `role`."""
        return self.roles.slots()[role]

    def judge_of(self, task_id: str) -> str:
        """The slot whose model judges work on a task: always the same, and each of the judges as often."""
        judges = (self.slot(JUDGE), *self.rollouts.judges)
        return judges[int.from_bytes(hashlib.sha256(task_id.encode()).digest()[:4], "big") % len(judges)]

    def used(self) -> dict[str, ModelConfig]:
        """The slots that roles use, those of second models of roles that work too."""
        second = {slot for role, slot in self.society.fallbacks().items() if self.away(role) is None}
        playing = {*self.roles.slots().values(), *second, *self.rollouts.judges}
        return {name: model for name, model in self.models.items() if name in playing}

    def served(self) -> dict[str, ModelConfig]:
        """The slots that training serves: those that roles use, and those whose models its phases call."""
        slots = {slot for phase in self.pipeline.values() for slot in phase.asks()}
        return {name: model for name, model in self.models.items() if name in slots or name in self.used()}

    def learning(self) -> set[str]:
        """The slots that have vLLM servers of their own, because phases train their weights."""
        if all(model.kind != "vllm" for model in self.models.values()):
            return set()
        return {
            self.slot(role)
            for name, phase in self.pipeline.items()
            if phase.learns_weights
            for role in expand(phase.roles, f"pipeline.{name}.roles")
            if self.models[self.slot(role)].kind == "vllm"
        }

    def lora_ranks(self, slot: str) -> dict[str, int]:
        """The rank of LoRA adapters of each phase that trains some of the weights of `slot`."""
        ranks = {
            name: getattr(phase, "lora_rank", 0)
            for name, phase in self.pipeline.items()
            if slot in {self.slot(role) for role in expand(phase.roles, f"pipeline.{name}.roles")}
        }
        return {name: rank for name, rank in ranks.items() if rank}

    def secret_names(self) -> tuple[str, ...]:
        """The environment variables that models, judges, MCP servers and the collector of telemetry name."""
        models = (*self.models.values(), self.evaluation.auditor)
        keys = [*(model.api_key_env for model in models), self.telemetry.headers_env]
        return tuple(sorted({*filter(None, keys), *self.tools.secret_names()}))

    def idle(self) -> Mapping[str, str]:
        reasons = {
            f"tools.mcp.{name}": f"no role has a tool of the server {name!r} (mcp:{name}/tool)"
            for name in set(self.tools.mcp) - set(self.roles.mcp().values())
        }
        serving = {*self.served(), *(model.like for model in self.models.values() if model.like)}
        for name in set(self.models) - serving:
            reasons[f"models.{name}"] = f"no role uses the slot {name!r} (roles.<role>.model)"
        if not any(model.has_weights for model in self.served().values()):
            reasons["serving"] = "no model is 'embedded' or 'vllm'"
        if self.tools.local:
            reasons["tools.retries"] = "no back end uses the network (all are 'local')"
            if not self.roles.foreign():
                only_local = "all back ends are 'local', and roles have Chimera's own tools only"
                reasons["tools.timeout_s"] = reasons["tools.retracted"] = only_local
        if self.tools.protein != "local" and self.tools.ontology != "local":
            reasons["tools.database"] = "tools.protein and tools.ontology are both live"
        for role, slot in self.roles.slots().items():
            if self.society.max_tool_calls == 0:
                reasons[f"roles.{role}.tools"] = reasons["tools"] = "society.max_tool_calls is 0"
            elif role == JUDGE or self.models[slot].kind == "rubric":
                reasons[f"roles.{role}.tools"] = "the judge and rubrics call no tools"
        if self.evaluation.auditor.kind == "none":
            reasons["gate.alarm"] = "there is no second judge (evaluation.auditor.kind is 'none')"
        for key, why_not in (("guidance", self.deaf), ("fallback", self.away)):
            for name in getattr(self.society, key):
                because = [why_not(role) for role in expand([name], f"society.{key}")]
                if None not in because:
                    reasons[f"society.{key}.{name}"] = "; ".join(sorted(filter(None, because)))
        for name, model in self.served().items():
            if model.adapter_rank and not self.lora_ranks(name):  # Slots inherit it, and may learn otherwise.
                reasons[f"models.{name}.adapter_rank"] = "no phase trains LoRA adapters of these weights (lora_rank)"
        return reasons

    def away(self, role: str) -> str | None:
        """Why no model plays `role` when the society works; None if one does, or may with a graph that is learned."""
        learned = any(phase.algorithm == "aflow" or ":" in phase.algorithm for phase in self.pipeline.values())
        return None if learned or self.society.graph.plays(role) else f"{role} does not work in society.graph"

    def deaf(self, role: str) -> str | None:
        """Why guidance changes nothing in what `role` says; None if it may."""
        if away := self.away(role):
            return away
        slot = self.slot(role)
        model = self.models[slot]
        if model.kind == "rubric":
            return f"a rubric plays {role} (models.{slot}.kind)"
        if model.has_weights and not heeds_guidance(model.path):
            return (
                f"the weights of models.{slot}.path={model.path} see only the first line of a system prompt and were "
                "not made to heed lessons; name a model that was"
            )
        return None


GRAPH = "society.graph"
"""A section, or the path of a YAML file that holds it."""


def load_config(
    path: Path | str | None = None,
    overrides: Sequence[str] = (),
    *,
    settings_of: SettingsOf | None = None,
    own_question: bool = False,
    recorded: bool = False,
    trial: bool = False,
) -> Config:
    """Read the configuration: defaults, then the YAML file, then `key=value` overrides.

    A file's `pipeline` lists all phases of the run; a file without one gets the default phases. `sft.epochs` is short
    for `pipeline.sft.epochs`. A key of the file that has no effect gives a warning on stderr.

    Args:
        path: a YAML file; None keeps the defaults, which configs/local.yaml spells out.
        overrides: such as "gather.tasks=20"; values are YAML, the last override of a key counts.
        settings_of: gives the class of each algorithm's settings; without it phases are plain data, unchecked, for
            commands that train nothing (`training.configuration.load_config` has it).
        own_question: the society will answer a user's question, so no article is blocked in live searches.
        recorded: the file is a run's: there is no warning about it.
        trial: lower the sizes of defaults and file to those of a trial (`chimera.config.trial`).

    Raises:
        ConfigError: names the key, where it was set, and the nearest valid key or what is allowed.
    """
    file = {} if path is None else read_yaml(Path(path))
    command_line = parse_overrides(overrides)
    for key, setting in (*file.items(), *command_line.items()):
        check_utf8([key, setting.value], f"{key} {setting.place}", ConfigError)
    file, command_line = _with_graph(file), _with_graph(command_line)
    # A file's pipeline lists all phases of the run; overrides may add others.
    phases = tuple(dict.fromkeys((*(_below(file, "pipeline") or DEFAULT), *_below(command_line, "pipeline"))))
    file, command_line = _in_full(file, phases), _in_full(command_line, phases)
    tree = _shape(overlay(file, command_line), phases, settings_of)
    if trial:
        file |= trial_sizes(file, tree)
    file = check_keys(tree, file, NAMES, OPTIONS, OF_RUN if recorded else GONE)
    settings = _inherit(overlay(file, check_keys(tree, command_line, NAMES, OPTIONS, GONE)))
    config = validate(tree, settings, {SETTINGS_OF: settings_of})
    for setting, sentence in without_effect(config, settings):
        if setting.place == COMMAND_LINE:
            raise ConfigError(sentence)
        if setting.place != FROM_TRIAL and not recorded:
            print(f"warning: {sentence}", file=sys.stderr)
    _check_players(config)
    if not own_question:
        _check_evidence(config)
    return config


def dump_config(config: Config) -> str:
    """The whole tree as YAML, with inherited values, without keys that have no effect. It loads to an equal tree."""
    return to_yaml(effective(config))


def _with_graph(settings: Mapping[str, Setting]) -> dict[str, Setting]:
    """`settings` with the keys of the file that `society.graph` names; raises ConfigError if it cannot be read."""
    graph = settings.get(GRAPH)
    if graph is None or not isinstance(graph.value, str):
        return dict(settings)
    in_file = {f"{GRAPH}.{key}": setting for key, setting in read_yaml(Path(graph.value).expanduser()).items()}
    return {**in_file, **{key: setting for key, setting in settings.items() if key != GRAPH}}


def _below(settings: Mapping[str, Setting], section: str) -> list[str]:
    """The names directly below `section` in `settings`."""
    parts = [key.removeprefix(f"{section}.").split(".") for key in settings if key.startswith(f"{section}.")]
    return list(dict.fromkeys(part[0] for part in parts))


def _in_full(settings: Mapping[str, Setting], phases: Sequence[str]) -> dict[str, Setting]:
    """`settings` with `pipeline.` put before keys that begin with a phase's name."""
    full: dict[str, Setting] = {}
    for key, setting in settings.items():
        first = key.partition(".")[0]
        full[f"pipeline.{key}" if first in phases and first not in Config.model_fields else key] = setting
    return full


def _shape(settings: Mapping[str, Setting], phases: Sequence[str], settings_of: SettingsOf | None) -> Config:
    """The defaults with the slots and phases of `settings`, each phase with its algorithm's settings."""
    pipeline: dict[str, PhaseSettings] = {}
    for name in phases:
        setting = settings.get(f"pipeline.{name}.algorithm")
        algorithm = algorithm_of(name, setting.value if setting else None)
        try:
            kind = settings_of(algorithm) if settings_of else PlainPhase
        except ConfigError as error:
            raise ConfigError(f"pipeline.{name}{f' {setting.place}' if setting else ''}: {error}") from error
        usual = DEFAULT.get(name, {})
        whole = kind is not PlainPhase and algorithm == algorithm_of(name)
        taken = usual if whole else {key: usual[key] for key in usual if key == "roles"}
        keys = _own_keys(settings, f"pipeline.{name}.") if kind is PlainPhase else {}
        pipeline[name] = kind.model_validate({**keys, **taken, "algorithm": algorithm})
    slots = {name: SLOTS.get(name, ModelConfig()) for name in (*SLOTS, *_below(settings, "models"))}
    tools = ToolsConfig(mcp={name: McpServer() for name in _below(settings, "tools.mcp")})
    entries = {name: Guidance() for name in _below(settings, "society.guidance")}
    guided = SocietyConfig().model_copy(update={"guidance": entries})
    changed = {"models": slots, "pipeline": pipeline, "tools": tools, "society": guided}
    return Config.model_construct(**{**dict(Config()), **changed})


def _own_keys(settings: Mapping[str, Setting], prefix: str) -> dict[str, Any]:
    """The keys of an algorithm that is not imported, with {} for a mapping and None for any other value."""
    parts = [key.removeprefix(prefix).partition(".") for key in settings if key.startswith(prefix)]
    return {first: {} if below else None for first, below, _ in parts if first not in PhaseSettings.model_fields}


def _inherit(settings: Mapping[str, Setting]) -> dict[str, Setting]:
    """Let each slot inherit from the slot that its `like` names: the settings that it does not set and its kind reads.

    A slot with its own `base_url` or `provider` does not inherit the API key, which would be sent to another address.
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


def _take(merged: dict[str, Setting], name: str, like: str, settings: Mapping[str, Setting]) -> None:
    """Add to `merged` the settings that the slot `name` inherits from `like`."""
    usual = SLOTS[like].kind if like in SLOTS else ModelConfig.model_fields["kind"].default
    kind_of = settings.get(f"models.{name}.kind", merged.get(f"models.{like}.kind"))
    kind = str(kind_of.value) if kind_of else usual
    if kind_of is None and kind != ModelConfig.model_fields["kind"].default:
        merged[f"models.{name}.kind"] = Setting(kind, f"from models.{like}.kind")
    below, fields = f"models.{like}.", _below(settings, f"models.{name}")
    for key, setting in [(key, setting) for key, setting in merged.items() if key.startswith(below)]:
        rest = key.removeprefix(below)
        field = rest.partition(".")[0]
        if field in ("like", *fields) or not _read_by(kind, field) or {*fields} & {*OF_PLACE.get(field, ())}:
            continue
        place = setting.place if setting.place.startswith("from models.") else f"from {below}{field} {setting.place}"
        merged[f"models.{name}.{rest}"] = Setting(setting.value, place)


def _read_by(kind: str, field: str) -> bool:
    """True if slots of this kind have the key `field`."""
    conditions = (item for item in ModelConfig.model_fields[field].metadata if isinstance(item, When))
    return all(when.holds(kind) for when in conditions if when.key == "kind")


OF_PLACE: Mapping[str, tuple[str, ...]] = {
    "api_key_env": ("base_url", "provider", "urls"),
    "python": ("urls",),
    "urls": ("python",),
    "gpus": ("replicas",),
    "base_url": ("provider",),
    "provider": ("base_url",),
    **dict.fromkeys(
        ("provider_options", "max_completion_tokens", "reasoning_effort", "extra_body"), ("base_url", "provider")
    ),
}
"""Settings that belong to an address: a slot that sets one of the named settings itself does not inherit them."""


def _check_players(config: Config) -> None:
    """Make sure that a rubric plays only the review board, the principal investigator or the judge."""
    for role, slot in config.roles.slots().items():
        if config.models[slot].kind == "rubric" and role not in GRADING:
            raise ConfigError(
                f"models.{slot}.kind=rubric cannot work for {role}: a rubric grades what others wrote; "
                "set it to embedded or endpoint"
            )
    for name, slot in config.society.fallback.items():
        if config.models[slot].kind == "rubric":
            raise ConfigError(
                f"society.fallback.{name}={slot} cannot work: a rubric is nobody's second model; "
                "name an endpoint or embedded model"
            )
    decider = config.slot(DECIDER)
    if config.models[decider].kind == "rubric" and not config.society.graph.reviewed:
        raise ConfigError(
            f"models.{decider}.kind=rubric cannot decide without protocol and reviews: set society.graph.design and "
            f"reviews to true, or models.{decider}.kind to endpoint or embedded"
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
