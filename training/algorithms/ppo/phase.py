"""The PPO phase: seniors learn online from the reward, through VeRL.

    for step in 1 .. ppo.steps:
        rollouts of tasks_per_step tasks, n of each, by the society with the weights as they are now
        credit for each senior call; advantages; one update       (see training.credit.calls, training.engines.local)
        the new weights go live as senior@ppo-<step>; checkpoint

A step that has too few usable rollouts is skipped and counted: the weights stay. A continued run begins after the last
checkpoint; rollouts that were recorded by then come back from disk, and from the same rollouts it ends with the same
weights, bit for bit.
"""

import asyncio
import os
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from agents.roles import ROLES
from chimera.config.tree import Config
from chimera.core.errors import ConfigError
from chimera.data.tasks import Dataset
from chimera.run.policies import Policy
from chimera.run.seals import seal
from evaluation.records.rollouts import RolloutInput, RolloutRecord
from training.algorithms.ppo import steps as ppo_steps
from training.algorithms.ppo.batch import Sample
from training.algorithms.ppo.checkpoints import Checkpoints, Progress
from training.algorithms.ppo.tokens import forget_update, record_update
from training.credit.advantages import GROUPED
from training.engines.background import Background
from training.engines.verl_config import check_verl
from training.phases import PhaseResult

SENIORS = tuple(role.name for role in ROLES.values() if role.algorithm == "ppo")

if TYPE_CHECKING:
    from pathlib import Path

    from training.engines.local import PpoEngine
    from training.lab.lab import Lab

STOP_SECONDS = 1.0
"""How long a stop waits for the update in progress, which then ends with the process."""


class Ppo:
    """`ppo.steps` online steps of the seniors' model."""

    name = "ppo"
    learns = True

    def check(self, config: Config, dataset: Dataset) -> None:
        """Raise ConfigError if the seniors' model cannot be trained like this, or tasks are too few."""
        senior, ppo = config.models.senior, config.ppo
        if senior.kind != "embedded":
            raise ConfigError(
                f"models.senior.kind={senior.kind}: ppo trains the seniors' weights, and there is no access to those "
                "behind an endpoint; set models.senior.kind=embedded with a models.senior.path, or leave ppo out "
                "of --phases"
            )
        if senior.temperature == 0:
            raise ConfigError(
                "models.senior.temperature=0 always gives the same answer, and ppo learns from differences: set it to 1"
            )
        if ppo.adv_estimator in GROUPED and ppo.n < 2:
            raise ConfigError(
                f"ppo.n={ppo.n}: {ppo.adv_estimator} compares rollouts of one task with each other; set ppo.n to 2 or "
                "more, or ppo.adv_estimator to gae or reinforce_plus_plus"
            )
        if ppo.tasks_per_step > len(dataset.train):
            raise ConfigError(
                f"ppo.tasks_per_step={ppo.tasks_per_step}, but there are {len(dataset.train)} training tasks: ask for "
                "fewer"
            )
        if ppo.test_freq > 0 and ppo.test_tasks > len(dataset.validation):
            raise ConfigError(
                f"ppo.test_tasks={ppo.test_tasks}, but there are {len(dataset.validation)} held-out tasks: ask for "
                "fewer, or raise data.validation_share"
            )
        check_verl(ppo.verl)

    async def run(self, lab: "Lab") -> PhaseResult:
        """Do the steps that are left.

        Raises:
            ModelError: The model server did not take new weights.
            RunError: A checkpoint is broken, or no rollouts are possible any more.
        """
        return await _Loop(lab).run()


