"""The bandit phase: the supervisor learns to choose, first from logged choices, then from its own.

It chooses among hypotheses; where findings are combined, whether juniors search once more.

    learn from all choices that earlier phases logged (with the weights that are live, where findings are combined);
    estimate the policy's value off-policy
    for each round:  the policy chooses in new training rollouts (with exploration)  ->  learn from these choices

The policy depends only on recorded rollouts, so a resumed phase learns the same policy.
"""

import asyncio
import random
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field

from chimera.config.loader import When
from chimera.config.pipeline import PhaseSettings
from chimera.core.errors import ConfigError, RunError
from chimera.run.policies import SELECTION, Part, Policy
from chimera.run.seals import seal
from evaluation.records.rollouts import RolloutInput
from training.learning.base import Bench, Learned, PhasePlan, live_graph
from training.learning.episodes import Episode
from training.learning.states import all_of, check_tasks
from training.watch.summary import summarize

if TYPE_CHECKING:
    from agents.policies.bandit import BanditPolicy, LoggedExample
    from agents.policies.events import BanditEvent
    from chimera.config.tree import Config
    from chimera.data.tasks import Dataset


class BanditSettings(PhaseSettings):
    """The supervisor's contextual bandit: which junior's hypothesis goes on, or whether juniors search once more."""

    learns_weights: ClassVar[bool] = False

    policy: Literal["thompson", "logistic"] = Field(
        default="thompson", description="linear Thompson sampling, or logistic regression learned by SGD"
    )
    update: Literal["direct", "ips", "dr", "hindsight"] = Field(
        default="hindsight",
        description="learn rewards as logged, weighted by inverse propensity, or doubly robust; hindsight: also what "
        "the hypotheses that were not chosen would have earned by the label",
    )
    lr: Annotated[float, When.equal("policy", "logistic")] = Field(
        default=0.05, gt=0, le=10, description="logistic: learning rate"
    )
    epochs: Annotated[int, When.equal("policy", "logistic")] = Field(
        default=20, ge=1, le=10_000, description="logistic: passes over the log"
    )
    max_weight: Annotated[float, When.equal("update", "ips", "dr")] = Field(
        default=10.0, ge=1, le=1e9, description="largest importance weight; larger ones are cut"
    )
    rounds: int = Field(
        default=1, ge=0, le=10_000, description="rounds of further rollouts that the policy itself chooses in"
    )
    tasks: Annotated[int, When.set("rounds")] = Field(
        default=40, ge=1, le=1_000_000, description="training tasks of one such round"
    )

    token_price: float = Field(
        default=0.0, ge=0, le=1000, description="reward that 1,000 tokens of a rollout cost; 0: tokens cost nothing"
    )

    def most(self) -> str:
        return f"{self.rounds * self.tasks:,} rollouts"

    def needs_rollouts(self) -> bool:
        return True


class Bandit:
    """Trains the contextual bandit of the role that chooses among hypotheses."""

    Settings = BanditSettings
    part: ClassVar[Part | None] = "choice"

    def check(self, plan: PhasePlan, settings: BanditSettings, config: "Config", dataset: "Dataset") -> None:
        graph = config.society.graph
        if graph.choose == "combine" and graph.searches == 1:
            raise ConfigError(
                f"society.graph.searches=1 leaves nothing to {plan.name}: where findings are combined it learns "
                f"whether juniors search once more; set it to 2 or more, or leave {plan.name} out"
            )
        if graph.choose == "combine" and settings.update == "hindsight":
            raise ConfigError(
                f"{plan.name}.update=hindsight cannot work with society.graph.choose=combine: nothing tells what "
                f"another round of searches would have earned; set {plan.name}.update to direct"
            )
        if settings.update == "hindsight" and config.reward.alignment == 0:
            raise ConfigError(
                f"{plan.name}.update=hindsight cannot work with reward.alignment=0: what other hypotheses would have "
                f"earned is known by their alignment alone; set {plan.name}.update to direct"
            )
        if config.rollouts.exploration == 0 and settings.update != "hindsight":
            raise ConfigError(
                f"rollouts.exploration=0 cannot work with {plan.name}: without choices made at random nothing is known "
                "of what is not preferred; set it above 0"
            )
        if settings.rounds:
            check_tasks(plan, settings.tasks, dataset, config.seed)

    async def learn(self, plan: PhasePlan, settings: BanditSettings, bench: Bench) -> Learned:
        """Learn from logged choices, then choose and learn in rounds.

        Raises:
            RunError: No choice is logged, or no rollout of a round succeeded.
        """
        return await _Rounds(plan, settings, bench).run()


