"""Memory and disk of a run's processes. Pure functions; sizes in bytes."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from training.algorithms.ppo.settings import PpoSettings
from training.algorithms.sft.settings import SftSettings
from training.planning.sizes import FLOAT32, Architecture

ADAM = 2
"""Numbers that AdamW keeps of each trained parameter: two moments (Kingma and Ba 2015)."""
MEGABYTE = 2**20
BARE_RANK, BARE_TUNER, BARE_SERVER, BARE_LAB = 750 * MEGABYTE, 900 * MEGABYTE, 320 * MEGABYTE, 450 * MEGABYTE
"""Processes without a model, measured on Linux with Python 3.11: their libraries. The lab's is with its gateway."""
BARE_FRONT = 90 * MEGABYTE
"""The server's process where others decode for it, measured likewise: it has no torch."""
RUNNER = 60 * MEGABYTE
"""What a runner does not share with the process that it is forked from, measured likewise."""
LARGE_MODEL = 500_000_000
"""From so many parameters on, fine-tuning recomputes activations (`training.algorithms.sft.child`)."""


@dataclass(frozen=True, slots=True)
class Need:
    """What one process, or each of several equal ones, keeps in memory at its peak.

    Attributes:
        parts: Bytes by what they hold.
        device: "gpu" if the parts other than `process` are in a GPU's memory where there is one.
        count: How many of these processes there are.
        places: The numbers of the GPUs that they take, where they are known.
        rests: When it leaves its GPUs to others: "updates" for servers that sleep during updates, "rollouts" for
            learners that keep nothing there between updates.
        aside: Bytes that it keeps in the main memory while it rests.
    """

    who: str
    parts: Mapping[str, int]
    device: str = "cpu"
    count: int = 1
    places: tuple[int, ...] = ()
    rests: Literal["", "updates", "rollouts"] = ""
    aside: int = 0

    @property
    def each(self) -> int:
        """Bytes of one process."""
        return sum(self.parts.values())


def ppo_need(model: Architecture, settings: PpoSettings, who: str) -> Need:
    """Each rank of a PPO phase. With one rank it is in the lab's process.

    With `shards: fsdp` weights, gradients and moments are split over the ranks (ZeRO-3, Rajbhandari et al. 2020), and
    the largest unit that is gathered for its computation comes on top, with its gradient.
    """
    whole, gae = model.parameters, settings.adv_estimator == "gae"
    adapters = model.adapter_parameters(settings.lora_rank)
    trained = adapters or whole
    critic = model.critic_parameters if gae else 0
    in_reward = bool(settings.verl.get("algorithm", {}).get("use_kl_in_reward"))
    reference = whole if (settings.use_kl_loss or in_reward) and not adapters else 0
    split = settings.ranks if settings.ranks > 1 and settings.shards == "fsdp" else 1
    engine = settings.verl.get("model", {})
    recomputed = bool(engine.get("enable_gradient_checkpointing"))
    parts = {
        "process": BARE_RANK,
        "weights": FLOAT32 * (whole + adapters + critic) // split,
        "reference": FLOAT32 * reference // split,
        "gradients": FLOAT32 * (trained + critic) // split,
        "optimiser": ADAM * FLOAT32 * (trained + critic) // split,
        "activations": model.activation_bytes(settings.ppo_max_token_len_per_gpu, recomputed=recomputed),
        "gathered": 2 * FLOAT32 * max(model.embedding, model.layer_parameters) if split > 1 else 0,
    }
    named = {name: size for name, size in parts.items() if size}
    of_engine = settings.verl.get("engine", {})
    places = tuple(range(settings.ranks))
    if not (of_engine.get("param_offload") and of_engine.get("optimizer_offload")):
        return Need(who, named, "gpu", settings.ranks, places)
    return Need(who, named, "gpu", settings.ranks, places, "rollouts", parts["weights"] + parts["optimiser"])


def tuning_need(model: Architecture, settings: SftSettings, who: str) -> Need:
    """Each process that fine-tunes; they all have whole copies. Several sum gradients in buffers of their own (DDP)."""
    adapters = model.adapter_parameters(settings.lora_rank)
    trained = adapters or model.parameters
    tokens = settings.micro_batch_size * settings.max_length
    parts = {
        "process": BARE_TUNER,
        "weights": FLOAT32 * (model.parameters + adapters),
        "gradients": FLOAT32 * trained * (2 if settings.ranks > 1 else 1),
        "optimiser": ADAM * FLOAT32 * trained,
        "activations": model.activation_bytes(tokens, recomputed=model.parameters >= LARGE_MODEL),
    }
    return Need(who, parts, "gpu", settings.ranks, tuple(range(settings.ranks)), "rollouts")


def serving_needs(
    models: Mapping[str, tuple[Architecture, int]], rows: int, context: int, processes: int
) -> list[Need]:
    """The embedded server: each set of weights with its cache, and once more the largest while new weights go live.

    Of several processes that decode each has all weights and its share of the rows; one more takes the requests.

    Where the processor does not multiply bfloat16 itself, the cache is in float32 whatever the weights are.

    Args:
        models: By what tells sets of weights apart: the model, and the bytes of a weight in the server.
        rows: Requests that are decoded together, by all processes.
        context: Most tokens of a request.
        processes: How many decode.
    """
    share = -(-rows // processes)
    sizes = [number * one.parameters for one, number in models.values()]
    caches = [share * one.cache_bytes(context) for one, _ in models.values()]
    swap = max((weights + cache for weights, cache in zip(sizes, caches, strict=True)), default=0)
    parts = {"process": BARE_SERVER, "weights": sum(sizes), "cache": sum(caches), "while weights go live": swap}
    if processes == 1:
        return [Need("model server", parts)]
    return [Need("model server", {"process": BARE_FRONT}), Need("each decoding process", parts, count=processes)]


def checkpoint_bytes(model: Architecture, settings: PpoSettings) -> int:
    """One checkpoint of a PPO phase: weights and moments of the actor and, with gae, of the critic.

    A head that is tied to the embedding is stored once more.
    """
    adapters = model.adapter_parameters(settings.lora_rank)
    stored = model.parameters + adapters + model.tied * model.embedding
    actor = stored + ADAM * (adapters or model.parameters)
    critic = (1 + ADAM) * model.critic_parameters if settings.adv_estimator == "gae" else 0
    return FLOAT32 * (actor + critic)


def ppo_disk(model: Architecture, settings: PpoSettings) -> int:
    """Most that a PPO phase keeps on disk: checkpoints with one that is being written, and the weights of each."""
    kept = settings.max_actor_ckpt_to_keep + 1
    return kept * (checkpoint_bytes(model, settings) + FLOAT32 * model.parameters) + FLOAT32 * model.parameters


def update_operations(model: Architecture, settings: PpoSettings, tokens: int) -> float:
    """Floating-point operations of one update by all ranks: log-probabilities before, and `ppo_epochs` passes.

    A training pass is three forward passes: one forward and twice as much backward.
    """
    forward = model.operations(tokens)
    in_reward = bool(settings.verl.get("algorithm", {}).get("use_kl_in_reward"))
    passes = 1 + (settings.use_kl_loss or in_reward) + 3 * settings.ppo_epochs
    critic = (1 + 3 * settings.ppo_epochs) if settings.adv_estimator == "gae" else 0
    return forward * (passes + critic)
