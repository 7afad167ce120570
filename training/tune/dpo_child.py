"""The process that trains on pairs, with TRL's DPOTrainer; started and reported like `training.tune.child`.

The loss of a pair is -log sigmoid(beta ((pi_c - ref_c) - (pi_r - ref_r))) (Rafailov et al. 2023, equation 7), with sums
of log-probabilities over the tokens of the chosen answer c and the rejected answer r, of the trained weights pi and of
the phase's first weights ref, which are computed once before training. `imitation` adds the mean negative
log-likelihood of the chosen answers' tokens (TRL's loss "sft"; RPO, arXiv 2404.19733): a preference alone also pushes
aside what both answers of a pair have.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from training.tune.child import Spec, common_figures, common_settings, finish, learn, load_model, reporter, work

if TYPE_CHECKING:
    from datasets import Dataset
    from trl.trainer.dpo_trainer import DPOTrainer

IDS = ("prompt_ids", "chosen_ids", "rejected_ids")


@dataclass(frozen=True, slots=True)
class DpoSpec(Spec):
    """A training job on pairs.

    Attributes:
        dataset: JSON lines, each with `prompt_ids`, `chosen_ids` and `rejected_ids`.
        held_out: The same, of pairs that are not trained on; the file may be empty.
        beta: Weight of the distance from the first weights.
        imitation: Weight of the chosen answers' negative log-likelihood.
    """

    held_out: str
    beta: float
    imitation: float = 0.0


def main(argv: list[str]) -> None:
    work(argv, DpoSpec, "trl.trainer.dpo_trainer", train)


def train(spec: DpoSpec, progress: TextIO) -> None:
    """Train, report each optimiser step and the final result, and write the model.

    Raises:
        RunError: The loss is no number any more.
    """
    from transformers import set_seed

    set_seed(spec.seed)
    trainer = make_trainer(spec, progress)
    before = held_out(trainer)
    _, seconds = learn(trainer)
    after = held_out(trainer)
    figures = {f"held_out/{name}_before": value for name, value in before.items()}
    figures |= {f"held_out/{name}_after": value for name, value in after.items()}
    finish(spec, progress, trainer, seconds, **figures)


def make_trainer(spec: DpoSpec, progress: TextIO) -> "DPOTrainer":
    """TRL's trainer with the model and both data sets; the first weights' log-probabilities are computed here."""
    from trl.trainer.dpo_config import DPOConfig

    from training.tune.dpo_trainer import TokenPairs

    model, tokenizer = load_model(spec)
    learned, pairs = load_pairs(Path(spec.dataset)), load_pairs(Path(spec.held_out))
    common = common_settings(spec, model.num_parameters(), len(learned))
    # The reference is computed without autocast; on processors bfloat16 would drown the differences of such sums.
    common["bf16"] = common["bf16"] and not common["use_cpu"] and spec.lora_rank > 0
    settings = DPOConfig(
        **common,
        beta=spec.beta,
        loss_type=["sigmoid", "sft"],
        loss_weights=[1.0, spec.imitation],
        max_length=None,
        precompute_ref_log_probs=True,
        # TRL averages batches and not pairs: with one pair in each, they are the same.
        per_device_eval_batch_size=1,
    )
    return TokenPairs(
        model=model,
        args=settings,
        train_dataset=learned,
        eval_dataset=pairs if len(pairs) else None,
        processing_class=tokenizer,
        callbacks=[reporter(progress, step_figures)],
    )


def held_out(trainer: "DPOTrainer") -> dict[str, float]:
    """Of the held-out pairs: the share that is won (implicit margin above 0), mean margin and loss; empty without any.

    The first weights are the reference: for them every margin is 0, none is won, and the loss is log 2 (and imitation).
    """
    if trainer.eval_dataset is None:
        return {}
    metrics = trainer.evaluate()
    names = {"won": "rewards/accuracies", "margin": "rewards/margins", "loss": "loss"}
    return {name: float(metrics[f"eval_{of_trl}"]) for name, of_trl in names.items()}


def load_pairs(file: Path) -> "Dataset":
    from datasets import Dataset

    with file.open(encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    return Dataset.from_list([{name: row[name] for name in IDS} for row in rows])


def step_figures(logs: dict[str, Any]) -> dict[str, float]:
    """What the trainer logs of one step, by our names; raises as `common_figures`."""
    return {
        **common_figures(logs),
        "won": float(logs["rewards/accuracies"]),
        "margin": float(logs["rewards/margins"]),
        "chosen_logp": float(logs["logps/chosen"]),
        "rejected_logp": float(logs["logps/rejected"]),
    }