class _Loop:
    """The steps of one process; what a later process needs is in the checkpoints."""

    def __init__(self, lab: "Lab") -> None:
        self._lab = lab
        self._config = lab.config.ppo
        self._checkpoints = Checkpoints(lab.run, self._config.max_actor_ckpt_to_keep)
        self._first_weights = lab.weights_folder("senior")
        self._worker = Background("ppo-engine")
        self._engine: PpoEngine | None = None

    async def run(self) -> PhaseResult:
        opened: asyncio.Future[None] | None = None
        try:
            found = await asyncio.to_thread(self._checkpoints.latest)
            self._progress = found[1] if found else Progress()
            opened = self._worker.start(self._open, found[0] if found else None)
            if self._progress.live is not None:
                await self._lab.put_live(self._progress.live)
            await self._steps(opened)
            return PhaseResult(self._figures(), await self._learned(opened))
        finally:
            if opened is not None:
                opened.cancel()
            self._worker.finish(self._close, STOP_SECONDS)

    async def _steps(self, opened: "asyncio.Future[None]") -> None:
        lab, config, progress = self._lab, self._config, self._progress
        left = config.steps - progress.step
        if left <= 0:
            return
        if progress.step:
            lab.view.note(f"ppo: continues after step {progress.step}")
        tasks = ppo_steps.draw(lab.dataset.train, config.tasks_per_step, lab.config.seed)
        with lab.view.phase("ppo", left * config.tasks_per_step * config.n, lab.policy_versions):
            for step, drawn in zip(range(1, config.steps + 1), tasks, strict=False):
                if step > progress.step:
                    inputs = ppo_steps.inputs_of(drawn, step, config.n, lab.config.seed)
                    await self._step(step, inputs, opened)

    async def _step(self, step: int, inputs: Sequence[RolloutInput], opened: "asyncio.Future[None]") -> None:
        lab, config, progress = self._lab, self._config, self._progress
        clock = _Clock()
        version = lab.policy_versions["senior"]
        records = await self._rollouts(inputs)
        clock.stop("gen")
        found = ppo_steps.sort_out(inputs, records, version)
        samples = await asyncio.to_thread(self._samples, found.good)
        clock.stop("adapt")
        metrics: dict[str, Any] = ppo_steps.figures(found, samples)
        skip = ppo_steps.why_skip(found, samples, config)
        if skip is None:
            await opened
            clock.stop("wait_for_engine")
            metrics |= await self._update(samples, step)
            clock.stop("update")
            await self._publish(step)
            clock.stop("publish")
            progress.updates += 1
        else:
            forget_update(lab.run.path, step)
            progress.skipped.append(step)
            lab.view.warn(f"ppo: step {step} is skipped, the weights stay as they are: {skip}")
        progress.step = step
        for reason, count in found.left_out.items():
            progress.left_out[reason] = progress.left_out.get(reason, 0) + count
        if config.test_freq > 0 and step % config.test_freq == 0:
            metrics |= await self._validate(step)
            clock.stop("testing")
        if step % config.save_freq == 0 or step == config.steps:
            await opened
            await self._worker.start(self._save)
            clock.stop("save_checkpoint")
        metrics |= clock.seconds() | {"step/skipped": int(skip is not None), "policy": lab.policy_versions["senior"]}
        lab.metrics.log("ppo", step, metrics)
        lab.view.note(_line(step, config.steps, metrics))

    async def _rollouts(self, inputs: Sequence[RolloutInput]) -> list[RolloutRecord]:
        """What ends before the deadline."""
        records: list[RolloutRecord] = []
        deadline = asyncio.timeout(self._config.step_timeout_s)
        try:
            async with deadline:
                async for record in self._lab.rollouts(inputs):
                    records.append(record)
                    self._lab.view.add(record)
        except TimeoutError:
            if not deadline.expired():
                raise
        return records

    def _samples(self, records: Sequence[RolloutRecord]) -> list[Sample]:
        """The senior calls of `records` with their credit; parses their traces."""
        from training.credit.calls import credit
        from training.learning import traces
        from training.learning.adapter import HierarchicalTraceAdapter

        reward = self._lab.config.reward
        adapter = HierarchicalTraceAdapter(reward)
        samples: list[Sample] = []
        for record in records:
            assert record.trace is not None
            calls = adapter.adapt_for_ppo(traces.read(self._lab.run.path / record.trace), SENIORS)
            samples += ppo_steps.samples_of(credit(calls, record, self._config, reward), record.task_id)
        return samples

    async def _update(self, samples: Sequence[Sample], step: int) -> Mapping[str, float]:
        assert self._engine is not None
        with self._lab.view.work(f"ppo: update {step}", len(samples)):
            record = partial(record_update, self._lab.run.path, step)
            return await self._worker.start(self._engine.update, samples, step, record)

    async def _publish(self, step: int) -> None:
        """The new weights go live for the next step's rollouts."""
        policy = Policy("senior", f"senior@ppo-{step}", f"models/senior/ppo-{step}")
        await self._export(policy)
        await self._lab.put_live(policy)
        self._progress.live = policy

    async def _export(self, policy: Policy) -> None:
        await self._worker.start(self._write, policy)

    async def _validate(self, step: int) -> Mapping[str, Any]:
        """The society with the weights as they are now on held-out tasks, the same tasks and seeds every time."""
        lab = self._lab
        inputs = ppo_steps.validation_inputs(lab.dataset, lab.config, step)
        records: list[RolloutRecord] = []
        with lab.view.phase(inputs[0].phase, len(inputs), lab.policy_versions, table=False):
            async for record in lab.rollouts(inputs, mode="val"):
                records.append(record)
                lab.view.add(record)
        return ppo_steps.validation_metrics(records)

    async def _learned(self, opened: "asyncio.Future[None]") -> Policy | None:
        if not self._progress.updates:
            self._lab.view.warn("ppo: every step was skipped, so nothing was learned")
            return None
        policy = Policy("senior", "senior@ppo", "models/senior/ppo")
        await opened
        await self._export(policy)
        return policy

    def _figures(self) -> dict[str, Any]:
        progress = self._progress
        return {
            "steps": progress.step,
            "updates": progress.updates,
            "skipped": len(progress.skipped),
            **{f"rollouts/{reason}": count for reason, count in progress.left_out.items()},
        }

    # In the engine's thread:

    def _open(self, checkpoint: "Path | None") -> None:
        """Import VeRL and load the model; this takes seconds, in which the first rollouts run."""
        # Where torch is not loaded yet: idle OpenMP threads that spin would slow the model server down manyfold.
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
        from training.engines.local import PpoEngine

        self._engine = PpoEngine(
            self._first_weights,
            self._config,
            seed=self._lab.config.seed,
            total_steps=self._config.steps,
            temperature=self._lab.config.models.senior.temperature,
        )
        if checkpoint is not None:
            self._engine.load(checkpoint)

    def _write(self, policy: Policy) -> None:
        assert self._engine is not None
        self._engine.export(self._lab.run.path / policy.folder)
        seal(self._lab.run, policy.folder)

    def _save(self) -> None:
        assert self._engine is not None
        self._checkpoints.write(self._progress, self._engine.save)
        self._checkpoints.remove_old_weights(self._progress.live)

    def _close(self) -> None:
        if self._engine is not None:
            self._engine.close()


class _Clock:
    """Seconds of a step's stages."""

    def __init__(self) -> None:
        self._started = self._last = time.perf_counter()
        self._stages: dict[str, float] = {}

    def stop(self, stage: str) -> None:
        """A stage has ended now; the next begins."""
        now = time.perf_counter()
        self._stages[f"timing_s/{stage}"] = now - self._last
        self._last = now

    def seconds(self) -> dict[str, float]:
        """Seconds of each stage and of the whole step."""
        return {**self._stages, "timing_s/step": self._last - self._started}


def _line(step: int, steps: int, metrics: Mapping[str, Any]) -> str:
    """A step in one line."""

    def figure(name: str, text: str, form: str = ".3f") -> str:
        value = metrics.get(name)
        return "" if value is None else f", {text} {value:{form}}"

    return (
        f"ppo: step {step}/{steps}"
        + figure("reward/mean", "reward")
        + figure("alignment/mean", "aligned", ".0%")
        + figure("rollouts/good", "good rollouts", "d")
        + figure("actor/ppo_kl", "KL", ".1e")
        + figure("actor/entropy", "entropy")
        + figure("val-core/reward/mean", "held-out reward")
        + figure("timing_s/step", "seconds", ".1f")
        + f", {metrics['policy']} is live"
    )
