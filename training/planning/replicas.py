"""What vLLM servers need: memory of each replica, tokens in its cache, and the GPUs that are named. Pure functions."""

from collections.abc import Mapping, Sequence

from chimera.config.sections.models import ModelConfig
from chimera.config.tree import Config
from chimera.serving.embedded.checkpoint import BYTES
from chimera.serving.vllm.adapters import BESIDE
from chimera.serving.vllm.sharing import share
from training.planning.needs import MEGABYTE, Need
from training.planning.sizes import Architecture

SERVER = "vLLM server"
BARE_VLLM = 1200 * MEGABYTE
"""A vLLM 0.32 server without weights and cache, measured on a processor: its two processes."""


def vllm_needs(models: Mapping[str, Architecture], config: Config) -> list[Need]:
    """The vLLM servers that the run starts; those that run already have their memory."""
    served = _started(config)
    found: list[Need] = []
    for slots in share(served, config.learning()):
        model, settings = models[slots[0]], served[slots[0]]
        who = f"each {SERVER} of {', '.join(slots)} (cache: {cache_tokens(model, settings):,} tokens)"
        found.append(vllm_need(model, settings, who))
    return found


def _started(config: Config) -> dict[str, ModelConfig]:
    return {slot: one for slot, one in config.served().items() if one.kind == "vllm" and one.python}


def vllm_need(model: Architecture, settings: ModelConfig, who: str) -> Need:
    """The vLLM servers of one set of weights; one that is divided among GPUs counts as several.

    vLLM keeps the head apart from the embedding here (`chimera.serving.vllm.weights`). It takes `cache_gib` whether or
    not requests need it.
    """
    shards = len(settings.gpus[0].split(",")) if settings.gpus else 1
    head = model.embedding if model.tied else 0
    parts = {
        "process": BARE_VLLM,
        "weights": BYTES[settings.dtype] * (model.parameters + head) // shards,
        "cache": int(settings.cache_gib * 2**30) // shards,
    }
    if settings.adapter_rank:
        parts["adapters"] = BESIDE * BYTES[settings.dtype] * model.adapter_parameters(settings.adapter_rank) // shards
    named = [place for replica in settings.gpus for place in replica.split(",")]
    places = tuple(int(place) for place in named if place.strip().isdecimal())
    if not settings.sleep:
        return Need(who, parts, "gpu" if settings.gpus else "cpu", settings.replicas * shards, places)
    return Need(who, parts, "gpu", settings.replicas * shards, places, "updates", parts["weights"])


def cache_tokens(model: Architecture, settings: ModelConfig) -> int:
    """Tokens for which the key/value cache of one vLLM replica has room."""
    per_token = model.cache_bytes(1, BYTES[settings.dtype]) - model.cache_bytes(0, BYTES[settings.dtype])
    return int(settings.cache_gib * 2**30) // per_token


def lacking_caches(models: Mapping[str, Architecture], config: Config) -> list[str]:
    """Sentences about caches in which not even one request has room, with which vLLM does not start."""
    found: list[str] = []
    for slot, settings in _started(config).items():
        room, longest = cache_tokens(models[slot], settings), config.serving.context_length
        if room < longest:
            found.append(
                f"a cache for {longest:,} tokens (serving.context_length), and models.{slot}.cache_gib="
                f"{settings.cache_gib:g} holds {room:,}"
            )
    return found


def lacking_places(needs: Sequence[Need], gpus: Sequence[tuple[str, int]]) -> list[str]:
    """Sentences about GPUs that are named and not there, or that several processes share without room for all."""
    found: list[str] = []
    wanted = {place for need in needs if need.device == "gpu" for place in need.places}
    for place in sorted(wanted):
        here = [need for need in needs if place in need.places and need.device == "gpu"]
        if place >= len(gpus):
            if any(SERVER in need.who for need in here):
                found.append(f"GPU {place} for {here[0].who}, and there are {len(gpus)}")
            continue
        room = gpus[place][1]
        in_updates, in_rollouts = ([one for one in here if one.rests != time] for time in ("updates", "rollouts"))
        for together in [in_updates, in_rollouts] if in_updates != in_rollouts else [here]:
            size = sum(need.each - need.parts.get("process", 0) for need in together)
            if len(together) > 1 and size > room:
                who = " and ".join(need.who for need in together)
                found.append(f"{gigabytes(size)} on GPU {place} for {who}, of which {gigabytes(room)} are free")
    return found


def gigabytes(size: float) -> str:
    return f"{size / 2**30:.1f} GB"
