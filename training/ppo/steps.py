"""One online step of PPO: its tasks, its usable rollouts, its samples, its figures, its line."""

import random
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from chimera.core.errors import RunError
from chimera.core.types import ResearchTask
from chimera.data.tasks import Dataset
from evaluation.records.rollouts import RolloutInput, RolloutRecord
from training.learning.episodes import Episode
from training.learning.experience import Call
from training.ppo.credit import Credited
from training.ppo.engine.advantages import GROUPED, alone
from training.ppo.engine.batch import Sample
from training.ppo.verl.settings import PpoSettings
from training.watch.summary import aligned, mean, part_means

REASONS: tuple[str, ...] = ("late", "failed", "unscored")
"""Reasons not to learn from a rollout, in the order in which they are checked."""


def draw(tasks: Sequence[ResearchTask], per_step: int, seed: str) -> Iterator[list[ResearchTask]]:
    """The tasks of step 1, 2, ... All tasks are drawn before one is repeated, and no step has a task twice.

    Args:
        tasks: At least `per_step` tasks.
        per_step: Number of tasks of a step.
    """
    shuffled = random.Random(seed)
    waiting: list[ResearchTask] = []
    while True:
        taken, waiting = waiting[:per_step], waiting[per_step:]
        if len(taken) < per_step:
            again = shuffled.sample(tasks, len(tasks))
            names = {task.id for task in taken}
            fresh = [task for task in again if task.id not in names]
            missing = per_step - len(taken)
            taken += fresh[:missing]
            waiting = fresh[missing:] + [task for task in again if task.id in names]
        yield taken


def inputs_of(tasks: Sequence[ResearchTask], phase: str, step: int, n: int, seed: int) -> list[RolloutInput]:
    """The rollouts of step `step` (from 1): each task `n` times, one round of all tasks after another."""
    return [RolloutInput.of(task, phase, (step - 1) * n + again, seed) for again in range(n) for task in tasks]


def validation_inputs(dataset: Dataset, phase: str, tasks: int, seed: int, step: int) -> list[RolloutInput]:
    """Held-out rollouts after step `step`. Runs with equal seeds use the same tasks and seeds after every step."""
    drawn = random.Random(f"{seed}/{phase}-validation").sample(dataset.validation, tasks)
    name = f"validation-{phase}"
    return [replace(RolloutInput.of(task, name, 0, seed), phase=f"{name}-{step}") for task in drawn]


@dataclass(frozen=True, slots=True)
class Sorted:
    """A step's rollouts: the `good` ones in the order of the inputs, and the number left out by reason."""

    good: list[Episode]
    left_out: dict[str, int]


def sort_out(inputs: Sequence[RolloutInput], episodes: Sequence[Episode]) -> Sorted:
    """Keep the rollouts that can be learned from.

    Args:
        episodes: The episodes that ended before the deadline.
    """
    came = {(episode.record.task_id, episode.record.repeat): episode for episode in episodes}
    good: list[Episode] = []
    left_out = dict.fromkeys(REASONS, 0)
    for input_ in inputs:
        episode = came.get((input_.task.id, input_.repeat))
        reason = _reason(episode.record if episode else None)
        if reason is not None:
            left_out[reason] += 1
        elif episode is not None:
            good.append(episode)
    return Sorted(good, left_out)


def _reason(record: RolloutRecord | None) -> str | None:
    if record is None:
        return "late"
    if record.status == "failed":
        return "failed"
    return "unscored" if record.reward is None else None


def samples_of(credited: Sequence[Credited], task_id: str, *, scored: bool = False) -> list[Sample]:
    """The calls of one rollout for the engine, each with its group (see `group_of`); see `sample_of`."""
    return [
        sample_of(item.call, item.reward, group_of(task_id, item.call), scored=scored)
        for item in credited
        if item.call.response_ids
    ]


def sample_of(
    call: Call, reward: float, group: str, *, scored: bool, parts: Mapping[str, float] | None = None
) -> Sample:
    """One call for the engine.

    Args:
        call: It has tokens; a response without any, which a server may return, is no action.
        scored: True to take along how likely the weights that sampled the tokens made them.

    Raises:
        RunError: The server did not say it.
    """
    log_probs = scores_of(call) if scored else None
    ids = call.prompt_ids, call.response_ids
    return Sample(*ids, reward, group, call.rollout_id, call, parts or {}, log_probs)


