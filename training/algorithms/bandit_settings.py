"""Settings of the contextual bandit."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from chimera.config.loader import When
from chimera.config.pipeline import PhaseSettings


class BanditSettings(PhaseSettings):
    """The supervisor's contextual bandit: which junior's hypothesis goes on, or whether juniors search once more."""

    learns_weights: ClassVar[bool] = False

    policy: Literal["thompson", "logistic"] = Field(
        default="thompson", description="linear Thompson sampling, or logistic regression learned by SGD"
    )
    update: Literal["direct", "ips", "dr", "hindsight"] = Field(
        default="hindsight",
        description="learn rewards as logged, weighted by inverse propensity, or doubly robust; hindsight: also what "
        "the hypotheses that were not chosen would have earned by the label",
    )
    lr: Annotated[float, When.equal("policy", "logistic")] = Field(
        default=0.05, gt=0, le=10, description="logistic: learning rate"
    )
    epochs: Annotated[int, When.equal("policy", "logistic")] = Field(
        default=20, ge=1, le=10_000, description="logistic: passes over the log"
    )
    max_weight: Annotated[float, When.equal("update", "ips", "dr")] = Field(
        default=10.0, ge=1, le=1e9, description="largest importance weight; larger ones are cut"
    )
    min_events: int = Field(default=20, ge=1, le=1_000_000, description="fewer logged choices than this are an error")
    rounds: int = Field(
        default=1, ge=0, le=10_000, description="rounds of further rollouts that the policy itself chooses in"
    )
    tasks: Annotated[int, When.set("rounds")] = Field(
        default=40, ge=1, le=1_000_000, description="training tasks of one such round"
    )

    token_price: float = Field(
        default=0.0, ge=0, le=1000, description="reward that 1,000 tokens of a rollout cost; 0: tokens cost nothing"
    )

    def most(self) -> str:
        return f"{self.rounds * self.tasks:,} rollouts"

    def needs_rollouts(self) -> bool:
        return True
