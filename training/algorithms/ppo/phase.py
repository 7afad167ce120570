"""PPO: roles learn online from the reward, through VeRL.

    for step in 1 .. steps:
        rollouts of tasks_per_step tasks, n of each, by the society with the weights as they are now
        credit for each call of the roles; advantages; one update    (training.credit.calls, training.engines.local)
        the new weights go live as <slot>@<phase>-<step>; checkpoint

A step that has too few usable rollouts is skipped and counted: the weights stay. A continued run begins after the last
checkpoint; rollouts that were recorded by then come back from disk, and from the same rollouts it ends with the same
weights, bit for bit.
"""

import asyncio
import os
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from chimera.config.tree import Config
from chimera.core.errors import ConfigError
from chimera.data.tasks import Dataset
from chimera.run.policies import Part, Policy
from chimera.run.seals import seal
from evaluation.records.rollouts import RolloutInput, RolloutRecord
from training.algorithms.ppo import steps as ppo_steps
from training.algorithms.ppo.batch import Sample
from training.algorithms.ppo.checkpoints import Checkpoints, Progress
from training.algorithms.ppo.settings import PpoSettings
from training.algorithms.ppo.tokens import forget_update, record_update
from training.credit.advantages import GROUPED
from training.credit.calls import credit
from training.engines.background import Background
from training.engines.verl_config import check_verl
from training.learning.base import Bench, Learned, PhasePlan
from training.learning.episodes import Episode

if TYPE_CHECKING:
    from pathlib import Path

    from training.engines.local import PpoEngine

STOP_SECONDS = 1.0
"""How long a stop waits for the update in progress, which then ends with the process."""


class Ppo:
    """Online steps that update the weights of one slot."""

    Settings = PpoSettings
    part: ClassVar[Part | None] = "weights"

    def check(self, plan: PhasePlan, settings: PpoSettings, config: Config, dataset: Dataset) -> None:
        """Raise ConfigError if the weights cannot be trained like this, or tasks are too few."""
        if config.models[plan.slot].temperature == 0:
            raise ConfigError(
                f"models.{plan.slot}.temperature=0 always gives the same answer, and {plan.name} learns from "
                "differences: set it to 1"
            )
        if settings.adv_estimator in GROUPED and settings.n < 2:
            raise ConfigError(
                f"{plan.name}.n={settings.n}: {settings.adv_estimator} compares rollouts of one task with each other; "
                f"set {plan.name}.n to 2 or more, or {plan.name}.adv_estimator to gae or reinforce_plus_plus"
            )
        if settings.tasks_per_step > len(dataset.train):
            raise ConfigError(
                f"{plan.name}.tasks_per_step={settings.tasks_per_step}, but there are {len(dataset.train)} training "
                "tasks: ask for fewer"
            )
        if settings.test_freq > 0 and settings.test_tasks > len(dataset.validation):
            raise ConfigError(
                f"{plan.name}.test_tasks={settings.test_tasks}, but there are {len(dataset.validation)} held-out "
                "tasks: ask for fewer, or raise data.validation_share"
            )
        check_verl(settings.verl)

    async def learn(self, plan: PhasePlan, settings: PpoSettings, bench: Bench) -> Learned:
        """Do the steps that are left.

        Raises:
            ModelError: The model server did not take new weights.
            RunError: A checkpoint is broken, or no rollouts are possible any more.
        """
        return await _Loop(plan, settings, bench).run()


