"""The steps of a PPO phase: samples, update, weights that go live, checkpoint.

With `ahead`, the samples of the next step are taken while the update of this one runs, all of them from the weights
before it; the new weights go live when both have ended. Tokens that weights one version older have sampled are weighted
for it (`training.ppo.engine.advantages`). A resumed run first asks the same older weights, so that it makes nothing
twice.
"""

import asyncio
import os
from collections.abc import Awaitable, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from chimera.run.policies import Policy
from chimera.run.seals import seal
from evaluation.records.rollouts import RolloutRecord
from training.learning.base import Bench, Learned, PhasePlan
from training.model.weights import copy_model
from training.ppo import steps as ppo_steps
from training.ppo.background import Background
from training.ppo.checkpoints import FIRST, Checkpoints, Progress
from training.ppo.curriculum import Course
from training.ppo.engine.batch import Sample
from training.ppo.opening import open_engine
from training.ppo.reporting import StepClock, step_line
from training.ppo.settings import PpoSettings
from training.ppo.sources import BranchSource, RolloutSource, SampleSource, Taken
from training.ppo.tokens import forget_update, record_update

if TYPE_CHECKING:
    from pathlib import Path

    from training.ppo.engine.base import TrainingEngine

A = TypeVar("A")
B = TypeVar("B")

STOP_SECONDS = 1.0
"""Time that a stop waits for the update in progress. After it the update ends with the process."""


