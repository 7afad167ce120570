"""Rollouts: the reward, and how they are made."""

from typing import Annotated, Literal

from pydantic import Field

from chimera.config.loader import ConfigSection, When

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
    broken_rule: Penalty = Field(
        default=-1.0, description="per tool call or answer that broke a hard rule (society.rules)"
    )


class RolloutsConfig(ConfigSection):
    """How rollouts are made: in training, gates and evaluations."""

    concurrency: int = Field(default=16, ge=1, le=10_000, description="rollouts at a time")
    on: Literal["here", "ray"] = Field(
        default="here", description="where training's society works: in the main process, or in actors of a Ray cluster"
    )
    actors: Annotated[int, When.equal("on", "ray")] = Field(
        default=8, ge=1, le=10_000, description="ray: processes, which share the rollouts at a time among them"
    )
    judges: tuple[str, ...] = Field(
        default=(),
        description="further slots that judge in turn with that of roles.Judge; one task always has the same judge, so "
        "that answers to it compare. What training never uses is evaluation.auditor",
    )
    timeout_s: float = Field(
        default=300.0, gt=0, le=604_800, description="seconds until a rollout fails, or a role in three fifths of them"
    )
    retries: int = Field(
        default=10,
        ge=0,
        le=100,
        description="further tries of a model call after 5xx or a time-out, with growing waits",
    )
    pause_s: float = Field(
        default=3600.0,
        ge=0,
        le=604_800,
        description="longest pause, in seconds, while a model's server refuses every call for its rate (429); then the "
        "run ends. Retry-After is followed within it, and time limits stand still",
    )
    exploration: float = Field(
        default=0.5,
        ge=0,
        le=1,
        description="share of choices among hypotheses in training rollouts that are made evenly at random",
    )