class _Loop:
    """The steps of one process; what a later process needs is in the checkpoints."""

    def __init__(self, plan: PhasePlan, settings: PpoSettings, bench: Bench) -> None:
        self._plan = plan
        self._bench = bench
        self._settings = settings
        self._checkpoints = Checkpoints(bench.run, plan, settings.max_actor_ckpt_to_keep)
        self._first_weights = bench.weights(plan.slot)
        self._worker = Background(f"{plan.name}-engine")
        self._engine: PpoEngine | None = None

    async def run(self) -> Learned:
        opened: asyncio.Future[None] | None = None
        try:
            found = await asyncio.to_thread(self._checkpoints.latest)
            self._progress = found[1] if found else Progress()
            if self._progress.step < self._settings.steps:
                opened = self._worker.start(self._open, found[0] if found else None)
            if self._progress.live is not None:
                await self._bench.publish(self._progress.live)
            if opened is not None:
                await self._steps(opened)
            return Learned(self._figures(), self._learned())
        finally:
            if opened is not None:
                opened.cancel()
            self._worker.finish(self._close, STOP_SECONDS)

    async def _steps(self, opened: "asyncio.Future[None]") -> None:
        bench, settings, progress = self._bench, self._settings, self._progress
        left = settings.steps - progress.step
        if progress.step:
            bench.view.note(f"{self._plan.name}: continues after step {progress.step}")
        tasks = ppo_steps.draw(bench.dataset.train, settings.tasks_per_step, f"{bench.config.seed}/{self._plan.name}")
        with bench.view.phase(self._plan.name, left * settings.tasks_per_step * settings.n, bench.versions):
            for step, drawn in zip(range(1, settings.steps + 1), tasks, strict=False):
                if step > progress.step:
                    inputs = ppo_steps.inputs_of(drawn, self._plan.name, step, settings.n, bench.config.seed)
                    await self._step(step, inputs, opened)

    async def _step(self, step: int, inputs: Sequence[RolloutInput], opened: "asyncio.Future[None]") -> None:
        bench, settings, progress = self._bench, self._settings, self._progress
        clock = _Clock()
        version = bench.versions[self._plan.slot]
        episodes = await self._rollouts(inputs)
        clock.stop("gen")
        found = ppo_steps.sort_out(inputs, episodes)
        samples, stale = await asyncio.to_thread(self._samples, found.good, version)
        clock.stop("adapt")
        metrics: dict[str, Any] = ppo_steps.figures(found, samples) | {"calls/stale": stale}
        skip = ppo_steps.why_skip(found, samples, settings, self._plan.name)
        if skip is None:
            await opened
            clock.stop("wait_for_engine")
            metrics |= await self._update(samples, step)
            clock.stop("update")
            await self._publish(Policy.made("weights", self._plan.slot, f"{self._plan.name}-{step}"))
            clock.stop("publish")
            progress.updates += 1
        else:
            forget_update(bench.run.path, self._plan.name, step)
            progress.skipped.append(step)
            bench.view.warn(f"{self._plan.name}: step {step} is skipped, the weights stay as they are: {skip}")
        progress.step = step
        progress.stale_calls += stale
        for reason, count in found.left_out.items():
            progress.left_out[reason] = progress.left_out.get(reason, 0) + count
        if settings.test_freq > 0 and step % settings.test_freq == 0:
            metrics |= await self._validate(step)
            clock.stop("testing")
        if step % settings.save_freq == 0 or step == settings.steps:
            await opened
            await self._worker.start(self._save)
            clock.stop("save_checkpoint")
        metrics |= clock.seconds() | {"step/skipped": int(skip is not None), "policy": bench.versions[self._plan.slot]}
        bench.metrics.log(self._plan.name, step, metrics)
        bench.view.note(_line(self._plan.name, step, settings.steps, metrics))

    async def _rollouts(self, inputs: Sequence[RolloutInput]) -> list[Episode]:
        """What ends before the deadline."""
        episodes: list[Episode] = []
        deadline = asyncio.timeout(self._settings.step_timeout_s)
        try:
            async with deadline:
                async for episode in self._bench.rollouts(inputs):
                    episodes.append(episode)
                    self._bench.view.add(episode.record)
        except TimeoutError:
            if not deadline.expired():
                raise
        return episodes

    def _samples(self, episodes: Sequence[Episode], version: str) -> tuple[list[Sample], int]:
        """The roles' calls with their credit, and how many are left out because other weights made them."""
        samples: list[Sample] = []
        stale = 0
        for episode in episodes:
            calls = episode.calls(self._plan.roles)
            own = [call for call in calls if call.weights_version == version]
            stale += len(calls) - len(own)
            credited = credit(own, episode.record, self._settings, self._bench.config.reward)
            samples += ppo_steps.samples_of(credited, episode.record.task_id)
        return samples, stale

    async def _update(self, samples: Sequence[Sample], step: int) -> Mapping[str, float]:
        assert self._engine is not None
        with self._bench.view.work(f"{self._plan.name}: update {step}", len(samples)):
            record = partial(record_update, self._bench.run.path, self._plan.name, step)
            return await self._worker.start(self._engine.update, samples, step, record)

    async def _publish(self, policy: Policy) -> None:
        """The new weights go live for the next step's rollouts."""
        await self._worker.start(self._write, policy)
        await self._bench.publish(policy)
        self._progress.live = policy

    async def _validate(self, step: int) -> Mapping[str, Any]:
        """The society with the weights as they are now on held-out tasks, the same tasks and seeds every time."""
        bench = self._bench
        inputs = ppo_steps.validation_inputs(
            bench.dataset, self._plan.name, self._settings.test_tasks, bench.config.seed, step
        )
        records: list[RolloutRecord] = []
        with bench.view.phase(inputs[0].phase, len(inputs), bench.versions, table=False):
            async for episode in bench.rollouts(inputs, mode="val"):
                records.append(episode.record)
                bench.view.add(episode.record)
        return ppo_steps.validation_metrics(records)

    def _learned(self) -> Policy | None:
        """The weights of the last update, which are live already: the phase's policy is that of its last step."""
        if not self._progress.updates:
            self._bench.view.warn(f"{self._plan.name}: every step was skipped, so nothing was learned")
        return self._progress.live

    def _figures(self) -> dict[str, Any]:
        progress = self._progress
        return {
            "steps": progress.step,
            "updates": progress.updates,
            "skipped": len(progress.skipped),
            "calls/stale": progress.stale_calls,
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
            self._settings,
            seed=self._bench.config.seed,
            total_steps=self._settings.steps,
            temperature=self._bench.config.models[self._plan.slot].temperature,
        )
        if checkpoint is not None:
            self._engine.load(checkpoint)

    def _write(self, policy: Policy) -> None:
        assert self._engine is not None
        self._engine.export(self._bench.run.path / policy.folder)
        seal(self._bench.run, policy.folder)

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


def _line(phase: str, step: int, steps: int, metrics: Mapping[str, Any]) -> str:
    """A step in one line."""

    def figure(name: str, text: str, form: str = ".3f") -> str:
        value = metrics.get(name)
        return "" if value is None else f", {text} {value:{form}}"

    return (
        f"{phase}: step {step}/{steps}"
        + figure("reward/mean", "reward")
        + figure("alignment/mean", "aligned", ".0%")
        + figure("rollouts/good", "good rollouts", "d")
        + figure("actor/ppo_kl", "KL", ".1e")
        + figure("actor/entropy", "entropy")
        + figure("val-core/reward/mean", "held-out reward")
        + figure("timing_s/step", "seconds", ".1f")
        + f", {metrics['policy']} is live"
    )
