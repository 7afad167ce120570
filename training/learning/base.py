"""The seam: what an algorithm is, what it is told, what it may touch, and what it gives back.

A phase of a run is one entry of `pipeline`: an algorithm, the roles that it trains, its settings. An algorithm gets a
`Bench` and returns what it `Learned`. Whether that goes live is the gate's business (`training.gate`).
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, TypeVar

from agents.policies.society import of_versions
from chimera.config.pipeline import PhaseSettings
from chimera.run.policies import Part, Policy

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from chimera.config.sections.graph import GraphConfig
    from chimera.config.tree import Config
    from chimera.data.tasks import Dataset
    from chimera.run.directory import Run
    from chimera.serving.client import Completion
    from evaluation.records.rollouts import RolloutInput
    from training.learning.episodes import Episode
    from training.learning.examples import FirstWeights, Render, TrainingData
    from training.learning.experience import Call
    from training.learning.fine_tuning import TuneSettings
    from training.watch.metrics import Metrics
    from training.watch.view import View


@dataclass(frozen=True, slots=True)
class PhasePlan:
    """One entry of `pipeline`, resolved.

    Attributes:
        name: Of ledger events, files, metrics and the stage; unique, so that an algorithm may occur twice.
        roles: The roles that it trains, in the order of the society.
        slots: The slots that those roles use, each once.
    """

    name: str
    algorithm: str
    roles: tuple[str, ...] = ()
    slots: tuple[str, ...] = ()

    @property
    def slot(self) -> str:
        """The one slot of a phase that learns weights; `training.phases` has refused others."""
        (slot,) = self.slots
        return slot


@dataclass(frozen=True, slots=True)
class Learned:
    """What a phase came to.

    Attributes:
        policy: What it learned; None when it learned nothing. It goes live if the gate lets it.
    """

    figures: Mapping[str, Any] = field(default_factory=dict)
    policy: Policy | None = None


class Bench(Protocol):
    """The lab as one phase sees it.

    Attributes:
        dataset: The tasks; learn from `dataset.train` only.
    """

    config: "Config"
    dataset: "Dataset"
    run: "Run"
    view: "View"
    metrics: "Metrics"

    @property
    def versions(self) -> Mapping[str, str]:
        """What is live: the version of each slot's weights, or the endpoint's model, and who chooses."""
        ...

    def weights(self, slot: str) -> Path:
        """The folder of the weights that are live in an embedded slot."""
        ...

    def rollouts(
        self,
        inputs: "Sequence[RolloutInput]",
        *,
        mode: Literal["train", "val"] = "train",
        instead: Sequence[Policy] = (),
    ) -> "AsyncGenerator[Episode]":
        """Run the society on `inputs`; each episode is recorded when it is yielded, failed ones too.

        What is recorded already comes first and is not run again. Close the generator when you stop early.

        Args:
            mode: "val" explores nothing.
            instead: Candidates that work in these rollouts only. What is live does not change. Their versions are in
                the records, which stand under a phase of their own: `episodes` does not give them.

        Raises:
            RunError: No further rollout could succeed.
            ModelError: A candidate's weights do not fit the model that they are to replace.
        """
        ...

    async def episodes(self) -> "list[Episode]":
        """All rollouts on training tasks that were made before this phase began for the first time.

        They are in the order of the phases, and within a phase in an order that may differ from run to run.
        """
        ...

    async def publish(self, policy: Policy) -> None:
        """Put `policy` live, for rollouts that are asked for from now on.

        Raises:
            ModelError: Its weights do not fit the model that they replace; what was live stays live.
        """
        ...

    def computing(self) -> "AbstractAsyncContextManager[None]":
        """Enter it around an update: vLLM servers of `models.X.sleep` give their GPUs' memory away meanwhile.

        They answer nothing meanwhile. Without such servers it does nothing.

        Raises:
            ModelError: A server did not go to sleep, or did not wake up.
        """
        ...

    async def branch(self, call: "Call", k: int, *, seed: int) -> "list[Call]":
        """`k` answers to the prompt of a recorded call, from its exact tokens, by the weights that are live.

        They cost `k` calls and not `k` rollouts. One that asks for tools ends there: no tool is run. They have no
        reward; `Call.answer` is what they say. What the run has recorded is not asked again.

        Raises:
            RunError: The server read other tokens than the recorded prompt's, or gives no token ids.
            ModelError: The model's server failed.
        """
        ...

    async def replay(
        self, episode: "Episode", *, at: str, instead: Mapping[str, Any] | None = None, policies: Sequence[Policy] = ()
    ) -> "Episode":
        """Rebuild the state before the role `at` first worked, replace fields of it, and run the rest of the graph.

        The rebuilt part costs nothing. The rest is asked of the live weights with the seeds of the rollout that is
        replayed (with nothing replaced the same weights are asked the same), or of candidates with others. Roles that
        worked at the same time as `at` are not asked again. The reward is that of the whole task. What the run has
        recorded is not made again.

        Args:
            episode: A rollout of this run that succeeded.
            at: The role that works first.
            instead: Fields of the state (`agents.state.ResearchState`) with other values.
            policies: Candidates that work in this replay only.

        Raises:
            RunError: The episode does not hold that state.
            ModelError: A candidate's weights do not fit the model that they are to replace.
        """
        ...

    async def ask(self, slot: str, messages: Sequence[Mapping[str, Any]], **options: Any) -> "Completion":
        """Ask a slot's model, as a teacher or a judge: recorded, and counted as tokens and cost.

        What the run has recorded is not asked again: for another answer to the same question give another seed.

        Args:
            slot: Whose model; one that a role uses, or that the phase's settings name (`PhaseSettings.asks`).
            options: `tools`, `response_format` and `seed`, as in `chimera.serving.client.Model`; `temperature` in place
                of the slot's.

        Raises:
            RunError: The slot is not served.
            ModelError: The model's server failed.
        """
        ...

    async def fine_tune(
        self,
        plan: PhasePlan,
        settings: "TuneSettings",
        choose: "Callable[[Render], Awaitable[TrainingData]]",
        *,
        name: str | None = None,
        start: "FirstWeights | None" = None,
        beta: float | None = None,
        imitation: float = 0.0,
    ) -> Learned:
        """Fine-tune weights of the phase's slot in a process of its own, on what `choose` gives.

        The process starts while `choose` works. A model that was finished from the same data before is kept.

        Args:
            choose: Is given what renders a conversation for the slot's model; see `training.learning.examples`.
            name: Of the policy, the log and the metrics, such as "star-2"; the phase's name if it is None.
            start: The weights to start from; the live ones if it is None.
            beta: None to imitate; a number to prefer one answer of each pair to the other (DPO), which is the weight of
                the distance from the first weights. A line then has `prompt_ids`, `chosen_ids` and `rejected_ids`.
            imitation: With `beta`, the weight of imitating the preferred answers as well.

        Raises:
            RunError: `choose` raised it, or the process ended early.
        """
        ...

    def spent(self) -> Mapping[str, float]:
        """What this phase's branches, replays and questions came to, for its figures.

        Requests, answers, tokens, and US dollars for slots that have a price (`evaluation.prices`).
        """
        ...


def live_graph(bench: Bench) -> "GraphConfig":
    """The society's graph that is live: a learned one, or that of the configuration."""
    return of_versions(bench.run.path, bench.versions).graph or bench.config.society.graph


S_contra = TypeVar("S_contra", bound=PhaseSettings, contravariant=True)


class Algorithm(Protocol[S_contra]):
    """One way to learn, or to gather what others learn from. Its class is made without arguments, once for a phase.

    Attributes:
        Settings: Its settings: a subclass of `PhaseSettings`, whose keys are those of the entry in `pipeline`.
        part: What it learns; None when it learns nothing, so that the gate has nothing to decide.
    """

    Settings: ClassVar[type[PhaseSettings]]
    part: ClassVar[Part | None]

    def check(self, plan: PhasePlan, settings: S_contra, config: "Config", dataset: "Dataset") -> None:
        """Raise ConfigError if the phase cannot be run like this: called before anything is started or written."""
        ...

    async def learn(self, plan: PhasePlan, settings: S_contra, bench: Bench) -> Learned:
        """Do the phase's work, or what is left of it when the run is resumed."""
        ...
