"""Makes VeRL 0.9.1's configuration from our PPO settings, and checks the values that are passed through.

`ppo.verl` holds further VeRL keys by part: actor, critic, engine, optim, model, algorithm and trainer. A key is
accepted if it has an effect in one process with one device, and token records still show the loss: not `policy_loss`.
One that a `ppo` key sets is refused, so every value has one place.
"""

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chimera.core.errors import ConfigError, suggestion
from training.ppo.verl.settings import DEFAULTS, PpoSettings

if TYPE_CHECKING:
    from verl.trainer.config import AlgoConfig
    from verl.workers.config import ActorConfig, CriticConfig, FSDPEngineConfig, FSDPOptimizerConfig, HFModelConfig

PASSED: dict[str, frozenset[str]] = {
    "actor": frozenset({*DEFAULTS["actor"], "shuffle", "calculate_entropy"}),
    "critic": frozenset(
        {*DEFAULTS["critic"], "ppo_epochs", "ppo_mini_batch_size", "shuffle", "loss_agg_mode", "loss_scale_factor"}
    ),
    "engine": frozenset(
        {
            *("param_offload", "optimizer_offload", "offload_policy", "reshard_after_forward", "forward_prefetch"),
            *("wrap_policy", "model_dtype", "mixed_precision", "infer_max_token_len_per_gpu", "use_torch_compile"),
            *("entropy_checkpointing", "entropy_from_logits_with_chunking", "entropy_from_logits_chunk_size"),
            *("use_no_sync_for_gradient_accumulation", "pad_to_length", "pad_to_length_bucket"),
        }
    ),
    "optim": frozenset(
        {
            *(*DEFAULTS["optim"], "optimizer", "optimizer_impl", "override_optimizer_config", "weight_decay", "betas"),
            *("lr_scheduler_type", "lr_warmup_steps_ratio", "min_lr_ratio", "num_cycles", "zero_indexed_step"),
        }
    ),
    "model": frozenset(
        {
            *("override_config", "enable_gradient_checkpointing", "enable_activation_offload", "target_modules"),
            *("target_parameters", "exclude_modules", "use_liger"),
        }
    ),
    "trainer": frozenset(DEFAULTS["trainer"]),
    "algorithm": frozenset({*DEFAULTS["algorithm"], "use_kl_in_reward"}),
}
"""Keys of VeRL's classes that can be set, by part."""

OURS: dict[str, dict[str, str]] = {
    "actor": {
        "ppo_mini_batch_size": "ppo_mini_batch_size",
        "ppo_max_token_len_per_gpu": "ppo_max_token_len_per_gpu",
        "rollout_n": "n",
    },
    "critic": {"ppo_max_token_len_per_gpu": "ppo_max_token_len_per_gpu"},
    "engine": {"max_token_len_per_gpu": "ppo_max_token_len_per_gpu"},
    "optim": {"lr": "lr", "total_training_steps": "steps"},
    "model": {"lora_rank": "lora_rank", "lora_alpha": "lora_alpha"},
    "trainer": {"critic_warmup": "critic_warmup"},
    "algorithm": {"adv_estimator": "adv_estimator"},
}
"""Keys of VeRL's classes that our keys set: part -> VeRL's key -> our key."""

FLOAT32 = {"param_dtype": "fp32", "reduce_dtype": "fp32", "buffer_dtype": "fp32"}
"""Without it VeRL computes in bfloat16, whatever the type of the weights."""


@dataclass(frozen=True, slots=True)
class VerlConfig:
    """VeRL's configuration objects for one engine. `critic` and its optimiser are used only with gae."""

    actor: "ActorConfig"
    critic: "CriticConfig"
    engine: "FSDPEngineConfig"
    actor_optim: "FSDPOptimizerConfig"
    critic_optim: "FSDPOptimizerConfig"
    algorithm: "AlgoConfig"


def check_verl(verl: Mapping[str, Any], phase: str = "ppo") -> None:
    """Check the names in the phase's `verl` without importing VeRL. Values are checked when the engine is built.

    Raises:
        ConfigError: A part or a key is unknown, cannot be set here, or is set by one of our keys.
    """
    for part, values in verl.items():
        if part not in PASSED:
            raise ConfigError(f"{phase}.verl has no part {part!r}{_choices(part, PASSED)}")
        if not isinstance(values, Mapping):
            raise ConfigError(f"{phase}.verl.{part} is {values!r}: it must be a mapping of VeRL's keys")
        for key in values:
            if ours := OURS[part].get(key):
                raise ConfigError(f"{phase}.verl.{part}.{key} is set by {phase}.{ours}: set that and leave this out")
            if key not in PASSED[part]:
                raise ConfigError(f"{phase}.verl.{part}.{key} cannot be set here{_choices(key, PASSED[part])}")


