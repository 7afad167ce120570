"""The names that other software and earlier versions give to our settings, and options taken for settings."""

from collections.abc import Mapping

NAMES: Mapping[str, str] = {
    "epochs": "ppo_epochs",
    "discount": "gamma",
    "lambda": "lam",
    "cliprange": "clip_ratio_low",
    "kl_coef": "kl_loss_coef",
    "beta": "kl_loss_coef",
    "save_steps": "save_freq",
    "eval_steps": "test_freq",
    "max_grad_norm": "grad_clip",
    "learning_rate": "lr",
    "per_device_train_batch_size": "micro_batch_size",
    "gradient_accumulation_steps": "batch_size",
    "num_generations": "n",
    "max_steps": "steps",
    "lora_r": "lora_rank",
    "model_name_or_path": "path",
    "api_base": "base_url",
    "max_new_tokens": "max_tokens",
    "num_workers": "concurrency",
    "output_dir": "runs_dir",
    "dataset": "path",
    "question": "goal",
    "answer": "label",
}
"""The last part of our key by the name in TRL, transformers, PEFT, VeRL, OpenAI's client or a data set."""
OF_VERL = (
    *("actor.ppo_epochs", "actor.clip_ratio_low", "actor.clip_ratio_high", "actor.entropy_coeff"),
    *("actor.loss_agg_mode", "actor.use_kl_loss", "actor.kl_loss_coef", "actor.kl_loss_type"),
    *("critic.cliprange_value", "algorithm.gamma", "algorithm.lam", "algorithm.norm_adv_by_std_in_grpo"),
    *("trainer.save_freq", "trainer.test_freq", "trainer.max_actor_ckpt_to_keep"),
)
"""Keys of `ppo.verl` that stood in the phase itself."""
OPTIONS: Mapping[str, str] = {
    "evaluation.tasks": "--limit N of python -m chimera.eval",
    "evaluation.limit": "--limit N of python -m chimera.eval",
    "evaluation.seeds": "--seeds N of python -m chimera.eval",
    "evaluation.split": "--split of python -m chimera.eval",
    "evaluation.stages": "--stages A,B of python -m chimera.eval",
    "name": "--name of python -m chimera.train",
    "phases": "--phases A,B of python -m chimera.train",
}
"""Options of commands by the key that somebody may take them for."""
GONE: Mapping[str, str] = {
    "rollouts.runners": "it is now rollouts.concurrency",
    "evaluation.concurrency": "it is now rollouts.concurrency",
    "evaluation.retries": "it is now rollouts.retries",
    "society.max_revisions": "it is gone: there are at most society.max_major_revisions and max_critical_revisions",
    "gate.confidence": "it is now evaluation.confidence",
    "gate.resamples": "it is now evaluation.resamples",
    "evaluation.permutations": "it is gone: a test makes ten exchanges for each of evaluation.resamples",
    "evaluation.power": "it is gone: it is always 0.8",
    "wandb.protocols": "it is gone: a table of protocols always has 20 rows",
    **dict.fromkeys(
        ("rollouts.max_attempts", "gateway", *(f"cluster.{name}" for name in ("store", "store_port", "gateway_port"))),
        "it is gone: rollouts are made in this process, or with rollouts.on=ray by Ray",
    ),
    **dict.fromkeys(("cluster.key_file", "cluster.tls"), "it is gone: Ray has its own (docs/cluster.md)"),
    "cluster.cpus_per_runner": "it is now cluster.cpus_per_actor",
    "gate.enabled": "it is {value} here; gate.tasks=0 stands for false, and true is left out",
    "society.refiner": "it is {value} here; society.refiner_max_chars=0 stands for trusts, and reads is left out",
    "society.node_timeout_s": "it is {value} here; a role may take three fifths of rollouts.timeout_s: set that",
    **dict.fromkeys(
        ("models.*.top_p", "models.*.top_k", "models.*.min_p", "models.*.repetition_penalty"),
        "it is {value} here: a field of {above}.extra_body, or with a provider of provider_options",
    ),
    **dict.fromkeys(
        ("pipeline.*.hashed_features", "pipeline.*.prior_variance", "pipeline.*.noise_variance", "pipeline.*.reread"),
        "it is {value} here, and it can be set no more: leave it out",
    ),
    "pipeline.*.restarts": "it is gone: a rank that dies ends the run, and --resume makes its step again",
    "pipeline.*.min_events": "it is gone: the bandit learns from as many choices as there are",
    "pipeline.*.grad_clip": "set {above}.verl.optim.clip_grad={value}",
    **{f"pipeline.*.{key.rpartition('.')[2]}": f"set {{above}}.verl.{key}={{value}}" for key in OF_VERL},
    "wandb.project": "it is now the environment variable WANDB_PROJECT={value}",
    "wandb.entity": "it is now the environment variable WANDB_ENTITY={value}",
}
"""What became of the settings, and sections, of earlier versions; * is any name (see `loader.check_keys`)."""
OF_RUN = dict.fromkeys(
    GONE, "an earlier version of Chimera made this run; read it with that version (environment.json names its commit)"
)
"""The same for the settings of a run."""
