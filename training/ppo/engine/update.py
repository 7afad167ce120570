"""PPO on one model through VeRL's training workers, in this process.

One update follows VeRL's trainer: log-probabilities of the sampled tokens under the current weights (old_log_prob) and,
if there is a KL term, under the phase's initial weights (ref); values of a critic for gae; advantages; with `ahead` the
importance weights of tokens that older weights have sampled; then the clipped objective (Schulman et al. 2017, equation
7, with VeRL's separate lower and upper clip range) over mini-batches and epochs, in micro-batches of a token budget.
"""

import gc
import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from chimera.core.errors import RunError
from chimera.core.files import read_json_object
from chimera.serving.devices import release_memory
from chimera.serving.embedded.checkpoint import check_trainable
from training.model.weights import plain_weights, whole_folder, write_model
from training.ppo.engine.advantages import at_last_token, estimate, group_figures, importance
from training.ppo.engine.base import Watch, with_peers
from training.ppo.engine.batch import WEIGHTS, Batch, Sample, mini_batches, reduce
from training.ppo.engine.state import REMEDY, read_state, restore_worker, worker_state, write_state
from training.ppo.verl.configuration import check_verl, make_config, model_config
from training.ppo.verl.runtime import (
    Device,
    OwnRandomness,
    close_group,
    load_verl,
    no_progress_bars,
    open_group,
    rank_of_one,
)
from training.ppo.verl.settings import PpoSettings

if TYPE_CHECKING:
    from torch import Tensor
    from verl.workers.engine_workers import TrainingWorker

STATE, RANDOM = "engine.json", "random"
REREAD = 32
"""Calls of an update whose tokens are read once more after it, so that chimera.trace shows how likely they are then."""
LOSS_COLUMNS = ("old_log_probs", "advantages", "ref_log_prob", WEIGHTS)


