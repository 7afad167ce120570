"""Rollouts: the reward, the runners and the gateway."""

from collections.abc import Mapping
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from chimera.config.loader import ConfigSection

Weight = Annotated[float, Field(ge=-1000, le=1000)]
Penalty = Annotated[float, Field(ge=-1000, le=0)]


class RewardConfig(ConfigSection):
    """Weights of the reward's named parts. Each part is logged; the reward is the sum of the parts."""

    novelty: Weight = Field(default=0.1, description="weight of the judge's score for novelty")
    feasibility: Weight = Field(default=0.2, description="weight of the judge's score for feasibility")
    impact: Weight = Field(default=0.3, description="weight of the judge's score for impact")
    clarity: Weight = Field(default=0.15, description="weight of the judge's score for clarity")
    groundedness: Weight = Field(default=0.2, description="weight of the judge's score for groundedness")
    efficiency: Weight = Field(default=0.05, description="weight of the judge's score for efficiency")
    alignment: Weight = Field(default=1.0, description="when the answer is the label")
    parsed: Weight = Field(
        default=0.05, description="per rollout: share of role outputs that parsed at the first attempt"
    )
    call_valid: Weight = Field(default=0.05, description="per valid tool call, at most three count")
    tool_succeeded: Weight = Field(default=0.05, description="per tool call that succeeded, at most three count")
    repeated_call: Penalty = Field(default=-0.1, description="per identical repeated tool call")
    unverifiable_quote: Penalty = Field(default=-0.1, description="per final evidence sentence that no source contains")
    overlong: Penalty = Field(default=-0.1, description="when an answer was cut at its token limit")


class RolloutsConfig(ConfigSection):
    """The runner processes and the servers between them and the models."""

    runners: int = Field(default=8, ge=1, le=1024, description="runner processes, each works on one rollout at a time")
    on: Literal["here", "cluster"] = Field(
        default="here", description="where runners work: on this machine, or on any node of the Ray cluster"
    )
    timeout_s: float = Field(
        default=300.0, gt=0, le=604_800, description="seconds after which a rollout counts as failed"
    )
    max_attempts: int = Field(
        default=3,
        ge=1,
        le=100,
        description="attempts of one rollout whose runner died or hung; a failed answer is not repeated",
    )
    exploration: float = Field(
        default=0.5,
        ge=0,
        le=1,
        description="share of choices among hypotheses in training rollouts that are made evenly at random",
    )


GatewayEngine = Literal["thin", "litellm"]
"""The program that attributes, forwards and records model calls (`gateway.engine`)."""


class GatewayConfig(ConfigSection):
    """The processes that forward model calls from runners to models."""

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
    processes: int = Field(
        default=1,
        ge=1,
        le=4,
        description="thin: processes behind the gateway's one address; more than one where one is busy all the time",
    )

    def unused(self) -> Mapping[str, str]:
        return {"store_timeout_s": "gateway.engine is 'litellm'"} if self.engine == "litellm" else {}

    @model_validator(mode="after")
    def _one_litellm(self) -> Self:
        if self.engine == "litellm" and self.processes > 1:
            raise ValueError(
                f"gateway.processes={self.processes} with engine=litellm, which is one process: set gateway.processes=1"
            )
        return self