def scores_of(call: Call) -> tuple[float, ...]:
    """The log-probabilities of a call's tokens under the weights that sampled them.

    Raises:
        RunError: The server did not say them, or not for every token.
    """
    log_probs = call.log_probs
    if log_probs is None or len(log_probs) != len(call.response_ids):
        count = "no" if log_probs is None else f"{len(log_probs)}"
        raise RunError(
            f"call {call.response_id} of {call.role} in rollout {call.rollout_id} has {count} log-probabilities for "
            f"its {len(call.response_ids)} tokens, and ahead=1 needs one for each: set ahead=0, or begin a new run if "
            "it was made with ahead=0"
        )
    return log_probs


def group_of(task_id: str, call: Call) -> str:
    """Name of the group of a call: calls of the same role on the same task in the same visit.

    Only a revision's prompt holds reviews, each visit may read another study, and the expected reward differs. A common
    baseline would reward a call for the turn at which it was made (AT-GRPO, arXiv 2510.11062, groups by agent and
    turn). Prompts within a group may still differ in the input from other roles; `group/prompts_differ` measures it.
    """
    return f"{task_id}/{call.role}/{call.visit}"


def why_skip(rollouts: Sorted, samples: Sequence[Sample], config: PpoSettings, phase: str) -> str | None:
    """Why a step has too few rollouts or samples to learn from; None if it has enough."""
    total = len(rollouts.good) + sum(rollouts.left_out.values())
    if len(rollouts.good) < config.min_good_share * total:
        reasons = ", ".join(f"{count} {reason}" for reason, count in rollouts.left_out.items() if count)
        return f"only {len(rollouts.good)} of {total} rollouts are usable ({reasons}; {phase}.min_good_share)"
    if not samples:
        return "no call of its roles by the weights that are learned is in its rollouts"
    if config.adv_estimator in GROUPED and len(alone([sample.group for sample in samples])) == len(samples):
        return f"no call has a peer to be compared with, as {config.adv_estimator} needs ({phase}.n)"
    return None


def figures(rollouts: Sorted, samples: Sequence[Sample]) -> dict[str, float | None]:
    """Metrics of a step's rollouts: counts, reward with its parts, alignment, calls by role."""
    roles = Counter(sample.call.role for sample in samples if sample.call)
    records = [episode.record for episode in rollouts.good]
    return {
        "rollouts/good": len(rollouts.good),
        **{f"rollouts/{reason}": count for reason, count in rollouts.left_out.items()},
        **validation_figures(records),
        **{f"reward/{name}": value for name, value in part_means(records).items()},
        **{f"calls/{role}": count for role, count in roles.items()},
    }


def validation_figures(records: Sequence[RolloutRecord]) -> dict[str, float | None]:
    """Mean reward over rollouts with a reward, and mean alignment over all rollouts. A missing answer is a miss."""
    return {
        "reward/mean": mean([record.reward for record in records if record.reward is not None]),
        "alignment/mean": mean([float(aligned(record) or False) for record in records]),
    }


def validation_metrics(records: Sequence[RolloutRecord]) -> Mapping[str, float | None]:
    """Held-out metrics under VeRL's names."""
    return {
        **{f"val-core/{name}": value for name, value in validation_figures(records).items()},
        "val-aux/rollouts": len(records),
        "val-aux/failed": sum(record.status == "failed" for record in records),
    }


class StepClock:
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
        return {**self._stages, "timing_s/step": self._last - self._started}


def step_line(phase: str, step: int, steps: int, metrics: Mapping[str, Any]) -> str:
    def figure(name: str, text: str, form: str = ".3f") -> str:
        value = metrics.get(name)
        return "" if value is None else f", {text} {value:{form}}"

    prompts, informative = metrics.get("branches/states"), metrics.get("branches/informative")
    if prompts is None and (prompts := metrics.get("group/count")) is not None:
        informative = round(prompts * (1 - metrics["group/zero_variance"]))
    return (
        f"{phase}: step {step}/{steps}"
        + figure("branches/value", "answers worth")
        + figure("reward/mean", "reward")
        + figure("alignment/mean", "answers right", ".0%")
        + figure("rollouts/good", "good rollouts", "d")
        + ("" if prompts is None else f", {informative:.0f} of {prompts:.0f} prompts informative")
        + figure("actor/optimizer_steps", "optimiser steps", ".0f")
        + figure("actor/entropy", "entropy")
        + figure("val-core/reward/mean", "validation reward")
        + figure("timing_s/step", "seconds", ".1f")
        + f", {metrics['policy']} is live"
    )
