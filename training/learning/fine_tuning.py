"""Settings of supervised fine-tuning."""

from typing import Annotated, Literal

from pydantic import Field

from chimera.config.loader import When
from chimera.config.pipeline import PhaseSettings
from chimera.core.errors import ConfigError
from training.learning.base import PhasePlan


class TuneSettings(PhaseSettings):
    """Fine-tuning of weights on conversations, whoever chooses them."""

    min_examples: int = Field(
        default=16, ge=1, le=1_000_000, description="fewer selected conversations than this are an error"
    )
    epochs: float = Field(default=3.0, gt=0, le=1000, description="passes over the selected conversations")
    batch_size: int = Field(default=16, ge=1, le=100_000, description="conversations per optimiser step")
    micro_batch_size: int = Field(default=8, ge=1, le=100_000, description="conversations per forward pass")
    lr: float = Field(
        default=1e-3, gt=0, le=10, description="peak learning rate; real models want 1e-5 to 2e-4, LoRA the upper end"
    )
    warmup_ratio: float = Field(default=0.1, ge=0, lt=1, description="share of steps in which the rate rises")
    max_length: int = Field(
        default=2048, ge=32, le=1_000_000, description="longer conversations are left out and counted, in tokens"
    )
    lora_rank: int = Field(
        default=0, ge=0, le=4096, description="rank of LoRA adapters, merged when saved; 0 trains all weights"
    )
    lora_alpha: Annotated[int, When.set("lora_rank")] = Field(
        default=32, ge=1, le=1_000_000, description="scale of LoRA adapters"
    )
    ranks: int = Field(
        default=1,
        ge=1,
        le=64,
        description="processes that share each optimiser step, one GPU each if there are GPUs; without Unsloth if more",
    )
    unsloth: Literal["auto", "never"] = Field(
        default="auto", description="auto: load the model through Unsloth when a GPU and Unsloth are there"
    )


class SftSettings(TuneSettings):
    """Supervised fine-tuning of roles on their own good traces."""

    select: Literal["quantile", "threshold"] = Field(
        default="quantile", description="take the best share of each role's rollouts, or all that reach a reward"
    )
    quantile: Annotated[float, When.equal("select", "quantile")] = Field(
        default=0.6, gt=0, le=1, description="share of each role's rollouts to take, best first"
    )
    threshold: Annotated[float, When.equal("select", "threshold")] = Field(
        default=1.5, ge=-1e6, le=1e6, description="smallest reward of a rollout to learn from"
    )
    credited: Literal["all", "agreeing", "selected"] = Field(
        default="agreeing",
        description="whose turns of a good rollout: all of them, those whose answer is the society's, "
        "or the selected author's",
    )
    true_quotes: Literal["prefer", "require", "ignore"] = Field(
        default="prefer",
        description="conversations that quote what is in none of the passages they read are left out (prefer: unless "
        "fewer than min_examples would be left, which is told)",
    )

    def needs_rollouts(self) -> bool:
        return True


def check_batches(plan: PhasePlan, settings: TuneSettings) -> None:
    """Raise ConfigError if a batch is no whole number of micro-batches."""
    if settings.batch_size % settings.micro_batch_size:
        raise ConfigError(
            f"{plan.name}.batch_size={settings.batch_size} is no multiple of {plan.name}.micro_batch_size="
            f"{settings.micro_batch_size}: make it one, so that every optimiser step takes whole micro-batches"
        )
