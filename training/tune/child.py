"""The process that fine-tunes, started by `training.tune.process`.

It imports what training needs while its parent still chooses examples, reads a `Spec` as JSON from stdin, trains with
TRL's SFTTrainer, writes a model folder, and reports progress as JSON lines on stdout. Whatever libraries print goes to
its log.
"""

import argparse
import gc
import hashlib
import json
import math
import os
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal, Self, TextIO, TypeVar, cast

from chimera.core.errors import RunError
from chimera.core.files import replace_file
from chimera.serving.devices import fast_bfloat16
from chimera.serving.embedded.checkpoint import check_trainable
from training.tune.ranks import accumulation, hold_meeting, rank_of, sharing_trainer, with_spare

if TYPE_CHECKING:
    from datasets import Dataset
    from transformers import PreTrainedTokenizerBase, TrainerCallback
    from trl.trainer.sft_config import SFTConfig

LARGE_MODEL = 500_000_000
"""From this number of parameters on, activations are recomputed (gradient checkpointing) instead of kept."""
LORA_TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
CHECKPOINT_S = 300.0
"""After so many seconds of learning a checkpoint is written: a kill costs little more."""
EPOCH_STATE = "epoch_state"
"""File of a checkpoint, written last: torch's random state when the epoch began, which gives the order of examples."""
UNUSED = ("wandb", "sklearn")
"""transformers and TRL import these if they are installed, which takes two seconds, and this process uses neither."""

Loader = Literal["auto", "never"]


