"""Where the samples of an online step come from: rollouts of the society, or branches of recorded states."""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agents.roles import ROLES
from chimera.run.policies import Policy
from evaluation.records.rollouts import RolloutInput, RolloutRecord
from training.learning.base import Bench, PhasePlan
from training.learning.episodes import Episode
from training.learning.groups import group_figures, grow
from training.learning.states import State, collect_states
from training.learning.values import Values, how_valued
from training.ppo import steps as ppo_steps
from training.ppo.credit import credit
from training.ppo.curriculum import Course, Curriculum
from training.ppo.engine.advantages import GROUPED
from training.ppo.engine.batch import Sample
from training.ppo.verl.settings import PpoSettings


@dataclass(frozen=True, slots=True)
class Taken:
    """One step's samples.

    Attributes:
        samples: Calls with their credit and their group.
        skip: Why there are too few to learn from; None if there are enough.
        stale: Number of calls left out because weights that are too old, or unknown ones, had sampled them.
        left_out: Number of rollouts that were not learned from, by reason.
    """

    samples: Sequence[Sample]
    metrics: Mapping[str, Any]
    skip: str | None
    stale: int
    left_out: Mapping[str, int] = field(default_factory=dict)


class RolloutSource:
    """Samples from `tasks_per_step` tasks, `n` rollouts of each.

    Args:
        first: counterfactual credit: the weights that the phase began with.
    """

    def __init__(self, plan: PhasePlan, settings: PpoSettings, bench: Bench, first: Policy | None = None) -> None:
        self._plan, self._settings, self._bench, self._first = plan, settings, bench, first
        self._tasks = ppo_steps.draw(bench.dataset.train, settings.tasks_per_step, f"{bench.config.seed}/{plan.name}")
        self._passed = 0

    async def take(self, step: int, fresh: Collection[str]) -> Taken:
        """Run the society on the step's tasks; rollouts that end after the step's time limit are left out."""
        settings, plan = self._settings, self._plan
        seed = self._bench.config.seed
        for _ in range(step - 1 - self._passed):  # A continued run draws what the steps before it had.
            next(self._tasks)
        self._passed = step
        inputs = ppo_steps.inputs_of(next(self._tasks), plan.name, step, settings.n, seed)
        rollouts = ppo_steps.sort_out(inputs, await self._episodes(inputs))
        without = await self._without(rollouts.good, self._first) if self._first is not None else {}
        samples, stale = await asyncio.to_thread(self._samples, rollouts.good, fresh, without)
        metrics = ppo_steps.figures(rollouts, samples)
        return Taken(
            samples, metrics, ppo_steps.why_skip(rollouts, samples, settings, plan.name), stale, rollouts.left_out
        )

    async def _episodes(self, inputs: Sequence[RolloutInput]) -> list[Episode]:
        """The episodes that end before the deadline."""
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

    async def _without(self, episodes: Sequence[Episode], first: Policy) -> dict[str, RolloutRecord]:
        """By rollout, the same rollout with the phase's first weights from the role's first visit on."""
        role = next(name for name in ROLES if name in self._plan.roles)
        replays = await asyncio.gather(
            *(self._bench.replay(episode, at=role, policies=(first,)) for episode in episodes)
        )
        return {episode.record.rollout_id: replay.record for episode, replay in zip(episodes, replays, strict=True)}

    def _samples(
        self, episodes: Sequence[Episode], fresh: Collection[str], without: Mapping[str, RolloutRecord]
    ) -> tuple[list[Sample], int]:
        """The roles' calls with their credit, and the number of calls left out because other weights sampled them."""
        samples: list[Sample] = []
        stale = 0
        for episode in episodes:
            calls = episode.calls(self._plan.roles)
            current = [call for call in calls if call.weights_version in fresh]
            stale += len(calls) - len(current)
            other = without.get(episode.record.rollout_id)
            credited = credit(current, episode.record, self._settings, self._bench.config.reward, without=other)
            samples += ppo_steps.samples_of(credited, episode.record.task_id, scored=self._settings.needs_log_probs())
        return samples, stale


class BranchSource:
    """Samples from `states` recorded states, `n` answers to each: a group is one state.

    Args:
        course: What the curriculum has drawn so far; it is continued in place.
    """

    def __init__(self, plan: PhasePlan, settings: PpoSettings, bench: Bench, course: Course) -> None:
        self._plan, self._settings, self._bench, self._course = plan, settings, bench, course
        how = how_valued(plan, settings.reward, settings.value, bench.config)
        self._values = Values(settings.reward, how, bench)
        self._states: Mapping[str, State] = {}

    async def open(self) -> None:
        """Collect the states; raises RunError if no rollout succeeded, or a trace cannot be read."""
        plan, settings = self._plan, self._settings
        self._states = {state.name: state for state in await collect_states(plan, settings.tasks, self._bench)}
        levels = {name: state.episode.record.level for name, state in self._states.items()}
        self._curriculum = Curriculum(
            levels, settings.curriculum, f"{self._bench.config.seed}/{plan.name}", self._course
        )
        self._bench.view.note(f"{plan.name}: {len(levels)} states of {', '.join(plan.roles)}")

    async def take(self, step: int, fresh: Collection[str]) -> Taken:
        """Ask the live weights for answers to the step's states, and value them. No other weights are asked."""
        bench, settings = self._bench, self._settings
        names = self._curriculum.draw(settings.states)
        states = [self._states[name] for name in names]
        seed, version = bench.config.seed + step, bench.versions[self._plan.slot]
        groups = await grow(bench, self._values, states, settings.n, seed=seed, version=version)
        for group in groups:
            if group.right is not None:
                self._curriculum.saw(group.state.name, group.right)
        scored = settings.needs_log_probs()
        samples = [
            ppo_steps.sample_of(
                answer.call, answer.worth.value, group.state.name, scored=scored, parts=answer.worth.parts
            )
            for group in groups
            if group.informs or settings.adv_estimator not in GROUPED
            for answer in group.answers
            if answer.call.response_ids
        ]
        metrics = {
            **group_figures(groups),
            "curriculum/level": self._course.open,
            "curriculum/repeated": sum(self._course.drawn[name] > 1 for name in names),
        }
        stale = sum(group.left_out["stale"] for group in groups)
        same = f"all answers to one state are worth the same in each of {len(groups)} states, or none has a worth"
        skip = None if samples else same
        return Taken(samples, metrics, skip, stale)


SampleSource = RolloutSource | BranchSource
"""Gives the samples of each step, from the weights that are live when it is asked. Steps come in order, each once."""
