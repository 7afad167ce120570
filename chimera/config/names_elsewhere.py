"""The names that other software gives to our settings, and settings that are options of a command here."""

from collections.abc import Mapping

NAMES: Mapping[str, str] = {
    "learning_rate": "lr",
    "per_device_train_batch_size": "micro_batch_size",
    "gradient_accumulation_steps": "batch_size",
    "max_grad_norm": "grad_clip",
    "num_generations": "n",
    "max_steps": "steps",
    "eval_steps": "test_freq",
    "save_steps": "save_freq",
    "beta": "kl_loss_coef",
    "kl_coef": "kl_loss_coef",
    "cliprange": "clip_ratio_low",
    "lambda": "lam",
    "discount": "gamma",
    "lora_r": "lora_rank",
    "model_name_or_path": "path",
    "api_base": "base_url",
    "max_new_tokens": "max_tokens",
    "num_workers": "runners",
    "output_dir": "runs_dir",
    "dataset": "path",
    "question": "goal",
    "answer": "label",
}
"""The last part of our key by the name in TRL, transformers, PEFT, VeRL, OpenAI's client or a data set."""
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