class PpoLoop:
    """The steps in one process. A later process continues from the checkpoints."""

    def __init__(self, plan: PhasePlan, settings: PpoSettings, bench: Bench) -> None:
        self._plan = plan
        self._bench = bench
        self._settings = settings
        self._checkpoints = Checkpoints(bench.run, plan, settings.max_actor_ckpt_to_keep)
        self._first_weights = bench.weights(settings.start or plan.slot)
        self._worker = Background(f"{plan.name}-engine")
        self._engine: TrainingEngine | None = None
        self._course = Course()

    async def run(self) -> Learned:
        """Run the remaining steps; see `Ppo.learn`."""
        opened: asyncio.Future[None] | None = None
        try:
            found = await asyncio.to_thread(self._checkpoints.latest)
            self._progress = found[1] if found else Progress()
            if self._progress.step < self._settings.steps:
                opened = self._worker.start(self._open, found[0] if found else None)
            if self._progress.live is None and self._settings.start is not None:
                self._progress.live = await asyncio.to_thread(self._begun)
            if opened is None:
                await self._go_live(self._progress.live)
            else:
                asked = self._settings.ahead and self._progress.step
                await self._go_live(self._progress.asked if asked else self._progress.live)
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
            taken: Taken | None = None
            for done, step in enumerate(range(progress.step + 1, settings.steps + 1), start=1):
                taken = await self._step(step, taken, source, opened)
                if advance is not None:
                    advance(done, "")

    async def _step(
        self, step: int, taken: Taken | None, source: SampleSource, opened: "asyncio.Future[None]"
    ) -> Taken | None:
        """One step from its samples, which are taken now if they are None; with `ahead`, returns the next step's."""
        bench, settings, progress = self._bench, self._settings, self._progress
        clock = StepClock()
        if taken is None:
            taken = await source.take(step, self._fresh())
            await self._go_live(progress.live)  # With `ahead`, a resumed run has asked older weights.
            clock.stop("gen")
        metrics: dict[str, Any] = dict(taken.metrics) | {"calls/stale": taken.stale}
        following: Taken | None = None
        self._course = deepcopy(progress.course)
        asked = progress.live
        if settings.ahead:
            metrics |= self._count_older(taken)
        if settings.ahead and step < settings.steps:
            figures, following = await _both(
                self._learn_from(taken, step, opened, clock), source.take(step + 1, self._fresh())
            )
            clock.stop("wait_for_samples")
            progress.asked = asked
        else:
            figures = await self._learn_from(taken, step, opened, clock)
        metrics |= figures
        if taken.skip is None:
            await self._publish(Policy.made("weights", self._plan.slot, f"{self._plan.name}-{step}"))
            clock.stop("publish")
            progress.updates += 1
        else:
            progress.skipped.append(step)
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
        skipped = int(taken.skip is not None)
        metrics |= clock.seconds() | {"step/skipped": skipped, "policy": bench.versions[self._plan.slot]}
        bench.metrics.log(self._plan.name, step, metrics)
        bench.view.note(step_line(self._plan.name, step, settings.steps, metrics))
        return following

    def _fresh(self) -> frozenset[str]:
        """The versions of the slot's weights whose answers are learned from: older by at most `ahead` than the update.

        The weights that are live when the samples are asked for; in a resumed run with `ahead` those are one version
        older than the newest ones, which the samples may be of, too.
        """
        newest = self._progress.live
        return frozenset({self._bench.versions[self._plan.slot], *([newest.version] if newest else [])})

    def _count_older(self, taken: Taken) -> Mapping[str, int]:
        """The number of a step's calls by other weights than the newest, which are those that are updated."""
        newest = self._bench.versions[self._plan.slot]
        older = sum(one.call is not None and one.call.weights_version != newest for one in taken.samples)
        if taken.skip is None:
            self._progress.older_calls += older
        return {"calls/older": older}

    async def _learn_from(
        self, taken: Taken, step: int, opened: "asyncio.Future[None]", clock: StepClock
    ) -> Mapping[str, Any]:
        """The step's update, if there is enough to learn from; its metrics."""
        if taken.skip is not None:
            forget_update(self._bench.run.path, self._plan.name, step)
            self._bench.view.warn(
                f"{self._plan.name}: step {step} is skipped, the weights stay as they are: {taken.skip}"
            )
            return {}
        await opened
        clock.stop("wait_for_engine")
        metrics = await self._update(taken.samples, step)
        clock.stop("update")
        return metrics

    async def _update(self, samples: Sequence[Sample], step: int) -> Mapping[str, float]:
        assert self._engine is not None
        with self._bench.view.work(f"{self._plan.name}: update {step}", len(samples)):
            record = partial(record_update, self._bench.run.path, self._plan.name, step, self._settings)
            async with self._bench.computing():
                return await self._worker.start(self._engine.update, samples, step, record)

    async def _go_live(self, policy: Policy | None) -> None:
        """Put weights live that are not."""
        if policy is not None and self._bench.versions[self._plan.slot] != policy.version:
            await self._bench.publish(policy)

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
            **({"calls/older": progress.older_calls} if self._settings.ahead else {}),
            **{f"rollouts/{reason}": count for reason, count in progress.left_out.items()},
        }

    # In the engine's thread:

    def _open(self, checkpoint: "Path | None") -> None:
        """Import VeRL and load the model. This takes seconds, while the first rollouts run."""
        # Works only before torch is loaded. Idle OpenMP threads that spin would slow the model server down manyfold.
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
        self._engine = open_engine(self._first_weights, self._plan, self._settings, self._bench)
        if checkpoint is not None:
            self._engine.load(checkpoint)

    def _write(self, policy: Policy) -> None:
        assert self._engine is not None
        self._engine.export(self._bench.run.path / policy.folder)
        seal(self._bench.run, policy.folder)

    def _save(self) -> None:
        assert self._engine is not None
        # With `ahead`, what the next step has drawn is drawn again by a resumed run.
        now = replace(self._progress, course=self._course) if self._settings.ahead else self._progress
        self._checkpoints.write(now, self._engine.save)
        self._checkpoints.remove_old_weights(now)

    def _close(self) -> None:
        if self._engine is not None:
            self._engine.close()


async def _both(first: Awaitable[A], second: Awaitable[B]) -> tuple[A, B]:
    """The results of two things that go on at the same time. When one fails, the other is cancelled."""
    tasks = asyncio.ensure_future(first), asyncio.ensure_future(second)
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
