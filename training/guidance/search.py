"""Tries candidates for the society on training tasks: the same tasks and seeds for each, recorded, within a budget."""

import asyncio
import hashlib
import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, ClassVar, Generic, TypeVar

from pydantic import Field

from agents.context import Guided
from agents.policies import guidance
from agents.policies.society import of_versions
from chimera.config.pipeline import PhaseSettings
from chimera.config.sections.society import Guidance
from chimera.config.tree import Config
from chimera.core.errors import ConfigError
from chimera.core.files import replace_file
from chimera.core.types import ResearchTask
from chimera.data.tasks import Dataset
from chimera.run.policies import SOCIETY, Part, Policy
from chimera.run.seals import seal
from evaluation.records.rollouts import RolloutInput, RolloutRecord
from training.guidance.budget import Budget, Purse
from training.learning.base import Bench, Learned, PhasePlan
from training.watch.summary import aligned

Scores = tuple[float, float]
"""Share of right answers, and what decides between candidates that are right equally often."""
Candidate = TypeVar("Candidate")


class SearchSettings(PhaseSettings):
    """A search over what roles are told."""

    learns_weights: ClassVar[bool] = False

    tasks: int = Field(
        default=24, ge=3, le=1_000_000, description="training tasks that candidates are tried on: its search share"
    )
    budget: Budget = Budget()

    def needs_rollouts(self) -> bool:
        return True

    def most(self) -> str:
        return self.budget.words()


def search_share(phase: str, tasks: int, dataset: Dataset, seed: int) -> list[ResearchTask]:
    """The training tasks that a phase tries its candidates on; nothing else in it learns from them.

    Raises:
        ConfigError: There are too few training tasks to leave as many to learn from.
    """
    if 2 * tasks > len(dataset.train):
        raise ConfigError(
            f"{phase}.tasks={tasks}, but there are {len(dataset.train)} training tasks, and as many are needed to "
            f"learn from: ask for at most {len(dataset.train) // 2}"
        )
    return random.Random(f"{seed}/{phase}/search").sample(dataset.train, tasks)


def check_search(plan: PhasePlan, settings: SearchSettings, config: Config, dataset: Dataset) -> None:
    """Raise ConfigError if the phase cannot be run like this."""
    search_share(plan.name, settings.tasks, dataset, config.seed)
    for role in plan.roles:
        if why := config.deaf(role):
            raise ConfigError(
                f"pipeline.{plan.name}.roles names {role}, which would not heed what it learns to be told: {why}; "
                "leave it out, or let another model play it"
            )
    paid = {name for name, model in config.served().items() if model.kind == "endpoint"}
    if settings.budget.usd is not None and (unpriced := sorted(paid - set(config.evaluation.prices))):
        raise ConfigError(
            f"{plan.name}.budget.usd={settings.budget.usd:g} cannot hold, because evaluation.prices says nothing of "
            f"{', '.join(unpriced)}: give each [USD per million prompt tokens, USD per million completion tokens], or "
            "[0, 0]"
        )


