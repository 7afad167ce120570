"""Everything that the phases of a run share: the models, the workers that make rollouts, and the run directory.

lab --(job)--> worker --(Agent Lightning's runner)--> society --(model calls)--> model servers
 '---------------(record and trace, on disk)----------- '
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Literal, Self

from agents.context import LearnedSociety
from agents.policies.choice import make_selector
from agents.society import Start
from agents.tools.own import TOOL_KEYS
from agents.tools.toolbox import build_toolbox
from chimera.config.roles import expand
from chimera.config.tree import Config
from chimera.core.secrets import register_secret
from chimera.data.tasks import Dataset
from chimera.run import policies
from chimera.run.directory import Run
from chimera.run.policies import Policy
from chimera.serving.client import Endpoint, HttpModel
from chimera.serving.process import ModelServers
from evaluation.records.rollouts import RolloutInput, RolloutRecord
from evaluation.records.study import BASE
from evaluation.rollout.answering import answering
from evaluation.rollout.crew import Crew, new_id
from evaluation.rollout.live import Live
from evaluation.rollout.silent_tools import Watch
from evaluation.rollout.worker import Job, SocietyWorker, Worker
from evaluation.scores.auditor import Auditor
from evaluation.traces.spans import Span
from training.lab.agent import LightningWorker, open_store
from training.lab.candidates import Beside, ServedCandidates, phase_of
from training.lab.records import Records, identity
from training.learning.episodes import Episode
from training.watch.metrics import Metrics
from training.watch.view import View

if TYPE_CHECKING:
    from training.scale.cluster import Membership


class Lab:
    """One run's machinery, as an async context manager; a phase asks it for rollouts.

    Args:
        servers: The models, already served.

    Attributes:
        live: What is live; change it through `put_live` and `restore`, so that rollouts are told.
        policy_versions: Version by slot, and who chooses among hypotheses.
    """

    def __init__(
        self,
        run: Run,
        config: Config,
        dataset: Dataset,
        servers: ModelServers,
        secrets: Mapping[str, str],
        view: View,
        metrics: Metrics,
    ) -> None:
        self.run = run
        self.config = config
        self.dataset = dataset
        self.servers = servers
        self.view = view
        self.metrics = metrics
        self.policy_versions: dict[str, str] = {}
        self.candidates = ServedCandidates(run, config, servers)
        self._secrets = dict(secrets)
        self._scored = _scored(config)
        self._records = Records(run, config.reward)
        self._watch = Watch(config)
        self._cluster: Membership | None = None
        self._closing = AsyncExitStack()

    async def __aenter__(self) -> Self:
        for name, endpoint in self.servers.endpoints.items():
            register_secret(f"key of model {name}", endpoint.api_key)
        async with AsyncExitStack() as opening:
            self.model = HttpModel(
                self.servers.endpoints,
                max_retries=self.config.rollouts.retries,
                pause_s=self.config.rollouts.pause_s,
                tell=self.view.warn,
            )
            opening.push_async_callback(self.model.aclose)
            self.store = await open_store()
            societies = await self._societies(opening)
            workers = [LightningWorker(number, society, self.store) for number, society in enumerate(societies)]
            self.crew = Crew(self.run, workers, self.check)
            self.live = await asyncio.to_thread(Live, self.run, self.config.models, self.servers)
            await self.restore(policies.live(self.run.events()).values())
            self._closing = opening.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._closing.aclose()

    async def _societies(self, opening: AsyncExitStack) -> Sequence[Worker]:
        """As many workers as rollouts are made at a time. Their tools get no keys of models."""
        config, dataset = self.config, self.dataset
        names = (*TOOL_KEYS, *config.tools.secret_names())
        secrets = {name: self._secrets[name] for name in names if name in self._secrets}
        toolbox = partial(
            build_toolbox,
            *(config.tools, dataset.documents(), secrets),
            roles=config.roles,
            conclusions=dataset.conclusions(),
        )
        if config.rollouts.on == "ray":
            from training.scale.actors import open_actors

            workers, self._cluster = await opening.enter_async_context(open_actors(config, toolbox))
            return workers
        # The index of abstracts takes a second, in which the view goes on.
        tools = await asyncio.to_thread(toolbox)
        return [SocietyWorker(config, self.model, tools) for _ in range(config.rollouts.concurrency)]

    def check(self) -> None:
        """Raise what keeps all further rollouts from succeeding, if there is anything."""
        self.servers.check()
        if self._cluster is not None:
            self._cluster.check()

    def second_judge(self) -> Auditor | None:
        """The judge that no reward uses; None if there is none; close it. Raises ConfigError if its key is missing."""
        return Auditor.configured(self.config, self._secrets)

    async def put_live(self, policy: Policy) -> None:
        """Have rollouts that begin from now on use `policy`.

        Raises:
            ModelError: Its weights do not fit the model that they replace; what was live stays live.
            RunError: Its files are not those that the run wrote.
        """
        await asyncio.to_thread(self.live.put, policy)
        self.policy_versions = await asyncio.to_thread(self.live.versions)

    async def restore(self, chosen_policies: Iterable[Policy]) -> None:
        """Make exactly `chosen_policies` live; every other place becomes what it was when the run began.

        Raises:
            ModelError: See `put_live`.
            RunError: See `put_live`.
        """
        await asyncio.to_thread(self.live.restore, list(chosen_policies))
        self.policy_versions = await asyncio.to_thread(self.live.versions)

    def episode(self, record: RolloutRecord, spans: Sequence[Span] | None = None) -> Episode:
        """The episode of a recorded rollout; without its spans it reads its trace when it is needed."""
        return self._records.episode(record, spans)

    def recorded(self, phases: Iterable[str]) -> list[Episode]:
        """All rollouts of `phases`, in the order of the phases."""
        return [self.episode(record) for phase in phases for record in self._records.of(phase).values()]

    async def held_out(self, inputs: Sequence[RolloutInput], stage: str) -> AsyncGenerator[RolloutRecord, None]:
        """Run the society as it is now on held-out tasks, from which nobody learns; close the generator.

        Nothing is explored, and answers are sampled at the temperature of the run's gate.

        Args:
            stage: The name of what is live.

        Raises:
            ChimeraError: See `rollouts`.
        """
        sampled = answering(self.servers.endpoints, self.config, self.run.gate_temperature)
        versions = dict(self.policy_versions)
        selector, learned = partial(make_selector, self.live.selection(0.0), greedy=True), self.live.society()

        def job(input_: RolloutInput) -> Job:
            return Job(new_id("ev"), input_, sampled, versions, selector, learned=learned)

        async with aclosing(self._made(inputs, job, on_trial=stage != BASE)) as stream:
            async for record, _ in stream:
                yield record

    async def rollouts(
        self, inputs: Sequence[RolloutInput], *, mode: Literal["train", "val"] = "train", instead: Sequence[Policy] = ()
    ) -> AsyncGenerator[Episode]:
        """Run the society on `inputs` and yield each rollout as it ends, recorded in the run directory by then.

        Rollouts that are recorded already, because the run is continued, come first and are not run again. Failed
        rollouts are yielded too. When the caller stops iterating, rollouts that have not started never will.

        Args:
            mode: "val" explores nothing.
            instead: Candidates that work in these rollouts, which are recorded under `candidates.phase_of`.

        Raises:
            RunError: The model server has ended.
            UnreachableError: A model server cannot be reached.
            ModelError: A candidate's weights do not fit the model that they are to replace.
        """
        named = [replace(input_, phase=phase_of(input_.phase, instead)) for input_ in inputs]
        # Closed at once when the caller stops early: until then the candidates are served.
        async with self.candidates.serve(instead) as candidates:
            job = partial(self._job, candidates=candidates, mode=mode)
            async with aclosing(self._made(named, job, on_trial=bool(instead))) as stream:
                async for record, trace in stream:
                    # A recorded rollout too: the run may have been killed before its line. None is logged twice.
                    self.metrics.rollout(record)
                    if trace is not None:
                        for warning in self._watch.add(record):
                            self.view.warn(warning)
                    yield self.episode(record, trace)

    async def replay(self, rollout_id: str, input_: RolloutInput, candidates: Beside, start: Start) -> Episode:
        """Go on from a recorded rollout, with candidates beside what is live.

        Raises:
            ChimeraError: See `rollouts`.
        """
        job = replace(self._job(input_, candidates=candidates, mode="train"), rollout_id=rollout_id, start=start)
        return self.episode(*await self.crew.rollout(job))

    async def _made(
        self, inputs: Sequence[RolloutInput], job: Callable[[RolloutInput], Job], *, on_trial: bool
    ) -> AsyncGenerator[tuple[RolloutRecord, list[Span] | None]]:
        """The rollouts of `inputs`: recorded ones, without their traces, then new ones."""
        missing: list[Job] = []
        for input_ in inputs:
            record = self._records.of(input_.phase).get(identity(input_))
            if record is None:
                missing.append(job(input_))
            else:
                yield record, None
        async with aclosing(self.crew.rollouts(missing, on_trial=on_trial)) as stream:
            async for record, trace in stream:
                self._records.note(record)
                yield record, trace

    def _job(self, input_: RolloutInput, *, candidates: Beside, mode: Literal["train", "val"]) -> Job:
        live, candidate = self.live.society(), candidates.society
        selection = candidates.chooser or self.live.selection(self.config.rollouts.exploration)
        return Job(
            rollout_id=new_id("ro"),
            input=input_,
            endpoints=self._endpoints(candidates.models),
            versions={**self.policy_versions, **candidates.versions},
            selector=partial(make_selector, selection, greedy=mode == "val"),
            scored=self._scored,
            mode=mode,
            learned=LearnedSociety(candidate.guidance or live.guidance, candidate.graph or live.graph),
        )

    def _endpoints(self, candidates: Mapping[str, str]) -> dict[str, Endpoint]:
        """Where each slot's model answers; for slots in `candidates` it is the model of that name."""
        return {
            slot: replace(endpoint, model=candidates.get(slot, endpoint.model))
            for slot, endpoint in self.servers.endpoints.items()
        }


def _scored(config: Config) -> frozenset[str]:
    """The slots of roles that a phase trains which needs to know how likely each token was."""
    phases = ((name, phase) for name, phase in config.pipeline.items() if phase.needs_log_probs())
    return frozenset(
        config.slot(role) for name, phase in phases for role in expand(phase.roles, f"pipeline.{name}.roles")
    )
