"""Settings of the contextual bandit."""

from collections.abc import Mapping
from typing import Literal

from pydantic import Field

from chimera.config.pipeline import PhaseSettings


class BanditSettings(PhaseSettings):
    """The supervisor's contextual bandit: which junior's hypothesis goes on."""

    policy: Literal["thompson", "logistic"] = Field(
        default="thompson", description="linear Thompson sampling, or logistic regression learned by SGD"
    )
    update: Literal["direct", "ips", "dr", "hindsight"] = Field(
        default="hindsight",
        description="learn rewards as logged, weighted by inverse propensity, or doubly robust; hindsight: also what "
        "the hypotheses that were not chosen would have earned by the label",
    )
    hashed_features: int = Field(
        default=256, ge=0, le=4096, description="dimensions for hashed text; 0 leaves text out"
    )
    prior_variance: float = Field(default=0.3, gt=0, le=1e9, description="thompson: prior variance of each weight")
    noise_variance: float = Field(
        default=0.25, gt=0, le=1e9, description="thompson: variance of a reward around its mean"
    )
    lr: float = Field(default=0.05, gt=0, le=10, description="logistic: learning rate")
    epochs: int = Field(default=20, ge=1, le=10_000, description="logistic: passes over the log")
    max_weight: float = Field(default=10.0, ge=1, le=1e9, description="largest importance weight; larger ones are cut")
    min_events: int = Field(default=20, ge=1, le=1_000_000, description="fewer logged choices than this are an error")
    rounds: int = Field(
        default=1, ge=0, le=10_000, description="rounds of further rollouts that the policy itself chooses in"
    )
    tasks: int = Field(default=40, ge=1, le=1_000_000, description="training tasks of one such round")

    def needs_rollouts(self) -> bool:
        return True

    def unused(self) -> Mapping[str, str]:
        found: dict[str, str] = {}
        if self.policy == "thompson":
            found |= dict.fromkeys(("lr", "epochs"), "policy is 'thompson'")
        else:
            found |= dict.fromkeys(("prior_variance", "noise_variance"), "policy is 'logistic'")
        if self.rounds == 0:
            found["tasks"] = "rounds is 0"
        return found