def make_config(config: PpoSettings, total_steps: int, phase: str) -> VerlConfig:
    """VeRL's configuration for these settings of the phase `phase`. VeRL must be loaded.

    Raises:
        ConfigError: VeRL refuses a value in the phase's `verl`.
    """
    from verl.trainer.config import AlgoConfig
    from verl.workers.config import ActorConfig, CriticConfig, FSDPEngineConfig, FSDPOptimizerConfig

    shared = {"strategy": "fsdp2", "use_dynamic_bsz": True, "rollout_n": config.n}
    shared["ppo_max_token_len_per_gpu"] = config.ppo_max_token_len_per_gpu
    shared["ppo_mini_batch_size"] = config.ppo_mini_batch_size
    values = config.verl_values
    actor = values.actor.model_dump()
    critic = values.critic.model_dump() | {key: actor[key] for key in ("ppo_epochs", "loss_agg_mode")}
    optim = {**values.optim.model_dump(), "total_training_steps": total_steps}
    sharded = config.ranks > 1 and config.shards == "fsdp"
    engine = {
        "strategy": "fsdp2",
        "fsdp_size": -1 if sharded else 1,
        "max_token_len_per_gpu": config.ppo_max_token_len_per_gpu,
        "infer_max_token_len_per_gpu": config.ppo_max_token_len_per_gpu,
        "mixed_precision": FLOAT32,
        "use_torch_compile": False,
        # Where nothing is sharded, gathering the weights again for the backward pass would only copy them.
        "reshard_after_forward": sharded,
    }
    algorithm = {"adv_estimator": config.adv_estimator, **values.algorithm.model_dump()}

    def build(kind: type[Any], part: str, base: Mapping[str, Any]) -> Any:
        return _made(kind, {**base, **config.verl.get(part, {})}, f"{phase}.verl.{part}")

    return VerlConfig(
        actor=build(ActorConfig, "actor", {**shared, "shuffle": True, **actor}),
        critic=build(CriticConfig, "critic", {**shared, **critic}),
        engine=build(FSDPEngineConfig, "engine", engine),
        actor_optim=build(FSDPOptimizerConfig, "optim", {**optim, "lr": config.lr}),
        critic_optim=build(FSDPOptimizerConfig, "optim", {**optim, "lr": config.critic_lr}),
        algorithm=build(AlgoConfig, "algorithm", algorithm),
    )


def model_config(folder: Path, config: PpoSettings, *, attention: str, lora: bool, phase: str) -> "HFModelConfig":
    """VeRL's configuration of the model in `folder`. VeRL must be loaded.

    Args:
        attention: The `attn_implementation` of transformers, unless `ppo.verl.model.override_config` names one.
        lora: True if the model gets the configured adapters.
        phase: The phase's name, for errors.

    Raises:
        ConfigError: VeRL refuses a value in `verl.model`.
    """
    from verl.workers.config import HFModelConfig

    passed = dict(config.verl.get("model", {}))
    override = {"attn_implementation": attention, **passed.pop("override_config", {})}
    base = {
        "path": str(folder),
        # Exports copy the tokenizer's files, so VeRL need not load it.
        "load_tokenizer": False,
        "override_config": override,
        "use_remove_padding": True,
        "enable_gradient_checkpointing": False,
        "lora_rank": config.lora_rank if lora else 0,
        "lora_alpha": config.lora_alpha,
    }
    return _made(HFModelConfig, {**base, **passed}, f"{phase}.verl.model")


def _made(kind: type[Any], values: Mapping[str, Any], where: str) -> Any:
    """Make an object of VeRL's configuration class. Nested mappings become the classes of their fields."""
    fields = {field.name: field for field in dataclasses.fields(kind)}
    arguments: dict[str, Any] = {}
    for key, value in values.items():
        if key not in fields:
            raise ConfigError(f"{where}.{key} is unknown{_choices(key, fields)}")
        factory = fields[key].default_factory
        if isinstance(value, Mapping) and isinstance(factory, type) and dataclasses.is_dataclass(factory):
            value = _made(factory, value, f"{where}.{key}")
        arguments[key] = tuple(value) if key == "betas" else value
    try:
        return kind(**arguments)
    except (AssertionError, TypeError, ValueError) as error:
        raise ConfigError(f"{where}: VeRL refuses it ({type(error).__name__}: {error})") from error


def _choices(name: str, names: Iterable[str]) -> str:
    """Ends the message about an unknown name."""
    hint = suggestion(name, names)
    return f"{hint and f' ({hint})'}: there are {', '.join(sorted(names))}"