class _Rounds:
    """The phase in one process: it learns from logged choices, then the policy chooses in rounds."""

    def __init__(self, plan: PhasePlan, settings: BanditSettings, bench: Bench) -> None:
        self._plan = plan
        self._settings = settings
        self._bench = bench

    async def run(self) -> Learned:
        from agents.policies.bandit import BanditPolicy, Settings

        plan, bench = self._plan, self._bench
        combines = live_graph(bench).choose == "combine"
        policy = BanditPolicy(Settings.of(self._settings, bench.config.seed, bench.dataset.labels, combines=combines))
        # The order does not depend on which rollout ended first.
        earlier = sorted(await self._bench.episodes(), key=_place)
        if combines:
            earlier = _by_live_weights(earlier, bench.versions)
        logged = await asyncio.to_thread(policy.examples, _choices(earlier, self._settings.token_price))
        if not logged and not (combines and self._settings.rounds):
            raise RunError(f"{plan.name} has no scored choice to learn from: run a gather phase with more tasks")
        figures = await self._learn(policy, logged, logged, 0) if logged else {}
        episodes: list[Episode] = []
        for number in range(self._settings.rounds):
            await self._bench.publish(await asyncio.to_thread(self._save, policy, f"{plan.name}-{number}"))
            round_episodes = await self._round(number)
            episodes += round_episodes
            examples = await asyncio.to_thread(policy.examples, _choices(round_episodes, self._settings.token_price))
            logged = [*logged, *examples]
            figures = await self._learn(policy, examples, logged, number + 1)
        if episodes:
            records = [episode.record for episode in episodes]
            figures = {**summarize(records), **figures}
            bench.metrics.protocols(plan.name, records)
        return Learned(figures, await asyncio.to_thread(self._save, policy, plan.name))

    async def _round(self, number: int) -> list[Episode]:
        """Rollouts in which the live policy chooses, in an order that does not depend on which ended first."""
        plan, bench = self._plan, self._bench
        inputs = draw_tasks(plan.name, self._settings, bench.dataset, bench.config.seed, number)
        return sorted(await all_of(bench, f"{plan.name}, round {number + 1}", inputs), key=_place)

    async def _learn(
        self, policy: "BanditPolicy", new: Sequence["LoggedExample"], all_: Sequence["LoggedExample"], step: int
    ) -> dict[str, Any]:
        """Learn from `new` and log the estimated value of a policy learned from all choices."""
        from training.algorithms.bandit_value import estimate

        await asyncio.to_thread(policy.learn, new)
        value = await asyncio.to_thread(estimate, policy.settings, all_)
        figures = {"choices": policy.events, **value}
        self._bench.metrics.log(self._plan.name, step, figures)
        self._bench.view.note(_sentence(self._plan.name, figures))
        return figures

    def _save(self, policy: "BanditPolicy", name: str) -> Policy:
        """Write the policy as `name` and record its hashes in the ledger."""
        (role,) = self._plan.roles
        saved_policy = Policy.made("choice", role, name)
        policy.save(self._bench.run.path / saved_policy.folder)
        seal(self._bench.run, saved_policy.folder)
        return saved_policy


def draw_tasks(phase: str, settings: BanditSettings, dataset: "Dataset", seed: int, number: int) -> list[RolloutInput]:
    """The rollouts of round `number` (from 0). Tasks are drawn without replacement; equal seeds draw equal tasks."""
    drawn = random.Random(f"{seed}/{phase}/{number}").sample(dataset.train, settings.tasks)
    return [RolloutInput.of(task, phase, number, seed) for task in drawn]


def _by_live_weights(episodes: Sequence[Episode], versions: Mapping[str, str]) -> list[Episode]:
    """The episodes in which all but who chooses worked with what is live (`versions`).

    What one more search is worth depends on who reads what it finds and weighs it. A society whose refiner could not
    weigh yet teaches that searching is worth nothing.
    """
    live = {**versions, SELECTION: ""}
    return [episode for episode in episodes if {**episode.record.policy_versions, SELECTION: ""} == live]


def _place(episode: Episode) -> tuple[str, int, str]:
    return episode.record.phase, episode.record.repeat, episode.record.task_id


def _choices(episodes: Sequence[Episode], token_price: float) -> "list[BanditEvent]":
    """The choices in `episodes`, in order, with the reward that is left when the rollout's tokens are paid."""
    return [
        choice.less(token_price * sum(side for used in episode.record.tokens.values() for side in used.values()) / 1000)
        for episode in episodes
        for choice in episode.choices()
    ]


def _sentence(phase: str, figures: Mapping[str, Any]) -> str:
    learned = f"{phase}: learned from {figures['choices']} choices"
    if figures.get("gain") is None:
        return f"{learned}; the log cannot tell what that is worth"
    return (
        f"{learned}; estimated gain over the choice without it {figures['gain']:+z.3f} "
        f"({figures['gain_low']:+z.3f} to {figures['gain_high']:+z.3f}), effective sample size {figures['ess']:.0f}"
    )