class PpoEngine:
    """A model, its optimiser and, with gae, a critic. They can be updated from samples, saved, resumed and exported.

    Only one engine may be open in a process at a time. Call it from one thread at a time. It uses the process's number
    of torch threads. Beside other busy processes use one thread or OMP_WAIT_POLICY=PASSIVE, because idle OpenMP threads
    that spin slow everything down manyfold.

    Args:
        model_folder: The phase's initial weights, a Hugging Face folder, also if `load` continues a checkpoint: they
            are the reference of the KL terms, and exports copy tokenizer and settings from it.
        config: Our settings. Their values for VeRL are checked.
        seed: Seed of adapters, the critic's head and the order of mini-batches.
        total_steps: Number of planned updates, for learning-rate schedules.
        device: "auto" is CUDA if there is a GPU. The first engine fixes it for the process.
        temperature: Temperature at which the samples were drawn.
        phase: The phase's name, for errors.

    Raises:
        ConfigError: VeRL refuses a value of `config.verl`, the model has no safetensors (pickles are never read), or
            the device does not exist.
        RunError: Another engine is open.
    """

    def __init__(
        self,
        model_folder: Path,
        config: PpoSettings,
        *,
        seed: int,
        total_steps: int,
        device: Literal["auto", "cpu", "cuda"] = "auto",
        temperature: float = 1.0,
        phase: str = "ppo",
    ) -> None:
        check_verl(config.verl, phase)
        check_trainable(model_folder)
        self._folder, self._config, self._seed, self._temperature = model_folder, config, seed, temperature
        self._phase = phase
        self._device: Device = load_verl(device)
        self._verl = make_config(config, total_steps, phase)
        self._random = OwnRandomness(seed)
        self.updates = 0
        """Number of updates, including those before a checkpoint."""
        self._kl_in_reward = self._verl.algorithm.use_kl_in_reward
        self._closed = False
        with self._environment(), no_progress_bars(), self._random:
            self._join()
            try:
                self._build()
            except BaseException:
                self.close()
                raise

    def _environment(self) -> AbstractContextManager[None]:
        """The environment variables that VeRL expects while its workers are made."""
        return rank_of_one()

    def _join(self) -> None:
        """Open the process group."""
        open_group(self._device)

    def _leave(self) -> None:
        """Close the process group."""
        close_group()

    def _batch(self, samples: Sequence[Sample]) -> Batch:
        return Batch(samples, self._temperature)

    def _loss(self, loss: Callable[..., Any]) -> Callable[..., Any]:
        """What VeRL's workers take for one of its losses."""
        return loss

    def _build(self) -> None:
        from verl.trainer.ppo.core_algos import get_kl_controller
        from verl.workers.utils.losses import ppo_loss, value_loss

        gae = self._config.adv_estimator == "gae"
        frozen = (self._verl.actor.use_kl_loss or self._kl_in_reward) and not self._config.lora_rank
        self._actor = self._worker("language_model", self._verl.actor_optim, lora=True)
        self._actor.set_loss_fn(self._loss(partial(ppo_loss, config=self._verl.actor)))
        # It is never stepped, so it needs memory for weights only. With LoRA, the actor's base model is the reference.
        self._reference = self._worker("language_model", self._verl.actor_optim, lora=False) if frozen else None
        self._critic = self._worker("value_model", self._verl.critic_optim, lora=False) if gae else None
        if self._critic:
            self._critic.set_loss_fn(self._loss(partial(value_loss, config=self._verl.critic)))
        self._kl_control: Any = get_kl_controller(self._verl.algorithm.kl_ctrl)

    def _worker(self, kind: str, optimiser: Any, *, lora: bool) -> "TrainingWorker":
        from transformers.utils.import_utils import is_flash_attn_2_available
        from verl.trainer.config import CheckpointConfig
        from verl.workers.config import TrainingWorkerConfig
        from verl.workers.engine_workers import TrainingWorker

        from training.model import varlen_attention

        precision = (self._verl.engine.mixed_precision or {}).get("param_dtype", "bf16")
        # Flash attention does not support float32.
        flash = self._device == "cuda" and is_flash_attn_2_available() and precision not in ("fp32", "float32", "32")
        attention = "flash_attention_2" if flash else varlen_attention.NAME
        worker = TrainingWorker(
            TrainingWorkerConfig(
                model_type=kind,
                model_config=model_config(
                    self._folder, self._config, attention=attention, lora=lora, phase=self._phase
                ),
                engine_config=self._verl.engine,
                optimizer_config=optimiser,
                checkpoint_config=CheckpointConfig(),
                profiler_config=None,
            )
        )
        if self._device == "cpu":
            # There is no known peak of this CPU to compute its utilisation from.
            worker.flops_counter = None
        worker.reset()
        return worker

    def update(self, batch: Sequence[Sample], step: int, watch: Watch | None = None) -> dict[str, float]:
        with self._random:
            return self._update(batch, step, watch)

    def _update(self, samples: Sequence[Sample], step: int, watch: Watch | None) -> dict[str, float]:
        config = self._config
        peers = with_peers(samples, config.adv_estimator)
        if not peers:
            raise RunError(
                f"step {step} has {len(samples)} samples, none with a peer in its group, as {config.adv_estimator} "
                f"needs: raise {self._phase}.n, or use {self._phase}.adv_estimator=reinforce_plus_plus"
            )
        batch = self._batch(peers)
        started = time.perf_counter()
        metrics = self._prepare(batch, step)
        with _timed(metrics, "adv"):
            metrics |= self._advantages(batch)
        if self._critic:
            with _timed(metrics, "update_critic"):
                metrics |= self._train(self._critic, batch, ("values", "returns"), self._verl.critic, "critic/", step)
        if not self._critic or self.updates >= config.critic_warmup:
            columns = [name for name in LOSS_COLUMNS if name in batch.columns]
            with _timed(metrics, "update_actor"):
                metrics |= self._train(self._actor, batch, columns, self._verl.actor, "actor/", step)
        if watch is not None:
            with _timed(metrics, "watch"):
                if again := batch.samples[:REREAD]:
                    batch.after = self._infer(self._actor, self._batch(again))["log_probs"]
                watch(batch, metrics)
        self.updates += 1
        seconds = time.perf_counter() - started
        return metrics | {
            **group_figures(peers),
            "group/alone": float(len(samples) - len(peers)),
            "perf/total_num_tokens": float(sum(batch.sizes)),
            "perf/time_per_step": seconds,
            "perf/throughput": sum(batch.sizes) / seconds,
            "timing_s/step": seconds,
        }

    def _prepare(self, batch: Batch, step: int) -> dict[str, float]:
        """Compute the log-probabilities and values before the update."""
        from verl.trainer.ppo.core_algos import agg_loss

        metrics: dict[str, float] = {}
        with _timed(metrics, "old_log_prob"):
            old = self._infer(self._actor, batch, calculate_entropy=True)
        batch.columns["old_log_probs"] = old["log_probs"]
        if not old["log_probs"].isfinite().all():
            raise RunError(
                f"step {step}: the model of {self._folder} gives log-probabilities that are not finite: its weights "
                f"are broken; begin a new run with a smaller {self._phase}.lr"
            )
        mode = self._verl.actor.loss_agg_mode
        metrics["actor/entropy"] = float(agg_loss(old["entropy"], batch.mask, mode))
        if self._config.ahead:
            batch.columns[WEIGHTS], corrections = importance(
                old["log_probs"],
                batch.sampled(old["log_probs"]),
                batch.mask,
                level=self._config.rollout_is,
                threshold=self._config.rollout_is_threshold,
            )
            metrics |= corrections
        if self._verl.actor.use_kl_loss or self._kl_in_reward:
            with _timed(metrics, "ref"):
                base = self._reference or self._actor
                ref = self._infer(base, batch, no_lora_adapter=self._reference is None)
            batch.columns["ref_log_prob"] = ref["log_probs"]
        if self._critic:
            with _timed(metrics, "values"):
                batch.columns["values"] = self._infer(self._critic, batch)["values"] * batch.mask
        return metrics

    def _advantages(self, batch: Batch) -> dict[str, float]:
        from verl.trainer.ppo.core_algos import kl_penalty
        from verl.utils.torch_functional import masked_mean

        config, metrics = self._config, {}
        rewards = at_last_token([sample.reward for sample in batch.samples], batch.mask)
        if self._kl_in_reward:
            # Like apply_kl_penalty in VeRL's trainer.
            old: Any = batch.columns["old_log_probs"]
            ref: Any = batch.columns["ref_log_prob"]
            apart = kl_penalty(old, ref, self._verl.algorithm.kl_penalty) * batch.mask
            coefficient = self._kl_control.value
            rewards = rewards - coefficient * apart
            current = float(masked_mean(apart, batch.mask, axis=-1).mean())
            self._kl_control.update(current_kl=current, n_steps=len(batch))
            metrics |= {"actor/reward_kl_penalty": current, "actor/reward_kl_penalty_coeff": coefficient}
        batch.columns["advantages"], batch.columns["returns"] = estimate(
            config.adv_estimator,
            rewards,
            batch.mask,
            [sample.group for sample in batch.samples],
            values=batch.columns.get("values"),
            gamma=self._verl.algorithm.gamma,
            lam=self._verl.algorithm.lam,
            divide_by_std=self._verl.algorithm.norm_adv_by_std_in_grpo,
        )
        return metrics | batch.figures(rewards)

    def _infer(self, worker: "TrainingWorker", batch: Batch, **settings: Any) -> "dict[str, Tensor]":
        """A worker's outputs for the tokens of each response, (B, T) each."""
        from verl.utils import tensordict_utils as tu
        from verl.workers.utils.padding import no_padding_2_padding

        budget = max(self._verl.engine.infer_max_token_len_per_gpu, *batch.sizes)
        bundles = batch.share(batch.bundles(), budget)
        data = batch.packed(bundles, compute_loss=False, max_token_len_per_gpu=budget, **settings)
        output = worker.infer_batch(data)
        names = [name for name in ("log_probs", "entropy", "values") if name in output]
        padded = {name: no_padding_2_padding(tu.get(output, name), data).float() for name in names}
        return {name: batch.gathered(bundles, values) for name, values in padded.items()}

    def _train(
        self, worker: "TrainingWorker", batch: Batch, columns: Sequence[str], verl: Any, prefix: str, step: int
    ) -> dict[str, float]:
        """Run all epochs and mini-batches of one model. The token budget grows to the longest sequence if needed.

        `optimizer_steps` counts optimiser steps. From the second step on, the weights differ from those of the old
        log-probabilities, so ratio, clip range and `ppo_kl` have an effect. A step with a non-finite gradient changes
        nothing and is counted in `nonfinite_grads` instead.
        """
        from verl.utils import tensordict_utils as tu

        budget = max(self._config.ppo_max_token_len_per_gpu, *batch.sizes)
        bundles = batch.bundles()  # The budget must not change which calls make a mini-batch.
        parts = [
            part
            for epoch in range(verl.ppo_epochs)
            for part in mini_batches(
                bundles, verl.ppo_mini_batch_size, seed=(self._seed, step, epoch), shuffle=verl.shuffle
            )
        ]
        entropy = bool(verl.get("calculate_entropy")) or bool(verl.get("entropy_coeff"))
        outputs = []
        with worker.engine.train_mode():
            for number, part in enumerate(parts, start=1):
                data = batch.packed(
                    batch.share(part, budget),
                    columns,
                    global_batch_size=sum(map(len, part)),
                    max_token_len_per_gpu=budget,
                    calculate_entropy=entropy,
                    update_lr_scheduler=number == len(parts),
                    disable_auto_offload=True,
                )
                outputs.append(tu.get(worker.train_batch(data), "metrics"))
        good = [output for output in outputs if math.isfinite(output["grad_norm"])]  # VeRL leaves out the other steps.
        steps = {"optimizer_steps": float(len(good)), "nonfinite_grads": float(len(outputs) - len(good))}
        metrics = steps | (reduce(good) if good else {})
        return {key if "/" in key else f"{prefix}{key}": value for key, value in metrics.items()}

    def export(self, folder: Path) -> None:
        engine: Any = self._actor.engine
        weights, adapter = plain_weights(engine.module)
        write_model(folder, weights, self._folder, adapter)

    def save(self, folder: Path) -> None:
        states = ((name, worker_state(worker)) for name, worker in self._trained())
        try:
            with whole_folder(folder) as draft:
                for name, state in states:
                    write_state(state, draft, name)
                    del state  # There may be no room in memory for the next beside it.
                write_state(self._random.state(), draft, RANDOM)
                state = {"updates": self.updates, "kl_coef": self._kl_control.value, "made_with": self._made_with()}
                (draft / STATE).write_text(json.dumps(state), encoding="utf-8")
        finally:
            for _ in states:
                pass  # Also where the disk is full, for the other ranks wait until they have given their parts.

    def load(self, folder: Path) -> None:
        """Restore the state of the engine that wrote this checkpoint: weights, optimisers, schedules, random states.

        Nothing in the checkpoint can run code.

        Raises:
            RunError: There is no whole checkpoint, or it is from an engine with other weights.
        """
        try:
            state = read_json_object(folder / STATE)
            made_with, updates, coefficient = state["made_with"], int(state["updates"]), state["kl_coef"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise RunError(f"{folder} holds no whole checkpoint of a PPO engine ({error}): {REMEDY}") from error
        if made_with != self._made_with():
            raise RunError(
                f"the checkpoint in {folder} was made with {made_with}, and this engine has "
                f"{self._made_with()}: continue with the settings that the run began with"
            )
        workers = self._trained()
        read = {name: read_state(folder, name) for name in (*(name for name, _ in workers), RANDOM)}
        try:
            with self._random:
                for name, worker in workers:
                    restore_worker(worker, read[name])
            self._random.restore(read[RANDOM])
        except (KeyError, IndexError, TypeError, ValueError, RuntimeError) as error:
            raise RunError(f"the checkpoint in {folder} does not fit the model ({error}): {REMEDY}") from error
        self.updates = updates
        self._kl_control.value = coefficient

    def _trained(self) -> "list[tuple[str, TrainingWorker]]":
        return [("actor", self._actor), *([("critic", self._critic)] if self._critic else [])]

    def _made_with(self) -> dict[str, Any]:
        return {"critic": self._critic is not None, "lora_rank": self._config.lora_rank, "seed": self._seed}

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        for name in ("_actor", "_reference", "_critic"):
            vars(self).pop(name, None)
        gc.collect()
        release_memory()
        self._leave()


@contextmanager
def _timed(metrics: dict[str, float], stage: str) -> Iterator[None]:
    started = time.perf_counter()
    yield
    metrics[f"timing_s/{stage}"] = time.perf_counter() - started