class Search(Generic[Candidate]):
    """One phase's search. What a run has recorded is not tried again, and counts as spent.

    Args:
        part: What the candidates replace.
        file: Name of the file that holds one.
        dump: Gives that file's text.
        start: What is live when the search begins.
        earlier: The run's rollouts so far.

    Attributes:
        purse: What was spent.
        best: The best candidate so far, of those that were tried on all tasks of the search share.
    """

    def __init__(
        self,
        plan: PhasePlan,
        settings: SearchSettings,
        bench: Bench,
        earlier: Sequence[RolloutRecord],
        *,
        part: Part,
        file: str,
        dump: Callable[[Candidate], str],
        start: Candidate,
    ) -> None:
        config = bench.config
        self.plan = plan
        self.tasks = search_share(plan.name, settings.tasks, bench.dataset, config.seed)
        self.start = self.best = start
        self.purse = Purse(settings.budget, config.evaluation.prices, config.judge_of, earlier)
        self._part: Part = part
        self._file = file
        self._dump = dump
        self._bench = bench
        self._limits = settings.budget.words()
        self._scores: dict[str, Scores] = {}
        self._played: dict[str, dict[str, RolloutRecord]] = {}

    def score(self, records: Sequence[RolloutRecord]) -> Scores:
        """What makes a candidate better: the share of right answers, then the mean reward."""
        return right_share(records), sum(record.reward or 0.0 for record in records) / len(records)

    async def play(self, candidate: Candidate, tasks: Sequence[ResearchTask]) -> list[RolloutRecord]:
        """Rollouts of `tasks` with a candidate in place of what is live, in the order of the tasks.

        Raises:
            BudgetSpentError: They are not all affordable; those that were are recorded.
            RunError: No further rollout could succeed.
        """
        bench, plan = self._bench, self.plan
        name = self._digest(candidate)
        policy = Policy.made(self._part, SOCIETY, f"{plan.name}-{name}")
        records = self._played.setdefault(name, {})
        new = [task for task in tasks if task.id not in records]
        inputs = [RolloutInput.of(task, plan.name, 0, bench.config.seed) for task in new]
        self.purse.check(len(inputs))
        if inputs:
            await asyncio.to_thread(self._write, candidate, policy)
        while inputs:
            count = self.purse.affordable(len(inputs))
            wave, inputs = inputs[:count], inputs[count:]
            async with aclosing(bench.rollouts(wave, mode="val", instead=[policy])) as episodes:
                async for episode in episodes:
                    records[episode.record.task_id] = episode.record
                    self.purse.pay(episode.record)
        return [records[task.id] for task in tasks]

    async def trial(self, candidate: Candidate) -> list[RolloutRecord]:
        """Rollouts of the whole search share; `best` is then the better of this candidate and those before."""
        records = await self.play(candidate, self.tasks)
        name, score = self._digest(candidate), self.score(records)
        if name in self._scores:
            return records
        self._scores[name] = score
        if score > self._scores.get(self._digest(self.best), (-1.0, 0.0)):
            self.best = candidate
        reward, right = sum(record.reward or 0.0 for record in records) / len(records), right_share(records)
        place, spent = f"{self.plan.name}: candidate {len(self._scores)}", self.purse.spent
        self._bench.view.note(f"{place} is right on {right:.0%} of {len(records)} tasks, reward {reward:.3f}")
        shown = {"right": right, "reward": reward, "best": self._scores[self._digest(self.best)][0]}
        self._bench.metrics.log(self.plan.name, len(self._scores), {**shown, **spent})
        return records

    async def ask(self, slot: str, messages: Sequence[Mapping[str, Any]], **options: Any) -> Any:
        """Ask a slot's model beside rollouts, if the budget allows another rollout; see `Bench.ask`.

        Raises:
            BudgetSpentError: It does not.
        """
        self.purse.affordable(1)
        completion = await self._bench.ask(slot, messages, **options)
        self.purse.questions(self._bench.spent())
        return completion

    def learned(self, figures: Mapping[str, Any]) -> Learned:
        """What the phase came to: the best candidate, or nothing if none is better than what it began with."""
        first, last = (self._scores.get(self._digest(candidate)) for candidate in (self.start, self.best))
        spent, ended = self.purse.spent, self.purse.empty
        figures = {**figures, "candidates": len(self._scores), **spent, "budget_spent": ended}
        if first is not None and last is not None:
            figures |= {"right_before": first[0], "right_best": last[0]}
        if ended:
            used = f"{spent['rollouts']:,} rollouts, {spent['tokens']:,} tokens, {spent['usd']:.4g} US dollars"
            self._bench.view.note(f"{self.plan.name}: its budget ({self._limits}) ends it after {used}")
        if last is None or (first is not None and last <= first) or self.best == self.start:
            self._bench.view.note(f"{self.plan.name}: no candidate is better than what is live")
            return Learned(figures)
        policy = Policy.made(self._part, SOCIETY, self.plan.name)
        self._write(self.best, policy)
        return Learned(figures, policy)

    def _digest(self, candidate: Candidate) -> str:
        return hashlib.sha256(self._dump(candidate).encode(errors="backslashreplace")).hexdigest()[:8]

    def _write(self, candidate: Candidate, policy: Policy) -> None:
        """Write a candidate as the files of `policy`, and record their hashes in the ledger."""
        file = self._bench.run.path / policy.folder / self._file
        file.parent.mkdir(parents=True, exist_ok=True)
        replace_file(file, self._dump(candidate))
        seal(self._bench.run, policy.folder)


class GuidanceSearch(Search[Guided]):
    """A search over what roles are told; candidates replace fields of what was learned before."""

    def __init__(
        self, plan: PhasePlan, settings: SearchSettings, bench: Bench, earlier: Sequence[RolloutRecord]
    ) -> None:
        start = of_versions(bench.run.path, bench.versions).guidance
        super().__init__(
            plan, settings, bench, earlier, part="guidance", file=guidance.FILE, dump=guidance.dump, start=start
        )

    def told(self, role: str) -> Guidance:
        """What `role` is told when the search begins: by the configuration, and in its place what was learned."""
        by_configuration = self._bench.config.society.told(role)
        return by_configuration.model_copy(update=self.start[role].given()) if role in self.start else by_configuration

    def changed(self, candidate: Guided, role: str, **fields: Any) -> Guided:
        """`candidate` with other `fields` for `role`."""
        return {**candidate, role: candidate.get(role, Guidance()).model_copy(update=fields)}


def right_share(records: Sequence[RolloutRecord]) -> float:
    """The share of right answers; what failed is wrong."""
    return sum(bool(aligned(record)) for record in records) / len(records)
