"""Settings of PPO."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from chimera.config.loader import ADDED, When
from training.learning.groups import BranchSettings

Order = Literal["even", "pass_rate", "level"]
Credit = Literal["broadcast", "calls", "return_to_go", "sub_goals", "counterfactual"]
OF_ROLLOUTS, OF_CRITIC = When.unset("states"), When.equal("adv_estimator", "gae")
OF_VALIDATION = When(
    "verl", lambda verl: VerlValues.model_validate(verl).trainer.test_freq > 0, "with trainer.test_freq above 0"
)


class _Values(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True, allow_inf_nan=False)


class _ActorValues(_Values):
    ppo_epochs: int = Field(default=1, ge=1, le=1000)
    clip_ratio_low: float = Field(default=0.2, gt=0, lt=1)
    clip_ratio_high: float = Field(default=0.28, gt=0, le=100)
    entropy_coeff: float = Field(default=0.0, ge=0, le=1000)
    use_kl_loss: bool = False
    kl_loss_coef: float = Field(default=0.001, ge=0, le=1000)
    kl_loss_type: Literal["kl", "abs", "mse", "low_var_kl"] = "low_var_kl"
    clip_ratio_c: float = Field(default=3.0, gt=1, le=1e9)
    loss_agg_mode: Literal["token-mean", "seq-mean-token-sum", "seq-mean-token-mean"] = "token-mean"


class _CriticValues(_Values):
    cliprange_value: float = Field(default=0.5, gt=0, le=1e9)


class _OptimValues(_Values):
    clip_grad: float = Field(default=1.0, gt=0, le=1e9)
    lr_warmup_steps: int = Field(default=-1, ge=-1, le=1_000_000)


class _KlControl(_Values):
    type: Literal["fixed", "adaptive"] = "fixed"
    kl_coef: float = Field(default=0.001, ge=0, le=1000)
    horizon: int = Field(default=10_000, ge=1, le=1_000_000_000)
    target_kl: float = Field(default=0.1, gt=0, le=1000)


class _AlgorithmValues(_Values):
    gamma: float = Field(default=1.0, gt=0, le=1)
    lam: float = Field(default=0.95, ge=0, le=1)
    norm_adv_by_std_in_grpo: bool = True
    kl_penalty: Literal["kl", "k1", "abs", "mse", "k2", "low_var_kl", "k3"] = "kl"
    kl_ctrl: _KlControl = _KlControl()


class _TrainerValues(_Values):
    save_freq: int = Field(default=1, ge=1, le=1_000_000)
    test_freq: int = Field(default=-1, ge=-1, le=1_000_000)
    max_actor_ckpt_to_keep: int = Field(default=1, ge=1, le=10_000)


class VerlValues(_Values):
    """What Chimera reads of VeRL's configuration, or has defaults of its own for; a phase's `verl` overrides them."""

    actor: _ActorValues = _ActorValues()
    critic: _CriticValues = _CriticValues()
    optim: _OptimValues = _OptimValues()
    algorithm: _AlgorithmValues = _AlgorithmValues()
    trainer: _TrainerValues = _TrainerValues()


DEFAULTS: Mapping[str, Mapping[str, Any]] = VerlValues().model_dump()
"""The same, by part."""


class PpoSettings(BranchSettings):
    """Online learning through VeRL; keys named as in VeRL mean what they mean there, but for `critic_warmup`."""

    adv_estimator: Literal["gae", "grpo", "rloo", "reinforce_plus_plus"] = Field(
        default="grpo", description="VeRL's advantage estimator; gae trains a critic beside the actor"
    )
    reward: dict[str, float] = Field(default={}, description=BranchSettings.model_fields["reward"].description)
    start: str | None = Field(
        default=None, min_length=1, description="slot whose live weights it begins with; its own slot's without it"
    )
    states: int = Field(
        default=0,
        ge=0,
        le=1_000_000,
        description="recorded prompts of one step, each answered n times; 0 learns from rollouts of the society",
    )
    curriculum: Annotated[Order, When.set("states")] = Field(
        default="even",
        description="which prompts come next: even: all in turn; pass_rate: first those that are answered right and "
        "wrong; level: from the easiest tasks to the hardest",
    )
    steps: int = Field(default=6, ge=1, le=1_000_000, description="online steps: rollouts, then one update")
    tasks_per_step: Annotated[int, OF_ROLLOUTS] = Field(
        default=8, ge=1, le=1_000_000, description="training tasks of one step of rollouts"
    )
    n: int = Field(default=4, ge=1, le=10_000, description="rollouts per task, or answers to each of `states`")
    credit: Annotated[Credit, OF_ROLLOUTS] = Field(
        default="calls",
        description="broadcast: every call gets the rollout's reward; calls: each call gets its own parsed, call_valid "
        "and tool_succeeded rewards plus the rest of the rollout's; return_to_go: also its role's later ones; "
        "sub_goals: also some for what its answer has, such as true quotes, and less of the rest by gamma for each "
        "later call; counterfactual: less the rest of a replay with the weights that the phase began with",
    )
    sub_goal_weight: Annotated[float, OF_ROLLOUTS, When.equal("credit", "sub_goals")] = Field(
        default=0.2, gt=0, le=1000, description="sub_goals: what all of an answer's earn"
    )
    role_baseline: Annotated[bool, OF_ROLLOUTS, When.unless("credit", "counterfactual")] = Field(
        default=True,
        description="subtract what the hypothesis that a role was handed would have earned in alignment unchanged",
    )
    lr: float = Field(default=5e-4, gt=0, le=10, description="learning rate of the actor")
    ppo_mini_batch_size: int = Field(
        default=40,
        ge=1,
        le=1_000_000,
        description="calls per optimiser step; the calls of an online step are split evenly",
    )
    ppo_max_token_len_per_gpu: int = Field(default=8192, ge=64, le=100_000_000, description="tokens of one micro-batch")
    critic_lr: Annotated[float, OF_CRITIC] = Field(
        default=1e-3, gt=0, le=10, description="gae: learning rate of the critic"
    )
    critic_warmup: Annotated[int, OF_CRITIC] = Field(
        default=1, ge=0, le=1_000_000, description="gae: first steps that train the critic only; in VeRL one fewer"
    )
    lora_rank: int = Field(
        default=0, ge=0, le=4096, description="rank of LoRA adapters, merged when saved; 0 trains all weights"
    )
    lora_alpha: Annotated[int, When.set("lora_rank")] = Field(
        default=32, ge=1, le=1_000_000, description="scale of LoRA adapters"
    )
    test_tasks: Annotated[int, OF_VALIDATION] = Field(
        default=20, ge=1, le=1_000_000, description="validation tasks each time"
    )
    step_timeout_s: Annotated[float, OF_ROLLOUTS] = Field(
        default=300.0, gt=0, le=604_800, description="seconds to wait for one step's rollouts"
    )
    min_good_share: Annotated[float, OF_ROLLOUTS] = Field(
        default=0.5,
        gt=0,
        le=1,
        description="share of a step's rollouts that must be usable; the step is skipped otherwise",
    )
    ranks: int = Field(
        default=1,
        ge=1,
        le=1024,
        description="processes that share each update, one GPU each if there are GPUs; 1 updates in this process",
    )
    shards: Annotated[Literal["copy", "fsdp"], When("ranks", lambda ranks: ranks > 1, "above 1")] = Field(
        default="copy", description="copy: each rank has all weights; fsdp: weights and optimiser are split over ranks"
    )
    ahead: int = Field(
        default=0,
        ge=0,
        le=1,
        description="1: what the next step learns from is asked for while this step's update runs, so of weights one "
        "version older than those that then learn from it; tokens are weighted for it by VeRL's rollout correction; "
        "older ones are left out",
    )
    rollout_is: Annotated[Literal["token", "sequence"], When.set("ahead")] = Field(
        default="token",
        description="ahead: importance weights of single tokens (biased, they vary less), or of whole answers",
    )
    rollout_is_threshold: Annotated[float, When.set("ahead")] = Field(
        default=2.0, gt=0, le=1e6, description="ahead: importance weights above it are cut off to it"
    )
    verl: Annotated[dict[str, Any], ADDED] = Field(
        default={},
        description="more of VeRL's configuration, by actor, critic, engine, optim, model, algorithm and trainer, such "
        "as {actor: {clip_ratio_high: 0.28, use_kl_loss: true}, optim: {clip_grad: 1}, trainer: {save_freq: 2}}; "
        "what is set is added to the default",
    )

    @property
    def verl_values(self) -> VerlValues:
        """What `verl` sets of the values that Chimera reads, and their defaults."""
        return VerlValues.model_validate(self.verl)

    @field_validator("verl")
    @classmethod
    def _has_valid_values(cls, value: dict[str, Any]) -> dict[str, Any]:
        try:
            VerlValues.model_validate(value)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            raise ValueError(f"{'.'.join(map(str, first['loc']))} is {first['input']!r}: {first['msg']}") from None
        return value

    def needs_rollouts(self) -> bool:
        return self.states > 0 and self.tasks == 0

    def needs_log_probs(self) -> bool:
        return self.ahead > 0

    def idle(self) -> Mapping[str, str]:
        return {} if self.states else dict.fromkeys(("tasks", "value"), "states is 0, so it learns from rollouts")
