"""The configuration of the gate, and of Weights & Biases."""

from typing import Annotated, Literal

from pydantic import Field

from chimera.config.loader import ConfigSection, When


class GateConfig(ConfigSection):
    """The comparison after each learning phase: new policies with those live before, the base and the best stage."""

    tasks: int = Field(
        default=100, ge=0, le=1_000_000, description="validation tasks, at least 2; 0: no policy is compared first"
    )
    margin: float = Field(
        default=0.1,
        gt=0,
        le=1e6,
        description="loss of mean reward that is rolled back; a smaller one is tolerated unless it is significant",
    )
    alarm: Annotated[Literal["warn", "refuse"], When.set("tasks")] = Field(
        default="warn",
        description="what happens when the judge scores a new policy significantly higher and the second judge "
        "(evaluation.auditor) significantly lower: it is said, or the policy is rolled back too",
    )
    margin_alignment: float = Field(
        default=0.05, gt=0, lt=1, description="the same for the share of right answers: 0.05 is 5 points"
    )


class WandbConfig(ConfigSection):
    """Weights & Biases. Everything that it shows is also in metrics.jsonl."""

    mode: Literal["auto", "online", "offline", "disabled"] = Field(
        default="auto", description="auto: online when WANDB_API_KEY is set, offline otherwise"
    )
