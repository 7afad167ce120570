"""The bandit phase: the supervisor learns from logged choices which hypothesis pays, then from choices of its own.

    learn from every choice that earlier phases logged, estimate off-policy what that is worth
    for each round:  the policy chooses in further training rollouts (with exploration)  ->  learn from these too

Everything it does follows from recorded rollouts, so a resumed phase comes to the same policy.
"""

import asyncio
import random
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from chimera.core.errors import ConfigError, RunError
from chimera.run.directory import phases_before
from chimera.run.policies import Policy
from chimera.run.seals import seal
from evaluation.records.rollouts import RolloutInput, RolloutRecord
from training.learning.experience import BanditEvent
from training.phases import PhaseResult
from training.summary import summarize

if TYPE_CHECKING:
    from chimera.config.tree import Config
    from chimera.data.tasks import Dataset
    from chimera.run.directory import Run
    from training.algorithms.bandit.policy import BanditPolicy, Example
    from training.lab.lab import Lab

LEARNER = "supervisor"


class Bandit:
    """Trains the supervisor's contextual bandit."""

    name = "bandit"
    learns = True

    def check(self, config: "Config", dataset: "Dataset") -> None:
        """Raise ConfigError if nothing could be learned from the choices, or there are too few tasks for a round."""
        bandit = config.bandit
        if bandit.exploration == 0:
            raise ConfigError(
                "bandit.exploration=0 cannot work: without choices made at random nothing is known of the hypotheses "
                "that the supervisor does not prefer; set it above 0"
            )
        if bandit.rounds and bandit.tasks > len(dataset.train):
            raise ConfigError(
                f"bandit.tasks={bandit.tasks}, but there are {len(dataset.train)} training tasks: ask for fewer"
            )

    async def run(self, lab: "Lab") -> PhaseResult:
        """Learn, choose, learn again.

        Raises:
            RunError: Too few choices are logged, or not one rollout of a round succeeded.
        """
        from training.algorithms.bandit.policy import BanditPolicy, Settings

        policy = BanditPolicy(Settings.of(lab.config.bandit, lab.config.seed))
        logged = await asyncio.to_thread(policy.examples, _events(await self._earlier(lab)))
        if len(logged) < lab.config.bandit.min_events:
            raise RunError(
                f"{len(logged)} scored choices of the supervisor are logged, bandit.min_events is "
                f"{lab.config.bandit.min_events}: run the gather phase with more gather.tasks, or lower it"
            )
        figures = await self._learn(lab, policy, logged, logged, 0)
        records: list[RolloutRecord] = []
        for number in range(lab.config.bandit.rounds):
            folder = f"models/{LEARNER}/{self.name}-{number}"
            await asyncio.to_thread(_save, policy, lab.run, folder)
            await lab.put_live(Policy(LEARNER, f"{LEARNER}@{self.name}-{number}", folder))
            found = await self._round(lab, number)
            records += found
            examples = await asyncio.to_thread(policy.examples, _events(found))
            logged = [*logged, *examples]
            figures = await self._learn(lab, policy, examples, logged, number + 1)
        if records:
            figures = {**summarize(records), **figures}
            lab.metrics.protocols(self.name, records)
        folder = f"models/{LEARNER}/{self.name}"
        await asyncio.to_thread(_save, policy, lab.run, folder)
        return PhaseResult(figures, Policy(LEARNER, f"{LEARNER}@{self.name}", folder))

    async def _earlier(self, lab: "Lab") -> list[RolloutRecord]:
        """Rollouts of the phases that came before this one's first start, in an order that does not depend on which
        ended first."""
        earlier = phases_before(lab.run.events(), self.name)
        records = [record for record in await lab.gathered() if record.phase != self.name]
        return sorted((one for one in records if earlier is None or one.phase in earlier), key=_place)

    async def _round(self, lab: "Lab", number: int) -> list[RolloutRecord]:
        """Rollouts in which the live policy chooses, in an order that does not depend on which ended first."""
        inputs = draw_tasks(lab.dataset, lab.config, number)
        records: list[RolloutRecord] = []
        with lab.view.phase(f"{self.name}, round {number + 1}", len(inputs), lab.policy_versions):
            async for record in lab.rollouts(inputs):
                records.append(record)
                lab.view.add(record)
        if all(record.status == "failed" for record in records):
            raise RunError(f"all {len(records)} rollouts failed; the first: {records[0].error}")
        return sorted(records, key=_place)

    async def _learn(
        self, lab: "Lab", policy: "BanditPolicy", new: Sequence["Example"], all_: Sequence["Example"], step: int
    ) -> dict[str, Any]:
        """Learn from `new` and tell what choosing by all logged choices is worth."""
        from training.algorithms.bandit.value import estimate

        await asyncio.to_thread(policy.learn, new)
        value = await asyncio.to_thread(estimate, policy.settings, all_)
        figures = {"choices": policy.events, **value}
        lab.metrics.log(self.name, step, figures)
        lab.view.note(_sentence(figures))
        return figures


def draw_tasks(dataset: "Dataset", config: "Config", number: int) -> list[RolloutInput]:
    """The rollouts of round `number` (from 0): tasks drawn without replacement, the same for the same seed."""
    drawn = random.Random(f"{config.seed}/bandit/{number}").sample(dataset.train, config.bandit.tasks)
    return [RolloutInput.of(task, Bandit.name, number, config.seed) for task in drawn]


def _save(policy: "BanditPolicy", run: "Run", folder: str) -> None:
    """Write the policy, and its hashes into the ledger."""
    policy.save(run.path / folder)
    seal(run, folder)


def _events(records: Iterable[RolloutRecord]) -> list[BanditEvent]:
    """The choices of `records`, in their order; rollouts without one are left out."""
    return [event for record in records if (event := BanditEvent.of(record)) is not None]


def _place(record: RolloutRecord) -> tuple[str, int, str]:
    return record.phase, record.repeat, record.task_id


def _sentence(figures: Mapping[str, Any]) -> str:
    learned = f"bandit: learned from {figures['choices']} choices"
    if figures.get("gain") is None:
        return f"{learned}; the log cannot tell what that is worth"
    return (
        f"{learned}; estimated gain over the supervisor's own choice {figures['gain']:+z.3f} "
        f"({figures['gain_low']:+z.3f} to {figures['gain_high']:+z.3f}), effective sample size {figures['ess']:.0f}"
    )
