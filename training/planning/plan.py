"""Memory, disk and time of each phase of a configuration, and what to change where it does not fit. Pure functions."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from chimera.config.roles import expand
from chimera.config.sections.models import ModelConfig
from chimera.config.tree import Config
from chimera.core.plain_json import read_json_object
from chimera.serving.embedded.checkpoint import BYTES, locate
from chimera.serving.embedded.processes import decoding_processes
from chimera.serving.embedded.shapes import read_shape
from training.algorithms.ppo.settings import PpoSettings
from training.algorithms.sft.settings import SftSettings
from training.planning.machine import Machine
from training.planning.needs import (
    BARE_LAB,
    Need,
    ppo_disk,
    ppo_need,
    serving_needs,
    tuning_need,
    update_operations,
)
from training.planning.replicas import gigabytes, lacking_caches, lacking_places, vllm_needs
from training.planning.sizes import FLOAT32, Architecture


@dataclass(frozen=True, slots=True)
class Lengths:
    """Tokens of a typical call, which decide time but not peak memory."""

    prompt: int
    response: int


@dataclass(frozen=True, slots=True)
class Pace:
    """Time of an online step, at least: no machine computes faster than its matrices.

    Attributes:
        calls: Sampled calls that it learns from.
        tokens: Tokens that its update computes.
        sample_s: Seconds to sample the calls, by one server.
        update_s: Seconds of the update.
    """

    calls: int
    tokens: int
    sample_s: float
    update_s: float
    steps: int

    @property
    def needed(self) -> float:
        """Sampled tokens a second with which sampling takes as long as the update."""
        return self.sampled / self.update_s

    @property
    def expected(self) -> float:
        """Sampled tokens a second, at most."""
        return self.sampled / self.sample_s

    sampled: int = 0


@dataclass(frozen=True, slots=True)
class PhaseRoom:
    """One phase.

    Attributes:
        faults: Why it does not fit; empty if it does.
        changes: Settings with which it fits, in the order to try them; empty if it fits, or if none is known.
        pace: Its steps; None for phases without online steps.
    """

    phase: str
    needs: tuple[Need, ...]
    disk: int
    faults: tuple[str, ...]
    changes: tuple[str, ...]
    pace: Pace | None


def plan_run(config: Config, machine: Machine, lengths: Lengths) -> list[PhaseRoom]:
    """Each phase that trains weights, in the order of the run.

    Raises:
        ConfigError: A model's folder is missing, its sizes are not known here, or the embedded server refuses it.
    """
    models = {slot: _sizes(one) for slot, one in _weights(config).items()}
    return [
        _room(name, settings, slot, models, config, machine, lengths)
        for name, settings in config.pipeline.items()
        if isinstance(settings, PpoSettings | SftSettings)
        for slot in _slots(config, name)[:1]
        if slot in models
    ]


def _sizes(settings: ModelConfig) -> Architecture:
    folder = locate(settings.path)
    model = Architecture.read(folder)
    if settings.kind == "embedded":
        read_shape(read_json_object(folder / "config.json"), folder)
    return model


def _weights(config: Config) -> Mapping[str, ModelConfig]:
    return {slot: one for slot, one in config.served().items() if one.has_weights}


def _slots(config: Config, name: str) -> list[str]:
    return list({config.slot(role): None for role in expand(config.pipeline[name].roles, f"pipeline.{name}.roles")})


def _room(
    name: str,
    settings: PpoSettings | SftSettings,
    slot: str,
    models: Mapping[str, Architecture],
    config: Config,
    machine: Machine,
    lengths: Lengths,
) -> PhaseRoom:
    needs = needs_of(settings, slot, models, config, machine)
    faults = lacking(needs, machine) + lacking_caches(models, config)
    changes: list[str] = []
    if faults:
        changes = _changes(name, settings, slot, models, config, machine)
    online = isinstance(settings, PpoSettings)
    disk = ppo_disk(models[slot], settings) if online else FLOAT32 * models[slot].parameters
    if disk > machine.disk:
        faults = [*faults, f"{gigabytes(disk)} on disk, of which {gigabytes(machine.disk)} are free"]
    pace = _pace(models, slot, settings, config, machine, lengths) if online else None
    return PhaseRoom(name, tuple(needs), disk, tuple(faults), tuple(changes), pace)


def needs_of(
    settings: PpoSettings | SftSettings,
    slot: str,
    models: Mapping[str, Architecture],
    config: Config,
    machine: Machine,
) -> list[Need]:
    """The processes that run while a phase learns the weights of `slot`."""
    if isinstance(settings, PpoSettings):
        who = "each rank" if settings.ranks > 1 else "PPO, in the lab's process"
        learner = ppo_need(models[slot], settings, who)
    else:
        who = "each rank of fine-tuning" if settings.ranks > 1 else "fine-tuning"
        learner = tuning_need(models[slot], settings, who)
    trained = {one for name in config.pipeline for one in _slots(config, name)}
    sets = {
        slot if slot in trained else config.models[slot].path: (model, BYTES[config.models[slot].dtype])
        for slot, model in models.items()
        if config.models[slot].kind == "embedded"
    }
    serving, processes = config.serving, _decoding(models, config, machine)
    return [
        Need("main process", {"process": BARE_LAB}),
        *(serving_needs(sets, serving.slots, serving.context_length, processes) if sets else ()),
        *vllm_needs(models, config),
        learner if machine.gpus else Need(learner.who, learner.parts, "cpu", learner.count),
    ]


def _decoding(models: Mapping[str, Architecture], config: Config, machine: Machine) -> int:
    """The processes that decode. At the start slots of one folder have the same weights."""
    embedded = {slot: model for slot, model in models.items() if config.models[slot].kind == "embedded"}
    folders = {config.models[slot].path: model for slot, model in embedded.items()}
    return decoding_processes(config.serving, sum(one.parameters for one in folders.values()), machine.cores)


def lacking(needs: Sequence[Need], machine: Machine) -> list[str]:
    """Sentences about what does not fit into memory; none if all does."""
    on_gpu = [need for need in needs if need.device == "gpu" and machine.gpus]
    host = sum(
        need.count * (need.parts.get("process", 0) + need.aside if need in on_gpu else need.each) for need in needs
    )
    found = []
    if host > machine.memory:
        found.append(f"{gigabytes(host)} of memory, of which {gigabytes(machine.memory)} are free")
    found += lacking_places(needs, machine.gpus)
    for need in on_gpu:
        device = need.each - need.parts.get("process", 0)
        room = min(size for _, size in machine.gpus)
        if need.count > len(machine.gpus):
            found.append(f"{need.count} GPUs, of which there are {len(machine.gpus)}")
        if device > room:
            found.append(f"{gigabytes(device)} of GPU memory for {need.who}, of which {gigabytes(room)} are free")
    return found


def _changes(
    name: str,
    settings: PpoSettings | SftSettings,
    slot: str,
    models: Mapping[str, Architecture],
    config: Config,
    machine: Machine,
) -> list[str]:
    """Settings that make the phase fit, each on top of those before; none if they do not suffice."""
    made: list[str] = []
    for key, value in _remedies(settings, config, machine):
        if key.startswith("serving."):
            section = config.serving.model_copy(update={key.removeprefix("serving."): value})
            config = config.model_copy(update={"serving": section})
            made.append(f"{key}={value}")
        elif key == "gradient_checkpointing":
            model = {**settings.verl.get("model", {}), "enable_gradient_checkpointing": True}  # pyright: ignore[reportAttributeAccessIssue]  only of PPO
            settings = settings.model_copy(update={"verl": {**settings.verl, "model": model}})  # pyright: ignore[reportAttributeAccessIssue]  as above
            made.append(f"'pipeline.{name}.verl={{model: {{enable_gradient_checkpointing: true}}}}'")
        else:
            settings = settings.model_copy(update={key: value})
            made.append(f"pipeline.{name}.{key}={value}")
        if not lacking(needs_of(settings, slot, models, config, machine), machine):
            return made
    return []


def _remedies(settings: PpoSettings | SftSettings, config: Config, machine: Machine) -> Iterator[tuple[str, Any]]:
    """Changes to try: first those that change nothing of what is learned, then LoRA."""
    if settings.ranks > (most := max(1, len(machine.gpus))):
        yield "ranks", most
    if isinstance(settings, PpoSettings):
        if len(machine.gpus) > settings.ranks:
            yield "ranks", len(machine.gpus)
        if settings.shards == "copy" and len(machine.gpus) > 1:
            yield "shards", "fsdp"
        tokens = settings.ppo_max_token_len_per_gpu
        while tokens > config.serving.context_length:
            tokens = max(config.serving.context_length, tokens // 2)
            yield "ppo_max_token_len_per_gpu", tokens
        if not settings.verl.get("model", {}).get("enable_gradient_checkpointing"):
            yield "gradient_checkpointing", True
    else:
        size = settings.micro_batch_size
        while size > 1:
            size //= 2
            yield "micro_batch_size", size
    slots = config.serving.slots
    while slots > 1:
        slots //= 2
        yield "serving.slots", slots
    if not settings.lora_rank:
        yield "lora_rank", 16


def _pace(
    models: Mapping[str, Architecture],
    slot: str,
    settings: PpoSettings,
    config: Config,
    machine: Machine,
    lengths: Lengths,
) -> Pace:
    """A step's time from operations and memory traffic. Prompts of one group are computed once in the update."""
    model = models[slot]
    if settings.states:
        prompts, calls = settings.states, settings.states * settings.n
    else:
        calls = prompts = settings.tasks_per_step * settings.n * len(expand(settings.roles, "roles"))
    tokens = prompts * lengths.prompt + calls * lengths.response
    # One rank on a CPU uses the lab's torch threads, which are all cores; so do several ranks together.
    workers = min(settings.ranks, len(machine.gpus)) if machine.gpus else machine.cores
    update = update_operations(model, settings, tokens) / (machine.operations * workers)
    rows = min(calls, config.serving.slots)
    threads = min(config.serving.threads * _decoding(models, config, machine), machine.cores)
    weights = FLOAT32 * model.parameters  # PPO's slots are served in float32.
    seen = rows * model.cache_bytes(lengths.prompt + lengths.response // 2)
    token_s = max((weights + seen) / machine.bandwidth, model.operations(rows) / (machine.operations * threads))
    sample = calls / rows * lengths.response * token_s + model.operations(prompts * lengths.prompt) / machine.operations
    sample /= max(config.models[config.slot(role)].replicas for role in expand(settings.roles, "roles"))
    return Pace(calls, tokens, sample, update, settings.steps, calls * lengths.response)
