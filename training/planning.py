"""What a run needs of memory and disk, computed before it starts, and what to change where it does not fit.

Sizes are bytes. Weights, gradients and optimiser are kept in float32. What a process takes without a model was measured
on Linux with Python 3.11.
"""

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, Literal, Self

import psutil

from chimera.config.roles import expand
from chimera.config.sections.models import ModelConfig
from chimera.config.tree import Config
from chimera.core.errors import ConfigError
from chimera.core.files import read_json_object
from chimera.serving.devices import decoding_processes
from chimera.serving.embedded.checkpoint import BYTES, locate
from chimera.serving.embedded.sources.shapes import FAMILIES, expected_tensors, read_shape
from chimera.serving.sharing import share
from chimera.serving.vllm.adapters import BESIDE
from training.learning.fine_tuning import TuneSettings
from training.model.chunked_head import LOGITS
from training.ppo.verl.settings import PpoSettings
from training.tune.child import LARGE_MODEL

GB, MB = 2**30, 2**20
FLOAT32 = 4
ADAM = 2
"""Numbers that AdamW keeps of each trained parameter: two moments (Kingma and Ba 2015)."""
LAB, RANK, TUNER, SERVER, VLLM = (size * MB for size in (450, 750, 900, 320, 1200))
"""Processes without a model, of vLLM 0.32 its two."""
KNOWN: Mapping[str, Mapping[str, Any]] = {
    "Qwen/Qwen2.5-0.5B-Instruct": {
        **{"model_type": "qwen2", "hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24},
        **{"num_attention_heads": 14, "num_key_value_heads": 2, "vocab_size": 151_936, "tie_word_embeddings": True},
    },
    "smollm2": {
        **{"model_type": "llama", "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30},
        **{"num_attention_heads": 9, "num_key_value_heads": 3, "vocab_size": 49_152, "tie_word_embeddings": True},
    },
    "Qwen/Qwen3-8B": {
        **{"model_type": "qwen3", "hidden_size": 4096, "intermediate_size": 12_288, "num_hidden_layers": 36},
        **{"num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151_936},
    },
}
"""What config.json says of the hub's models that configs/*.yaml name: to plan for them needs no network."""
Settings = PpoSettings | TuneSettings


@dataclass(frozen=True, slots=True)
class Machine:
    """Free main memory, free memory of each GPU, and free disk (None: not known)."""

    memory: int
    gpus: tuple[int, ...] = ()
    disk: int | None = None
    cores: int = 2

    @classmethod
    def here(cls, runs: Path) -> Self:
        """This machine as it is now."""
        import torch

        place = next(folder for folder in (runs.absolute(), *runs.absolute().parents) if folder.exists())
        gpus = tuple(torch.cuda.mem_get_info(number)[0] for number in range(torch.cuda.device_count()))
        memory, disk = psutil.virtual_memory().available, shutil.disk_usage(place).free
        return cls(memory, gpus, disk, len(os.sched_getaffinity(0)))


class Architecture:
    """A model's numbers, by the shapes of its tensors."""

    def __init__(self, model_config: Mapping[str, Any], folder: Path) -> None:
        shape, inner = read_shape(dict(model_config), folder), int(model_config["intermediate_size"])
        mlp = {f"model.layers.{layer}.mlp.gate_proj.weight": (inner, shape.hidden) for layer in range(shape.layers)}
        tensors = dict(expected_tensors(shape, mlp))
        in_layers = {name: size for name, size in tensors.items() if name.startswith("model.layers.")}
        self.layers, self.hidden, self.inner = shape.layers, shape.hidden, inner
        self.vocab, self.tied = shape.vocab, shape.tied
        self.queries, self.keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        self.matrices = [size for size in in_layers.values() if len(size) == 2]
        self.parameters = sum(map(prod, tensors.values()))
        self.embedding = shape.vocab * shape.hidden
        of_layers = sum(map(prod, in_layers.values()))
        self.layer = of_layers // shape.layers
        # One number a token in place of the vocabulary, with a bias.
        self.critic = of_layers + self.embedding + 2 * shape.hidden + 1

    @classmethod
    def of(cls, model: ModelConfig) -> Self:
        """The model of a slot; raises ConfigError if it is not there, or not of a family whose sizes are known."""
        if model.path in KNOWN:
            return cls(KNOWN[model.path], Path(model.path))
        file = locate(model.path) / "config.json"
        try:
            model_config = read_json_object(file)
            if model.kind == "vllm" and model_config.get("model_type") not in FAMILIES:
                families = ", ".join(FAMILIES.values())
                raise ConfigError(
                    f"{file} holds model_type {model_config.get('model_type')!r}, and plan knows {families}: name such "
                    "a model"
                )
            return cls(model_config, file.parent)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"{file} does not tell the model's sizes ({type(error).__name__}: {error})") from error

    def adapters(self, rank: int) -> int:
        """Parameters of LoRA adapters of all layers: rank x (inputs + outputs) of each matrix (Hu et al. 2021)."""
        return rank * sum(map(sum, self.matrices))

    def cache(self, tokens: int, number: int = FLOAT32) -> int:
        """Key/value cache of so many tokens, whose numbers have `number` bytes."""
        return 2 * number * self.layers * self.keys * tokens

    def activations(self, tokens: int, *, recomputed: bool) -> int:
        """What a forward pass keeps for the backward pass, by operation as in Korthikanti et al. (2022, section 4.1).

        Of each layer and token: two norms keep 3 hidden states each, the residual 1; queries, keys and values are kept
        before and after they are turned, the attention's output twice, and 4 numbers of the inner width. Recomputed,
        each layer keeps its input, and one at a time all of it. The logits of a chunk are kept four times.
        """
        layer = 7 * self.hidden + 4 * (self.queries + self.keys + self.inner)
        numbers = self.layers * self.hidden + layer if recomputed else self.layers * layer
        return FLOAT32 * (tokens * numbers + 4 * min(tokens * self.vocab, max(LOGITS, self.vocab)))


@dataclass(frozen=True, slots=True)
class Need:
    """What one process, or each of several equal ones, keeps in memory at its peak.

    Attributes:
        gpus: The GPUs that hold all parts but `process`; none: the main memory does.
        rests: When it leaves its GPUs to others, and keeps `aside` in the main memory.
    """

    who: str
    parts: Mapping[str, int]
    count: int = 1
    gpus: tuple[int, ...] = ()
    rests: Literal["", "updates", "rollouts"] = ""
    aside: int = 0

    @property
    def each(self) -> int:
        return sum(self.parts.values())


@dataclass(frozen=True, slots=True)
class Room:
    """A phase: why it does not fit (empty: it does), and settings with which it does (empty: none are known)."""

    phase: str
    needs: tuple[Need, ...]
    disk: int
    faults: tuple[str, ...]
    changes: tuple[str, ...]


def plan_run(config: Config, machine: Machine) -> list[Room]:
    """Each phase that trains weights, in the order of the run."""
    models = {slot: Architecture.of(model) for slot, model in config.served().items() if model.has_weights}
    others = [*_run_and_servers(models, config, machine), *_vllm(models, config)]
    return [
        _room(name, settings, models[slot], others, config, machine)
        for name, settings in config.pipeline.items()
        if isinstance(settings, PpoSettings | TuneSettings)
        for slot in _slots(config, name)[:1]
        if slot in models
    ]


def _slots(config: Config, name: str) -> list[str]:
    return [config.slot(role) for role in expand(config.pipeline[name].roles, f"pipeline.{name}.roles")]


def _room(
    name: str, settings: Settings, model: Architecture, others: Sequence[Need], config: Config, machine: Machine
) -> Room:
    def faults(tried: Settings) -> list[str]:
        return _lacking([*others, _learner(model, tried, len(machine.gpus))], machine)

    changes: dict[str, Any] = {}
    if shortages := faults(tried := settings):
        for key, value in _remedies(settings, len(machine.gpus), config.serving.context_length):
            tried, changes[key] = tried.model_copy(update={key: value}), value
            if not faults(tried):
                break
        else:
            changes = {}
    disk = _disk(model, settings)
    if machine.disk is not None and disk > machine.disk:
        shortages.append(f"{gigabytes(disk)} on disk, of which {gigabytes(machine.disk)} are free")
    needs = (*others, _learner(model, settings, len(machine.gpus)))
    return Room(name, needs, disk, tuple(shortages), tuple(f"pipeline.{name}.{key}={changes[key]}" for key in changes))


def _run_and_servers(models: Mapping[str, Architecture], config: Config, machine: Machine) -> Iterator[Need]:
    """The run's own processes, and the embedded server: all sets of weights, and the largest twice while it changes."""
    yield Need("main process", {"process": LAB})
    slots, serving = [slot for slot in models if config.models[slot].kind == "embedded"], config.serving
    if not slots:
        return
    learning = {slot for name in config.pipeline for slot in _slots(config, name)}
    sets = {slot if slot in learning else config.models[slot].path: slot for slot in slots}
    at_first = {config.models[slot].path: models[slot].parameters for slot in slots}  # Then slots of one path share.
    processes = decoding_processes(serving, list(at_first.values()), machine.cores, machine.memory)
    rows = -(-serving.slots // processes)
    weights = [BYTES[config.models[slot].dtype] * models[slot].parameters for slot in sets.values()]
    caches = [rows * models[slot].cache(serving.context_length + 1) for slot in sets.values()]
    swap = max(map(sum, zip(weights, caches, strict=True)))
    parts = {"process": SERVER, "weights": sum(weights), "cache": sum(caches), "while weights go live": swap}
    yield Need("model server, each decoding process", parts, processes)


def _vllm(models: Mapping[str, Architecture], config: Config) -> Iterator[Need]:
    """The vLLM servers that the run starts. Their head is apart from the embedding (`chimera.serving.vllm.weights`)."""
    served = {slot: model for slot, model in config.served().items() if model.kind == "vllm" and model.python}
    for slots in share(served, config.learning()):
        model, settings = models[slots[0]], served[slots[0]]
        number, cache = BYTES[settings.dtype], int(settings.cache_gib * GB)
        room, longest = cache // model.cache(1, number), config.serving.context_length
        if room < longest:
            raise ConfigError(
                f"models.{slots[0]}.cache_gib={settings.cache_gib:g} holds {room:,} tokens, and one request may have "
                f"{longest:,} (serving.context_length): raise the one or lower the other"
            )
        shards = len(settings.gpus[0].split(",")) if settings.gpus else 1
        weights = number * (model.parameters + model.embedding * model.tied) // shards
        parts = {"process": VLLM, "weights": weights, "cache": cache // shards}
        if settings.adapter_rank:
            parts["adapters"] = BESIDE * number * model.adapters(settings.adapter_rank) // shards
        gpus = tuple(int(gpu) for replica in settings.gpus for gpu in replica.split(",") if gpu.strip().isdecimal())
        who = f"each vLLM server of {', '.join(slots)} (cache: {room:,} tokens)"
        rests = ("updates", weights) if settings.sleep and gpus else ("", 0)
        yield Need(who, parts, settings.replicas * shards, gpus, *rests)


def _learner(model: Architecture, settings: Settings, gpus: int) -> Need:
    """Each process that updates weights. PPO's only one is in the lab's process.

    Ranks of PPO with `shards: fsdp` split weights, gradients and moments (ZeRO-3, Rajbhandari et al. 2020), and gather
    the largest unit for its computation, with its gradient. Those of fine-tuning sum gradients in buffers (DDP).
    """
    ranks, places = settings.ranks, tuple(range(settings.ranks)) if gpus else ()
    adapters = model.adapters(settings.lora_rank)
    if isinstance(settings, TuneSettings):
        trained = adapters or model.parameters
        tokens, recomputed = settings.micro_batch_size * settings.max_length, model.parameters >= LARGE_MODEL
        parts = {
            "process": TUNER,
            "weights": FLOAT32 * (model.parameters + adapters),
            "gradients": FLOAT32 * trained * (2 if ranks > 1 else 1),
            "optimiser": ADAM * FLOAT32 * trained,
            "activations": model.activations(tokens, recomputed=recomputed),
        }
        return Need("each rank of fine-tuning" if ranks > 1 else "fine-tuning", parts, ranks, places, "rollouts")
    verl, critic = settings.verl, model.critic if settings.adv_estimator == "gae" else 0
    trained = (adapters or model.parameters) + critic
    split = ranks if settings.shards == "fsdp" else 1
    in_reward = verl.get("algorithm", {}).get("use_kl_in_reward")
    compared = (settings.verl_values.actor.use_kl_loss or in_reward) and not adapters
    recomputed = bool(verl.get("model", {}).get("enable_gradient_checkpointing"))
    parts = {
        "process": RANK,
        "weights": FLOAT32 * (model.parameters + adapters + critic) // split,
        "reference": FLOAT32 * model.parameters // split if compared else 0,
        "gradients": FLOAT32 * trained // split,
        "optimiser": ADAM * FLOAT32 * trained // split,
        "activations": model.activations(settings.ppo_max_token_len_per_gpu, recomputed=recomputed),
        "gathered": 2 * FLOAT32 * max(model.embedding, model.layer) if split > 1 else 0,
    }
    named = {name: size for name, size in parts.items() if size}
    offload = all(verl.get("engine", {}).get(f"{part}_offload") for part in ("param", "optimizer")) and gpus
    rests = ("rollouts", parts["weights"] + parts["optimiser"]) if offload else ("", 0)
    return Need("each rank" if ranks > 1 else "PPO, in the lab's process", named, ranks, places, *rests)


def _disk(model: Architecture, settings: Settings) -> int:
    """Most that a phase keeps: its weights, and of PPO also checkpoints with one that is being written, each exported.

    A head that is tied to the embedding is stored once more in a checkpoint.
    """
    weights = FLOAT32 * model.parameters
    if isinstance(settings, TuneSettings):
        return weights
    most = settings.verl_values.trainer.max_actor_ckpt_to_keep + 1
    return weights + most * (weights + checkpoint_bytes(model, settings))


def checkpoint_bytes(model: Architecture, settings: PpoSettings) -> int:
    adapters = model.adapters(settings.lora_rank)
    actor = model.parameters + adapters + model.tied * model.embedding + ADAM * (adapters or model.parameters)
    return FLOAT32 * (actor + (1 + ADAM) * model.critic * (settings.adv_estimator == "gae"))


def _lacking(needs: Sequence[Need], machine: Machine) -> list[str]:
    """What does not fit into memory, with figures; a GPU's is looked at during rollouts and during updates."""
    host = sum(need.count * (need.parts["process"] + need.aside if need.gpus else need.each) for need in needs)
    shortages = dict[str, list[int]]()
    for gpu in sorted({gpu for need in needs for gpu in need.gpus}):
        here = [need for need in needs if gpu in need.gpus]
        if gpu >= len(machine.gpus):
            shortages.setdefault(f"for {here[0].who}, and there are {len(machine.gpus)}", []).append(gpu)
            continue
        for time in ("updates", "rollouts"):
            there = [need for need in here if need.rests != time]
            size, who = sum(need.each - need.parts["process"] for need in there), " and ".join(n.who for n in there)
            if size > machine.gpus[gpu]:
                text = f"for {who}: {gigabytes(size)}, of which {gigabytes(machine.gpus[gpu])} are free"
                shortages.setdefault(text, []).append(gpu)
    memory = [f"{gigabytes(host)} of memory, of which {gigabytes(machine.memory)} are free"]
    lacking = [f"GPU {', '.join(map(str, dict.fromkeys(gpus)))} {text}" for text, gpus in shortages.items()]
    return memory * (host > machine.memory) + lacking


def _remedies(settings: Settings, gpus: int, context: int) -> Iterator[tuple[str, Any]]:
    """Changes to try, each on top of those before: first those that change nothing of what is learned, then LoRA."""
    if isinstance(settings, TuneSettings):
        if settings.ranks > max(1, gpus):
            yield "ranks", max(1, gpus)
        size = settings.micro_batch_size
        while size > 1:
            yield "micro_batch_size", (size := size // 2)
    else:
        if settings.ranks != max(1, gpus):
            yield "ranks", max(1, gpus)
        if settings.shards == "copy" and gpus > 1:
            yield "shards", "fsdp"
        tokens = settings.ppo_max_token_len_per_gpu
        while tokens > context:
            yield "ppo_max_token_len_per_gpu", (tokens := max(context, tokens // 2))
        model = {**settings.verl.get("model", {}), "enable_gradient_checkpointing": True}
        yield "verl", {**settings.verl, "model": model}
    if not settings.lora_rank:
        yield "lora_rank", 16


def gigabytes(size: float) -> str:
    return f"{size / GB:.1f} GB"
