"""The configuration of what is learned: one section for each learning phase, the gate, and Weights & Biases."""

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field

from chimera.config.loader import Section

CRITIC_KEYS = ("critic_lr", "critic_warmup", "cliprange_value", "lam")


class SftConfig(Section):
    """Supervised fine-tuning of the juniors on their own good traces."""

    select: Literal["quantile", "threshold"] = Field(
        default="quantile", description="take the best share of each role's rollouts, or all that reach a reward"
    )
    quantile: float = Field(default=0.6, gt=0, le=1, description="share of each role's rollouts to take, best first")
    threshold: float = Field(default=1.5, ge=-1e6, le=1e6, description="smallest reward of a rollout to learn from")
    credited: Literal["all", "agreeing", "selected"] = Field(
        default="agreeing",
        description="whose turns of a good rollout: all juniors', those whose answer is the society's, "
        "or the selected junior's",
    )
    true_quotes: Literal["prefer", "require", "ignore"] = Field(
        default="prefer",
        description="conversations that quote what is in none of the passages they read are left out (prefer: unless "
        "fewer than min_examples would be left, which is told)",
    )
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
    lora_alpha: int = Field(default=32, ge=1, le=1_000_000, description="scale of LoRA adapters")
    unsloth: Literal["auto", "never"] = Field(
        default="auto", description="auto: load the model through Unsloth when a GPU and Unsloth are there"
    )

    def unused(self) -> Mapping[str, str]:
        """The other way of selection, and LoRA's scale without LoRA."""
        other = "threshold" if self.select == "quantile" else "quantile"
        found = {other: f"sft.select is {self.select!r}"}
        return found if self.lora_rank else found | {"lora_alpha": "sft.lora_rank is 0"}


class PpoConfig(Section):
    """Online learning of the seniors through VeRL; keys named as in VeRL mean what they mean there."""

    adv_estimator: Literal["gae", "grpo", "rloo", "reinforce_plus_plus"] = Field(
        default="grpo", description="VeRL's advantage estimator; gae trains a critic beside the actor"
    )
    steps: int = Field(default=6, ge=1, le=1_000_000, description="online steps: rollouts, then one update")
    tasks_per_step: int = Field(default=8, ge=1, le=1_000_000, description="training tasks of one step")
    n: int = Field(default=4, ge=1, le=10_000, description="rollouts per task")
    credit: Literal["broadcast", "calls"] = Field(
        default="calls",
        description="broadcast: every call gets the rollout's reward; calls: each call gets its own parsed, call_valid "
        "and tool_succeeded rewards plus the rest of the rollout's",
    )
    role_baseline: bool = Field(
        default=True,
        description="subtract what the hypothesis that a senior was handed would have earned in alignment unchanged",
    )
    lr: float = Field(default=5e-4, gt=0, le=10, description="learning rate of the actor")
    ppo_mini_batch_size: int = Field(
        default=40,
        ge=1,
        le=1_000_000,
        description="calls per optimiser step; the calls of an online step (about 80 by default) are split evenly",
    )
    ppo_epochs: int = Field(default=1, ge=1, le=1000, description="passes over a step's calls")
    ppo_max_token_len_per_gpu: int = Field(default=8192, ge=64, le=100_000_000, description="tokens of one micro-batch")
    clip_ratio_low: float = Field(default=0.2, gt=0, lt=1, description="clip range below 1 of the probability ratio")
    clip_ratio_high: float = Field(
        default=0.28, gt=0, le=100, description="clip range above 1 of the probability ratio"
    )
    grad_clip: float = Field(default=1.0, gt=0, le=1e9, description="largest gradient norm")
    entropy_coeff: float = Field(default=0.0, ge=0, le=1000, description="weight of the entropy bonus")
    use_kl_loss: bool = Field(
        default=False, description="add the KL divergence to the phase's first weights to the loss"
    )
    kl_loss_coef: float = Field(default=0.001, ge=0, le=1000, description="weight of that KL divergence")
    kl_loss_type: Literal["kl", "abs", "mse", "low_var_kl"] = Field(
        default="low_var_kl", description="VeRL's estimator of that KL divergence"
    )
    loss_agg_mode: Literal["token-mean", "seq-mean-token-sum", "seq-mean-token-mean"] = Field(
        default="token-mean", description="how token losses become one number"
    )
    norm_adv_by_std_in_grpo: bool = Field(
        default=True, description="grpo: divide by the group's standard deviation (false is Dr. GRPO)"
    )
    gamma: float = Field(default=1.0, gt=0, le=1, description="discount per token")
    lam: float = Field(default=0.95, ge=0, le=1, description="gae: lambda")
    critic_lr: float = Field(default=1e-3, gt=0, le=10, description="gae: learning rate of the critic")
    critic_warmup: int = Field(default=1, ge=0, le=1_000_000, description="gae: first steps that train the critic only")
    cliprange_value: float = Field(default=0.5, gt=0, le=1e9, description="gae: clip range of the value loss")
    lora_rank: int = Field(default=0, ge=0, le=4096, description="rank of LoRA adapters; 0 trains all weights")
    lora_alpha: int = Field(default=32, ge=1, le=1_000_000, description="scale of LoRA adapters")
    test_freq: int = Field(
        default=-1, ge=-1, le=1_000_000, description="validate every so many steps; -1 only when the phase has ended"
    )
    test_tasks: int = Field(default=20, ge=1, le=1_000_000, description="held-out tasks of such a validation")
    save_freq: int = Field(
        default=1, ge=1, le=1_000_000, description="checkpoint every so many steps (and after the last)"
    )
    max_actor_ckpt_to_keep: int = Field(default=1, ge=1, le=10_000, description="checkpoints to keep, the newest")
    step_timeout_s: float = Field(
        default=300.0, gt=0, le=604_800, description="seconds to wait for one step's rollouts"
    )
    min_good_share: float = Field(
        default=0.5,
        gt=0,
        le=1,
        description="share of a step's rollouts that must be usable; the step is skipped otherwise",
    )
    verl: dict[str, Any] = Field(
        default={},
        description="more of VeRL's configuration, by actor, critic, engine, optim, model and algorithm",
    )

    def unused(self) -> Mapping[str, str]:
        """Keys of other estimators, of the KL loss, of LoRA and of validation when those are off."""
        found: dict[str, str] = {}
        if self.adv_estimator != "gae":
            found |= dict.fromkeys(CRITIC_KEYS, f"ppo.adv_estimator is {self.adv_estimator!r}")
        if self.adv_estimator != "grpo":
            found["norm_adv_by_std_in_grpo"] = f"ppo.adv_estimator is {self.adv_estimator!r}"
        if self.adv_estimator in ("grpo", "rloo"):
            found["gamma"] = f"ppo.adv_estimator is {self.adv_estimator!r}, which does not discount"
        if not self.use_kl_loss:
            found |= dict.fromkeys(("kl_loss_coef", "kl_loss_type"), "ppo.use_kl_loss is false")
        if not self.lora_rank:
            found["lora_alpha"] = "ppo.lora_rank is 0"
        if self.test_freq <= 0:
            found["test_tasks"] = f"ppo.test_freq is {self.test_freq}"
        return found