@dataclass(frozen=True, slots=True)
class Spec:
    """A training job. Hyperparameters are those of `training.learning.fine_tuning.TuneSettings`.

    Attributes:
        dataset: JSON lines, each with `input_ids` and `labels`.
        model: The folder to start from.
        out: The folder to write. It appears only when it is complete.
        seed: Seed of the order of examples and of LoRA's initial weights.
    """

    dataset: str
    model: str
    out: str
    seed: int
    epochs: float
    batch_size: int
    micro_batch_size: int
    lr: float
    warmup_ratio: float
    max_length: int
    lora_rank: int
    lora_alpha: int
    unsloth: Loader

    def dump(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def load(cls, text: str) -> Self:
        return cls(**json.loads(text))


S = TypeVar("S", bound=Spec)


def main(argv: list[str]) -> None:
    work(argv, Spec, "trl.trainer.sft_trainer", train)


def work(argv: list[str], kind: type[S], trainer: str, train: Callable[[S, TextIO], None]) -> None:
    """Import libraries, read a spec from stdin, and train.

    Args:
        trainer: The module of the trainer, which takes seconds to import.

    Raises:
        ChimeraError: The model or the examples cannot be trained on, or a file cannot be read or written.
    """
    parser = argparse.ArgumentParser(prog=train.__module__, description=__doc__)
    parser.add_argument("--unsloth", choices=("auto", "never"), required=True, help="as in the configuration")
    parser.add_argument("--meeting", type=int, metavar="FD", help="listening socket where the ranks meet, for rank 0")
    options = parser.parse_args(argv)
    rank, _ = rank_of()
    progress = os.fdopen(os.open(os.devnull, os.O_WRONLY) if rank else os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    preload(options.unsloth, trainer)
    meeting = None if options.meeting is None else hold_meeting(options.meeting)
    spec = kind.load(sys.stdin.read())
    try:
        train(spec, progress)
    except OSError as error:
        raise RunError(f"a file cannot be read or written: {error}") from error
    del meeting


def preload(loader: Loader, trainer: str) -> None:
    """Import the libraries. Unsloth replaces parts of the others, so it must come first."""
    gc.disable()  # The collector would take a quarter of the imports' time.
    if uses_unsloth(loader):
        __import__("unsloth")
    else:
        sys.modules.update(dict.fromkeys(UNUSED, cast(ModuleType, None)))  # Python's sign for "not installed".
    for module in ("datasets", "peft", trainer):
        import_module(module)
    gc.freeze()
    gc.enable()


def uses_unsloth(loader: Loader) -> bool:
    """True if models are loaded through Unsloth: it is configured and installed, there is a GPU, and one rank."""
    import torch

    return loader == "auto" and rank_of()[1] == 1 and find_spec("unsloth") is not None and torch.cuda.is_available()


def load_model(spec: Spec) -> "tuple[Any, PreTrainedTokenizerBase]":
    """Model (with LoRA adapters if configured) and tokenizer. Both loaders give equal models.

    Raises:
        ConfigError: The folder has no safetensors: pickles are never read.
    """
    check_trainable(Path(spec.model))
    return _from_unsloth(spec) if uses_unsloth(spec.unsloth) else _from_transformers(spec)


def _from_transformers(spec: Spec) -> "tuple[Any, PreTrainedTokenizerBase]":
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM, AutoTokenizer

    frozen_on_gpu = spec.lora_rank > 0 and torch.cuda.is_available()
    dtype = torch.bfloat16 if frozen_on_gpu and torch.cuda.is_bf16_supported() else torch.float32
    model = AutoModelForCausalLM.from_pretrained(
        spec.model, dtype=dtype, attn_implementation="sdpa", use_safetensors=True, trust_remote_code=False
    )
    if spec.lora_rank:
        adapter = LoraConfig(
            r=spec.lora_rank, lora_alpha=spec.lora_alpha, target_modules=list(LORA_TARGETS), task_type="CAUSAL_LM"
        )
        model = get_peft_model(model, adapter)
    return model, AutoTokenizer.from_pretrained(spec.model, trust_remote_code=False)


def _from_unsloth(spec: Spec) -> "tuple[Any, PreTrainedTokenizerBase]":
    from unsloth import FastLanguageModel  # pyright: ignore[reportMissingImports]  only in the gpu extra

    model, tokenizer = FastLanguageModel.from_pretrained(
        model_name=spec.model,
        max_seq_length=spec.max_length,
        load_in_4bit=False,
        full_finetuning=spec.lora_rank == 0,
        # Without it all weights are rounded to bfloat16, and small steps are lost.
        float32_mixed_precision=spec.lora_rank == 0,
    )
    if spec.lora_rank:
        model = FastLanguageModel.get_peft_model(
            model,
            r=spec.lora_rank,
            lora_alpha=spec.lora_alpha,
            target_modules=list(LORA_TARGETS),
            lora_dropout=0.0,
            bias="none",
            random_state=spec.seed,
        )
    return model, tokenizer


def train(spec: Spec, progress: TextIO) -> None:
    """Train, report each optimiser step and the final result, and write the model.

    Raises:
        RunError: The loss is no number any more.
    """
    from transformers import set_seed
    from trl.trainer.sft_trainer import SFTTrainer

    set_seed(spec.seed)
    model, tokenizer = load_model(spec)
    dataset = load_rows(Path(spec.dataset))
    rank, ranks = rank_of()
    kind = SFTTrainer if ranks == 1 else sharing_trainer(spec.batch_size)
    trainer = kind(
        model=model,
        args=trainer_settings(spec, model.num_parameters(), len(dataset)),
        train_dataset=dataset if ranks == 1 else with_spare(dataset),
        processing_class=tokenizer,
        callbacks=[reporter(progress, step_figures)],
    )
    earlier, seconds = learn(trainer)
    if rank == 0:
        tokens = sum(dataset["length"]) * spec.epochs
        rate = {} if earlier else {"tokens_per_second": round(tokens / seconds, 1)}
        finish(spec, progress, trainer, seconds, **rate, precision="bfloat16" if trainer.args.bf16 else "float32")


def learn(trainer: Any) -> tuple[int, float]:
    """Train, from the last checkpoint if a process with the same job was killed.

    Returns:
        The number of steps that it had made, and the seconds that the others took.
    """
    whole = Path(trainer.args.output_dir).glob(f"checkpoint-*/{EPOCH_STATE}")
    last = max(whole, key=lambda file: file.stat().st_mtime_ns, default=None)
    started = time.perf_counter()
    if rank_of()[1] == 1:
        trainer.add_callback(checkpoints(None if last is None else last.read_bytes()))
    trainer.train(resume_from_checkpoint=None if last is None else str(last.parent))
    return 0 if last is None else int(last.parent.name.partition("-")[2]), time.perf_counter() - started


def checkpoints_of(spec: Spec) -> Path:
    """The hidden folder, beside the examples, of the checkpoints of one job: of equal examples and settings."""
    file = Path(spec.dataset)
    digest = hashlib.sha256(spec.dump().encode() + file.read_bytes()).hexdigest()
    return file.with_name(f".{Path(spec.out).name}-{digest[:12]}")


def checkpoints(epoch_state: bytes | None) -> "TrainerCallback":
    """Writes a checkpoint every `CHECKPOINT_S` if there is room for it and the one before.

    Args:
        epoch_state: Torch's random state with which the first epoch begins; None for the present one.
    """
    import torch
    from transformers import TrainerCallback

    class Checkpoints(TrainerCallback):
        def __init__(self) -> None:
            self._first, self._state, self._last = epoch_state, b"", time.monotonic()

        def on_epoch_begin(self, *_: Any, **__: Any) -> None:
            if self._first is not None:
                torch.set_rng_state(torch.frombuffer(bytearray(self._first), dtype=torch.uint8))
            self._first, self._state = None, torch.get_rng_state().numpy().tobytes()

        def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
            # Not at an epoch's end, from where transformers 5.10 goes on with a state that no callback sees.
            due = time.monotonic() - self._last >= CHECKPOINT_S and state.epoch % 1 > 0
            # Of each trained number its value and AdamW's two moments, as float32.
            size = 12 * sum(numbers.numel() for numbers in model.parameters() if numbers.requires_grad)
            control.should_save = due and shutil.disk_usage(args.output_dir).free > 2 * size

        def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            replace_file(Path(args.output_dir, f"checkpoint-{state.global_step}", EPOCH_STATE), self._state)
            self._last = time.monotonic()

    return Checkpoints()


def finish(spec: Spec, progress: TextIO, trainer: Any, seconds: float, **figures: Any) -> None:
    """Write the model, and report the end.

    Args:
        trainer: One of TRL's, after its training, which took so many `seconds`.
    """
    from training.model.weights import plain_weights, write_model

    weights, adapter = plain_weights(trainer.model)
    write_model(Path(spec.out), weights, Path(spec.model), adapter)
    for folder in Path(spec.dataset).parent.glob(f".{Path(spec.out).name}-*"):  # Also of a job with other settings.
        shutil.rmtree(folder)
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    tell(
        progress,
        "end",
        loss=sum(losses) / len(losses),
        steps=trainer.state.global_step,
        seconds=round(seconds, 3),
        device=str(trainer.args.device),
        loader="unsloth" if uses_unsloth(spec.unsloth) else "transformers",
        **figures,
    )


def tell(progress: TextIO, event: str, **fields: Any) -> None:
    progress.write(json.dumps({"event": event, **fields}) + "\n")


def reporter(progress: TextIO, figures: Callable[[dict[str, Any]], Mapping[str, float]]) -> "TrainerCallback":
    """Reports the begin and each optimiser step, with the `figures` of what the trainer logs of it."""
    from transformers import TrainerCallback

    class Reporter(TrainerCallback):
        def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            tell(progress, "begin", done=state.global_step, total=state.max_steps)

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
            if logs is not None and "loss" in logs:
                tell(progress, "step", step=state.global_step, total=state.max_steps, **figures(logs))

    return Reporter()


def trainer_settings(spec: Spec, parameters: int, rows: int) -> "SFTConfig":
    """TRL's settings; batches of similar length, so that little is padded."""
    from trl.trainer.sft_config import SFTConfig

    return SFTConfig(
        **common_settings(spec, parameters, rows),
        max_length=None,
        dataset_kwargs={"skip_prepare_dataset": True},
        train_sampling_strategy="group_by_length",
        length_column_name="length",
    )


def common_settings(spec: Spec, parameters: int, rows: int) -> dict[str, Any]:
    """Settings of all of TRL's trainers: AdamW with a linear schedule.

    Args:
        rows: How many examples are learned.
    """
    import torch

    gpu, ranks = torch.cuda.is_available(), rank_of()[1]
    passes = accumulation(spec.batch_size, spec.micro_batch_size, ranks)
    steps = math.ceil(spec.epochs * math.ceil(rows / (passes * spec.micro_batch_size * ranks)))
    return {
        "output_dir": str(checkpoints_of(spec)),
        "seed": spec.seed,
        "num_train_epochs": spec.epochs,
        "per_device_train_batch_size": spec.micro_batch_size,
        "gradient_accumulation_steps": passes,
        "learning_rate": spec.lr,
        # The rate is 0 in the first step of a warm-up: an only step would change nothing.
        "warmup_steps": spec.warmup_ratio if steps > 1 else 0,
        "lr_scheduler_type": "linear",
        "optim": "adamw_torch",
        "bf16": torch.cuda.is_bf16_supported() if gpu else fast_bfloat16(),
        "use_cpu": not gpu,
        "ddp_backend": None if ranks == 1 else "nccl" if gpu else "gloo",
        "gradient_checkpointing": parameters >= LARGE_MODEL,
        "logging_steps": 1,
        "save_strategy": "no",  # `checkpoints` says when.
        "save_total_limit": 1,
        "report_to": "none",
        "disable_tqdm": True,
    }


def load_rows(file: Path) -> "Dataset":
    """The data set as TRL's trainer takes it ready-made: input_ids, labels, and each row's length."""
    from datasets import Dataset

    with file.open(encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    return Dataset.from_list(
        [{"input_ids": row["input_ids"], "labels": row["labels"], "length": len(row["input_ids"])} for row in rows]
    )


def step_figures(logs: dict[str, Any]) -> dict[str, float]:
    """What the trainer logs of one step, by our names; raises as `common_figures`.

    Unsloth keeps no logits, so it logs neither entropy nor accuracy.
    """
    names = {"entropy": "entropy", "mean_token_accuracy": "token_accuracy"}
    return common_figures(logs) | {ours: float(logs[name]) for name, ours in names.items() if name in logs}


def common_figures(logs: dict[str, Any]) -> dict[str, float]:
    """What all of TRL's trainers log of one step, by our names; raises RunError if the loss is no number any more."""
    loss = float(logs["loss"])
    if not math.isfinite(loss):
        raise RunError(f"the loss became {loss} at epoch {logs['epoch']:.2f}: lower the phase's lr")
    return {
        "loss": loss,
        "lr": float(logs["learning_rate"]),
        "grad_norm": float(logs["grad_norm"]),
        "epoch": float(logs["epoch"]),
    }
