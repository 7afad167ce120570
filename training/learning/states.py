"""States to learn from: recorded prompts of roles, to which `Bench.branch` gives further answers.

And the rollouts in which they are recorded, where a phase makes them itself.
"""

import asyncio
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agents.findings import Findings, share_right, vote, weighed
from agents.roles import REFINER
from agents.schemas import Answer
from agents.visit.sources import sources_seen
from chimera.config.tree import Config
from chimera.core.errors import ConfigError, RunError
from chimera.core.types import Label, ResearchTask
from chimera.core.weighing import Vote, weigh
from chimera.data.tasks import Dataset
from chimera.rubric.grader import GRADERS
from evaluation.records.rollouts import RolloutInput, RolloutRecord
from training.learning.base import Bench, PhasePlan
from training.learning.episodes import Episode
from training.learning.experience import Call, Conversation

Key = tuple[str, str, str, int, int]
"""Role, phase, task, repeat and visit: equal in runs with equal seeds, where ids differ."""


@dataclass(frozen=True, slots=True)
class State:
    """A role's first visit in one rollout, or any that hands over findings, which it answered at once: the prompt of
    that answer is the state.

    Attributes:
        call: The call that gave the answer.
        label: The right answer for a role that has read what this one had (`ResearchTask.label_after`), or that was
            handed these findings.
        votes: What is right of each study that it has read, where that is known.
    """

    episode: Episode
    call: Call
    conversation: Conversation
    label: Label
    votes: tuple[Vote, ...] = ()

    def right(self, answer: Answer) -> float:
        """1 if an answer says what is right, else 0; of findings the share that is right."""
        if isinstance(answer, Findings) and self.votes:
            return share_right(answer, self.votes)
        return float(answer.stance == self.label)

    @property
    def key(self) -> Key:
        """Sorts states in an order that does not depend on which rollout ended first."""
        record = self.episode.record
        return self.call.role, record.phase, record.task_id, record.repeat, self.call.visit

    @property
    def name(self) -> str:
        """The key as one word, for groups and files."""
        return "/".join(map(str, self.key))


async def all_of(bench: Bench, title: str, inputs: Sequence[RolloutInput]) -> list[Episode]:
    """Run the society on `inputs`, shown as `title` in the live view. Returns the episodes in the order of their ends.

    Raises:
        RunError: No rollout succeeded.
    """
    episodes: list[Episode] = []
    with bench.view.phase(title, len(inputs), bench.versions):
        async for episode in bench.rollouts(inputs):
            episodes.append(episode.on_disk())
            bench.view.add(episode.record)
    if all(episode.record.status == "failed" for episode in episodes):
        raise RunError(f"all {len(episodes)} rollouts failed; the first: {episodes[0].record.error}")
    return episodes


def draw_inputs(phase: str, tasks: int, dataset: Dataset, seed: int, repeats: int = 1) -> list[RolloutInput]:
    """Rollouts of `tasks` training tasks, one round of all tasks after another.

    Tasks are drawn without replacement. Equal seeds draw equal tasks.

    Raises:
        ConfigError: There are too few training tasks.
    """
    if tasks > len(dataset.train):
        raise ConfigError(f"{phase}.tasks={tasks}, but there are {len(dataset.train)} training tasks: ask for fewer")
    drawn = random.Random(f"{seed}/{phase}").sample(dataset.train, tasks)
    return [RolloutInput.of(task, phase, repeat, seed) for repeat in range(repeats) for task in drawn]


def check_tasks(plan: PhasePlan, tasks: int, dataset: Dataset, seed: int) -> None:
    """Raise ConfigError if there are fewer training tasks than the phase is to answer first."""
    if tasks:
        draw_inputs(plan.name, tasks, dataset, seed)


def check_varied(plan: PhasePlan, config: Config, why: str) -> None:
    """Raise ConfigError if the roles' model gives one answer only; `why` says what the phase does with several."""
    if config.models[plan.slot].temperature == 0:
        raise ConfigError(
            f"models.{plan.slot}.temperature=0 always gives the same answer, and {plan.name} {why}: set it to 1"
        )


def check_teacher(plan: PhasePlan, key: str, slot: str, schemas: Iterable[type[Answer]], config: Config) -> None:
    """Raise ConfigError if the phase's `key` names a slot that is a rubric, which gives no answers of these schemas."""
    strange = [schema.__name__ for schema in schemas if schema.__name__ not in GRADERS]
    if strange and config.models[slot].kind == "rubric":
        raise ConfigError(f"{plan.name}.{key}={slot} is a rubric, which gives no {strange[0]}: name another slot")


async def collect_states(plan: PhasePlan, tasks: int, bench: Bench) -> list[State]:
    """The states of the phase's roles, in the order of their keys.

    Args:
        tasks: Training tasks that the society answers first; 0 takes the rollouts of earlier phases.

    Raises:
        RunError: No rollout succeeded, or a trace cannot be read.
    """
    if tasks:
        episodes = await all_of(bench, plan.name, draw_inputs(plan.name, tasks, bench.dataset, bench.config.seed))
    else:
        episodes = await bench.episodes()
    tasks_by_id = {task.id: task for task in bench.dataset.tasks}
    states: list[State] = []
    for episode in episodes:
        task = tasks_by_id.get(episode.record.task_id)
        # One thread call per rollout: the event loop stays free, and an interrupted run waits for at most one trace.
        states += await asyncio.to_thread(states_of, episode, plan.roles, task)
    return sorted(states, key=lambda state: state.key)


def states_of(episode: Episode, roles: Sequence[str], task: ResearchTask | None = None) -> list[State]:
    """The states of one rollout; none without a reward.

    Args:
        task: The rollout's task, if its evidence has parts; otherwise the record's label is right for every role.

    Raises:
        RunError: Its trace cannot be read, or lacks a call.
    """
    record = episode.record
    if record.reward is None:
        return []
    held = episode.in_memory()
    answered = {(call.role, call.visit): call for call in held.calls(roles) if call.outcome}
    visits = [visit for visit in held.conversations(roles) if visit.visit == 1 or "findings" in visit.answer]
    # What a second model answered (`society.fallback`) is nobody's state.
    answers = [(answered.get((visit.role, visit.visit)), visit) for visit in visits if visit.parsed]
    asked_again = [(call, visit) for call, visit in answers if call is not None]
    return [State(episode.on_disk(), call, visit, *_key(call, record, task)) for call, visit in asked_again]


def _key(call: Call, record: RolloutRecord, task: ResearchTask | None) -> tuple[Label, tuple[Vote, ...]]:
    """The right answer for a role after what it has read, and what is right of each study among that.

    The refiner has the findings that were handed over, right or wrong: what they say together is right for it, since
    the task's label need not follow from them. Any other role that reads no studies is asked for the task's label.
    """
    if task is None or call.asked is None:
        return record.label, ()
    read = {source["id"] for source in sources_seen({call.role: call.asked.messages})}
    if not read:
        findings = findings_in(record) if call.role == REFINER else []
        return weigh(map(vote, findings)) if findings else task.label, ()
    return task.label_after(read), tuple(vote for vote in task.votes if vote.study in read)


def findings_in(record: RolloutRecord) -> list[Mapping[str, Any]]:
    """The findings that a rollout's refiner weighs; none where hypotheses are not combined from them."""
    hypotheses = record.outputs.get("initial_hypotheses", ())
    return weighed(hypothesis for hypothesis in hypotheses if "findings" in hypothesis)
