"""The steps of a PPO phase: samples, update, weights that go live, checkpoint.

With `ahead`, the samples of the next step are taken while the update of this one runs, all of them from the weights
before it; the new weights go live when both have ended. Tokens that weights one version older have sampled are weighted
for it (`training.ppo.engine.advantages.importance`). A resumed run first asks the same older weights, so that it makes
nothing twice.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from chimera.run.policies import Policy
from chimera.run.seals import seal
from evaluation.records.rollouts import RolloutRecord
from training.learning.base import Bench, Learned, PhasePlan
from training.model.weights import copy_model
from training.ppo import steps as ppo_steps
from training.ppo.checkpoints import FIRST, Checkpoints, Progress
from training.ppo.curriculum import Course
from training.ppo.learner import Learner
from training.ppo.sources import BranchSource, RolloutSource, SampleSource, Taken
from training.ppo.steps import StepClock, step_line
from training.ppo.tokens import forget_update
from training.ppo.verl.settings import PpoSettings

A = TypeVar("A")
B = TypeVar("B")


class PpoLoop:
    """The steps in one process. A later process continues from the checkpoints."""

    def __init__(self, plan: PhasePlan, settings: PpoSettings, bench: Bench) -> None:
        self._plan = plan
        self._bench = bench
        self._settings, self._trainer = settings, settings.verl_values.trainer
        self._checkpoints = Checkpoints(bench.run, plan, self._trainer.max_actor_ckpt_to_keep)
        self._first_weights = bench.weights(settings.start or plan.slot)
        self._learner = Learner(plan, settings, bench, self._first_weights)
        self._progress = Progress()
        self._course = Course()

    async def run(self) -> Learned:
        """Run the remaining steps; see `Ppo.learn`."""
        try:
            checkpoint = await asyncio.to_thread(self._checkpoints.latest)
            if checkpoint is not None:
                self._progress = checkpoint[1]
            left = self._settings.steps - self._progress.step
            if left > 0:
                self._learner.open(checkpoint[0] if checkpoint else None)
            if self._progress.live is None and self._settings.start is not None:
                self._progress.live = await asyncio.to_thread(self._copy_first, "0")
            if left > 0:
                older = self._settings.ahead and self._progress.step
                await self._go_live(self._progress.asked if older else self._progress.live)
                await self._steps(await self._open_source(), left)
            else:
                await self._go_live(self._progress.live)
            return Learned(self._figures(), self._learned())
        finally:
            self._learner.close()

    async def _steps(self, source: SampleSource, left: int) -> None:
        bench, settings, done_before = self._bench, self._settings, self._progress.step
        if done_before:
            bench.view.note(f"{self._plan.name}: continues after step {done_before}")
        shown = (
            bench.view.work(self._plan.name, left)
            if settings.states
            else bench.view.phase(self._plan.name, left * settings.tasks_per_step * settings.n, bench.versions)
        )
        with shown as advance:
            taken: Taken | None = None
            for step in range(done_before + 1, settings.steps + 1):
                taken = await self._step(step, taken, source)
                if advance is not None:
                    advance(step - done_before, "")

    async def _step(self, step: int, taken: Taken | None, source: SampleSource) -> Taken | None:
        """One step from its samples, which are taken now if they are None; with `ahead`, returns the next step's."""
        clock = StepClock()
        if taken is None:
            taken = await source.take(step, self._fresh())
            await self._go_live(self._progress.live)  # With `ahead`, a resumed run has asked older weights.
            clock.stop("gen")
        metrics: dict[str, Any] = {**taken.metrics, "calls/stale": taken.stale}
        self._course = deepcopy(self._progress.course)
        if self._settings.ahead:
            metrics |= self._count_older(taken)
        if self._settings.ahead and step < self._settings.steps:
            live = self._progress.live
            learned, following = await _both(self._learn_from(taken, step, clock), source.take(step + 1, self._fresh()))
            clock.stop("wait_for_samples")
            self._progress.asked = live
        else:
            learned, following = await self._learn_from(taken, step, clock), None
        metrics |= learned
        if taken.skip is None:
            await self._publish(Policy.made("weights", self._plan.slot, f"{self._plan.name}-{step}"))
            clock.stop("publish")
        self._count(taken, step)
        if self._trainer.test_freq > 0 and step % self._trainer.test_freq == 0:
            metrics |= await self._validate(step)
            clock.stop("testing")
        metrics |= clock.seconds()
        metrics |= {"step/skipped": int(taken.skip is not None), "policy": self._bench.versions[self._plan.slot]}
        self._bench.metrics.log(self._plan.name, step, metrics)
        self._bench.view.note(step_line(self._plan.name, step, self._settings.steps, metrics))
        # After the step's metrics, because a run that is stopped meanwhile may go on after this step.
        if step % self._trainer.save_freq == 0 or step == self._settings.steps:
            await self._learner.save(self._write_checkpoint)
        return following

    async def _learn_from(self, taken: Taken, step: int, clock: StepClock) -> Mapping[str, Any]:
        """The step's update, if there is enough to learn from; its metrics."""
        if taken.skip is not None:
            forget_update(self._bench.run.path, self._plan.name, step)
            self._bench.view.warn(
                f"{self._plan.name}: step {step} is skipped, the weights stay as they are: {taken.skip}"
            )
            return {}
        await self._learner.ready()
        clock.stop("wait_for_engine")
        with self._bench.view.work(f"{self._plan.name}: update {step}", len(taken.samples)):
            async with self._bench.computing():
                metrics = await self._learner.update(taken.samples, step)
        clock.stop("update")
        return metrics

    async def _publish(self, policy: Policy) -> None:
        """Put the new weights live for the next step's rollouts."""
        await self._learner.export(policy)
        await self._bench.publish(policy)
        self._progress.live = policy

    async def _go_live(self, policy: Policy | None) -> None:
        """Put weights live that are not."""
        if policy is not None and self._bench.versions[self._plan.slot] != policy.version:
            await self._bench.publish(policy)

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

    def _write_checkpoint(self, save_engine: Callable[[Path], None]) -> None:
        # With `ahead`, what the next step has drawn is drawn again by a resumed run.
        now = replace(self._progress, course=self._course) if self._settings.ahead else self._progress
        self._checkpoints.write(now, save_engine)
        self._checkpoints.remove_old_weights(now)

    async def _open_source(self) -> SampleSource:
        if self._settings.states:
            source = BranchSource(self._plan, self._settings, self._bench, self._progress.course)
            await source.open()
            return source
        first = self._copy_first(FIRST, again=False) if self._settings.credit == "counterfactual" else None
        return RolloutSource(self._plan, self._settings, self._bench, first)

    def _copy_first(self, name: str, *, again: bool = True) -> Policy:
        """The weights that the phase began with as a policy of its own: its first version, or one for replays.

        Args:
            again: True to copy them even if the policy is there already.
        """
        policy = Policy.made("weights", self._plan.slot, f"{self._plan.name}-{name}")
        folder = self._bench.run.path / policy.folder
        if again or not folder.exists():
            copy_model(self._first_weights, folder)
            seal(self._bench.run, policy.folder)
        return policy

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
        older = sum(sample.call is not None and sample.call.weights_version != newest for sample in taken.samples)
        if taken.skip is None:
            self._progress.older_calls += older
        return {"calls/older": older}

    def _count(self, taken: Taken, step: int) -> None:
        progress = self._progress
        progress.step = step
        progress.stale_calls += taken.stale
        if taken.skip is None:
            progress.updates += 1
        else:
            progress.skipped.append(step)
        for reason, count in taken.left_out.items():
            progress.left_out[reason] = progress.left_out.get(reason, 0) + count

    def _learned(self) -> Policy | None:
        """The phase's policy: the weights of the last update, which are live already."""
        if not self._progress.updates:
            note = f"; its weights are those of {self._settings.start}" if self._settings.start else ""
            self._bench.view.warn(f"{self._plan.name}: every step was skipped, so nothing was learned{note}")
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


async def _both(first: Awaitable[A], second: Awaitable[B]) -> tuple[A, B]:
    """The results of two things that go on at the same time. When one fails, the other is cancelled."""
    tasks = asyncio.ensure_future(first), asyncio.ensure_future(second)
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
