"""PPO: roles learn online from the reward, through VeRL.

    for step in 1 .. steps:
        rollouts of tasks_per_step tasks, n of each, by the society with the current weights; or, with `states`,
        n answers of the current weights to each of so many recorded prompts      (training.algorithms.ppo.sources)
        credit for each call of the roles; advantages; one update, by one process or several
                                                       (training.credit, training.engines, training.cluster)
        the new weights go live as <slot>@<phase>-<step>; checkpoint

A step with too few usable rollouts is skipped and counted, and the weights stay. A resumed run begins after the last
checkpoint and reads recorded rollouts from disk. From equal rollouts it learns equal weights, bit for bit.
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
from evaluation.records.rollouts import RolloutRecord
from training.algorithms.ppo import steps as ppo_steps
from training.algorithms.ppo.batch import Sample
from training.algorithms.ppo.checkpoints import FIRST, Checkpoints, Progress
from training.algorithms.ppo.opening import open_engine
from training.algorithms.ppo.settings import PpoSettings
from training.algorithms.ppo.sources import BranchSource, RolloutSource, SampleSource
from training.algorithms.ppo.tokens import forget_update, record_update
from training.credit.advantages import GROUPED
from training.credit.values import check_reward, how_valued
from training.engines.background import Background
from training.engines.verl_config import check_verl
from training.learning.base import Bench, Learned, PhasePlan
from training.learning.states import check_tasks
from training.learning.weights import copy_model

if TYPE_CHECKING:
    from pathlib import Path

    from training.engines.base import TrainingEngine

STOP_SECONDS = 1.0
"""Time that a stop waits for the update in progress. After it the update ends with the process."""


class Ppo:
    """Online steps that update the weights of one slot."""

    Settings = PpoSettings
    part: ClassVar[Part | None] = "weights"

    def check(self, plan: PhasePlan, settings: PpoSettings, config: Config, dataset: Dataset) -> None:
        """Raise ConfigError if the weights cannot be trained with these settings, or there are too few tasks."""
        if config.models[plan.slot].temperature == 0:
            raise ConfigError(
                f"models.{plan.slot}.temperature=0 always gives the same answer, and {plan.name} learns from "
                "differences: set it to 1"
            )
        if config.models[plan.slot].dtype != "float32":
            raise ConfigError(
                f"models.{plan.slot}.dtype={config.models[plan.slot].dtype}: {plan.name} compares the probabilities of "
                "float32 before and after an update, and these answers would come from others: set it to float32, or "
                "let an algorithm that needs no probabilities learn, such as rejection"
            )
        if settings.start is not None:
            _check_start(plan, settings.start, config)
        if settings.adv_estimator in GROUPED and settings.n < 2:
            what = "answers to one prompt" if settings.states else "rollouts of one task"
            raise ConfigError(
                f"{plan.name}.n={settings.n}: {settings.adv_estimator} compares {what} with each other; "
                f"set {plan.name}.n to 2 or more, or {plan.name}.adv_estimator to gae or reinforce_plus_plus"
            )
        if settings.states:
            how_valued(plan, settings.reward, settings.value, config)
            check_tasks(plan, settings.tasks, dataset, config.seed)
        else:
            check_reward(plan, settings.reward, config.reward)
            if settings.tasks_per_step > len(dataset.train):
                raise ConfigError(
                    f"{plan.name}.tasks_per_step={settings.tasks_per_step}, but there are {len(dataset.train)} "
                    "training tasks: ask for fewer"
                )
        if settings.test_freq > 0 and settings.test_tasks > len(dataset.validation):
            raise ConfigError(
                f"{plan.name}.test_tasks={settings.test_tasks}, but there are {len(dataset.validation)} held-out "
                "tasks: ask for fewer, or raise data.validation_share"
            )
        check_verl(settings.verl)

    async def learn(self, plan: PhasePlan, settings: PpoSettings, bench: Bench) -> Learned:
        """Run the remaining steps.

        Raises:
            ModelError: The model server did not load new weights.
            RunError: A checkpoint is broken, or rollouts are no longer possible.
        """
        return await _Loop(plan, settings, bench).run()


def _check_start(plan: PhasePlan, start: str, config: Config) -> None:
    here = {name: model.path for name, model in config.used().items() if model.has_weights}
    if start not in here:
        raise ConfigError(
            f"{plan.name}.start={start}: there are no such weights to begin with; the slots whose weights are here are "
            f"{', '.join(here)}"
        )
    if here[start] != here[plan.slot]:
        raise ConfigError(
            f"{plan.name}.start={start}: models.{start}.path={here[start]} is another model than models.{plan.slot}."
            f"path={here[plan.slot]}, so its weights do not fit; set {plan.name}.start=null"
        )


class _Loop:
    """The steps in one process. A later process continues from the checkpoints."""

    def __init__(self, plan: PhasePlan, settings: PpoSettings, bench: Bench) -> None:
        self._plan = plan
        self._bench = bench
        self._settings = settings
        self._checkpoints = Checkpoints(bench.run, plan, settings.max_actor_ckpt_to_keep)
        self._first_weights = bench.weights(settings.start or plan.slot)
        self._worker = Background(f"{plan.name}-engine")
        self._engine: TrainingEngine | None = None

    async def run(self) -> Learned:
        opened: asyncio.Future[None] | None = None
        try:
            found = await asyncio.to_thread(self._checkpoints.latest)
            self._progress = found[1] if found else Progress()
            if self._progress.step < self._settings.steps:
                opened = self._worker.start(self._open, found[0] if found else None)
            if self._progress.live is None and self._settings.start is not None:
                self._progress.live = await asyncio.to_thread(self._begun)
            if self._progress.live is not None:
                await self._bench.publish(self._progress.live)
            if opened is not None:
                source = self._source()
                await source.open()
                await self._steps(source, opened)
            return Learned(self._figures(), self._learned())
        finally:
            if opened is not None:
                opened.cancel()
            self._worker.finish(self._close, STOP_SECONDS)

    def _begun(self) -> Policy:
        """The weights of another slot as this slot's first version of the phase."""
        policy = Policy.made("weights", self._plan.slot, f"{self._plan.name}-0")
        copy_model(self._first_weights, self._bench.run.path / policy.folder)
        seal(self._bench.run, policy.folder)
        return policy

    def _source(self) -> SampleSource:
        if self._settings.states:
            return BranchSource(self._plan, self._settings, self._bench, self._progress.course)
        first = self._first() if self._settings.credit == "counterfactual" else None
        return RolloutSource(self._plan, self._settings, self._bench, first)

    def _first(self) -> Policy:
        """The weights that the phase began with, as a candidate for replays."""
        policy = Policy.made("weights", self._plan.slot, f"{self._plan.name}-{FIRST}")
        if not (self._bench.run.path / policy.folder).exists():
            copy_model(self._first_weights, self._bench.run.path / policy.folder)
            seal(self._bench.run, policy.folder)
        return policy

    async def _steps(self, source: SampleSource, opened: "asyncio.Future[None]") -> None:
        bench, settings, progress = self._bench, self._settings, self._progress
        left = settings.steps - progress.step
        if progress.step:
            bench.view.note(f"{self._plan.name}: continues after step {progress.step}")
        rollouts = left * settings.tasks_per_step * settings.n
        shown = (
            bench.view.work(self._plan.name, left)
            if settings.states
            else bench.view.phase(self._plan.name, rollouts, bench.versions)
        )
        with shown as advance:
            for done, step in enumerate(range(progress.step + 1, settings.steps + 1), start=1):
                await self._step(step, source, opened)
                if advance is not None:
                    advance(done, "")

    async def _step(self, step: int, source: SampleSource, opened: "asyncio.Future[None]") -> None:
        bench, settings, progress = self._bench, self._settings, self._progress
        clock = _Clock()
        taken = await source.take(step)
        clock.stop("gen")
        metrics: dict[str, Any] = dict(taken.metrics) | {"calls/stale": taken.stale}
        skip = taken.skip
        if skip is None:
            await opened
            clock.stop("wait_for_engine")
            metrics |= await self._update(taken.samples, step)
            clock.stop("update")
            await self._publish(Policy.made("weights", self._plan.slot, f"{self._plan.name}-{step}"))
            clock.stop("publish")
            progress.updates += 1
        else:
            forget_update(bench.run.path, self._plan.name, step)
            progress.skipped.append(step)
            bench.view.warn(f"{self._plan.name}: step {step} is skipped, the weights stay as they are: {skip}")
        progress.step = step
        progress.stale_calls += taken.stale
        for reason, count in taken.left_out.items():
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

    async def _update(self, samples: Sequence[Sample], step: int) -> Mapping[str, float]:
        assert self._engine is not None
        with self._bench.view.work(f"{self._plan.name}: update {step}", len(samples)):
            record = partial(record_update, self._bench.run.path, self._plan.name, step, self._settings)
            return await self._worker.start(self._engine.update, samples, step, record)

    async def _publish(self, policy: Policy) -> None:
        """Put the new weights live for the next step's rollouts."""
        await self._worker.start(self._write, policy)
        await self._bench.publish(policy)
        self._progress.live = policy

    async def _validate(self, step: int) -> Mapping[str, Any]:
        """Metrics of the society with the current weights on held-out tasks, always with the same tasks and seeds."""
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
        """The phase's policy: the weights of the last update, which are live already."""
        if not self._progress.updates:
            kept = f"; its weights are those of {self._settings.start}" if self._settings.start else ""
            self._bench.view.warn(f"{self._plan.name}: every step was skipped, so nothing was learned{kept}")
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
        """Import VeRL and load the model. This takes seconds, while the first rollouts run."""
        # Works only before torch is loaded. Idle OpenMP threads that spin would slow the model server down manyfold.
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
        self._engine = open_engine(self._first_weights, self._plan, self._settings, self._bench, self._checkpoints)
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
    """Measures the seconds of a step's stages."""

    def __init__(self) -> None:
        self._started = self._last = time.perf_counter()
        self._stages: dict[str, float] = {}

    def stop(self, stage: str) -> None:
        """End stage `stage` and begin the next."""
        now = time.perf_counter()
        self._stages[f"timing_s/{stage}"] = now - self._last
        self._last = now

    def seconds(self) -> dict[str, float]:
        """Seconds of each stage and of the whole step."""
        return {**self._stages, "timing_s/step": self._last - self._started}


def _line(phase: str, step: int, steps: int, metrics: Mapping[str, Any]) -> str:
    """Describe a step in one line."""

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