class BanditConfig(Section):
    """The supervisor's contextual bandit: which junior's hypothesis goes on."""

    policy: Literal["thompson", "logistic"] = Field(
        default="thompson", description="linear Thompson sampling, or logistic regression learned by SGD"
    )
    update: Literal["direct", "ips", "dr"] = Field(
        default="direct", description="learn rewards as logged, weighted by inverse propensity, or doubly robust"
    )
    exploration: float = Field(
        default=0.5,
        ge=0,
        le=1,
        description="share of choices in training rollouts that are made evenly at random, before and after training",
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

    def unused(self) -> Mapping[str, str]:
        """Keys of the other policy, of weighting when there is none, of rounds when there are none."""
        found: dict[str, str] = {}
        if self.policy == "thompson":
            found |= dict.fromkeys(("lr", "epochs"), "bandit.policy is 'thompson'")
        else:
            found |= dict.fromkeys(("prior_variance", "noise_variance"), "bandit.policy is 'logistic'")
        if self.rounds == 0:
            found["tasks"] = "bandit.rounds is 0"
        return found


class GateConfig(Section):
    """The comparison, after each learning phase, of what was learned with what was live before, base and best stage."""

    enabled: bool = Field(default=True, description="false puts everything that is learned live unseen")
    tasks: int = Field(default=100, ge=2, le=1_000_000, description="held-out tasks, the same for all phases of a run")
    margin: float = Field(
        default=0.1,
        gt=0,
        le=1e6,
        description="loss of mean reward that is rolled back; a smaller one is tolerated unless it is significant",
    )
    margin_alignment: float = Field(
        default=0.05, gt=0, lt=1, description="the same for the share of right answers: 0.05 is 5 points"
    )
    confidence: float = Field(default=0.95, gt=0.5, lt=1, description="of the paired interval")
    resamples: int = Field(default=2000, ge=200, le=1_000_000, description="bootstrap samples of the paired interval")

    def unused(self) -> Mapping[str, str]:
        """Without the gate, nothing of it counts."""
        return {} if self.enabled else dict.fromkeys(("tasks", "confidence", "resamples"), "gate.enabled is false")


class WandbConfig(Section):
    """Weights & Biases; what it shows is always in metrics.jsonl too."""

    mode: Literal["auto", "online", "offline", "disabled"] = Field(
        default="auto", description="auto: online when WANDB_API_KEY is set, offline otherwise"
    )
    project: str = Field(default="chimera", min_length=1, description="the project's name there")
    entity: str | None = Field(default=None, min_length=1, description="team or user; the key's own without it")
    protocols: int = Field(default=20, ge=0, le=100_000, description="rows of the table of protocols after each phase")

    def unused(self) -> Mapping[str, str]:
        """Switched off, nothing of it counts."""
        keys = ("project", "entity", "protocols")
        return dict.fromkeys(keys, "wandb.mode is 'disabled'") if self.mode == "disabled" else {}
