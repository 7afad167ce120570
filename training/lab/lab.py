"""Everything that the phases of a run share: model servers, store, gateway, runners, and the run directory.

runners --(model calls)--> gateway --> model servers
   |                          |
   '--(spans)--> store <------'(exchanges)      main process: enqueues, collects, writes the run directory

Rollouts on held-out tasks, from which nobody learns, take the short way: main process --(model calls)--> model servers.
"""

import asyncio
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Literal, Self

import agentlightning as agl
from agentlightning.types import EnqueueRolloutRequest

from chimera.config.tree import Config
from chimera.core.errors import ChimeraError, RunError
from chimera.core.secrets import register_secret
from chimera.data.tasks import Dataset
from chimera.run import policies
from chimera.run.directory import Run
from chimera.run.policies import Policy
from chimera.serving.process import ModelServers
from chimera.serving.tls import check_tls
from evaluation.conduct.live import Live
from evaluation.conduct.silent_tools import Watch
from evaluation.records.rollouts import RolloutInput, RolloutRecord
from evaluation.records.study import Stage
from evaluation.traces.spans import Span
from training.bench.candidates import Beside, ServedCandidates, phase_of
from training.lab import resources
from training.lab.ends import LOOK_SECONDS, Ends, Look
from training.lab.gateway.process import Gateway
from training.lab.held_out import HeldOut
from training.lab.recorder import Recorder, identity
from training.lab.runners import visitors
from training.lab.runners.launching import ForkedRunners, RunnerLauncher
from training.lab.runners.pool import RunnerPool
from training.lab.runners.runner import Doors, RunnerSpec
from training.lab.store import LabStore
from training.learning.episodes import Episode
from training.watch.metrics import Metrics
from training.watch.view import View

GRACE_SECONDS = 30.0
"""A runner ends a late rollout itself; after this much longer it counts as hanging and is killed."""
SILENCE_SECONDS = 60.0
"""A runner on another machine that makes no model call for this much longer than a call may take is given up."""


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
        self._secrets = dict(secrets)
        self._logs = run.path / "logs"
        self._resources_id = ""
        self._versions_of: dict[str | None, Mapping[str, str]] = {}
        self._changed = asyncio.Event()
        self._failure: ChimeraError | None = None
        self._watch = Watch(config)
        self._losing: set[asyncio.Task[None]] = set()
        self.candidates = ServedCandidates(run, config, servers)

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        cluster = self.config.cluster
        self._check_tls()
        store_key, gateway_key, store_port, gateway_port = self._known_doors()
        self.store = LabStore(
            self._wake,
            port=store_port,
            key=store_key,
            host=cluster.host,
            mongo=cluster.store,
            tls=cluster.tls,
        )
        await self.store.start()
        self._ends = Ends(self.store)
        self._recorder = Recorder(self.run, self.store, self.config.reward)
        self.gateway = Gateway(
            self.config,
            self.servers.endpoints,
            self.store.endpoint,
            self.store.key,
            self._logs / "gateway.log",
            self.view.warn,
            self._fail,
            port=gateway_port,
            key=gateway_key,
        )
        register_secret("gateway key", self.gateway.key)
        register_secret("store key", self.store.key)
        for name, endpoint in self.servers.endpoints.items():
            register_secret(f"key of model {name}", endpoint.api_key)
        doors = Doors(
            self.store.endpoint, self.gateway.url, self.store.key, self.gateway.key, cluster.tls.authority_path
        )
        spec = RunnerSpec.of(doors, self.config, self.dataset, self._secrets)
        self.toolbox = spec.toolbox
        if cluster.key_file is not None:
            visitors.admit(self.store, spec)
        self._held_out = HeldOut(self.run, self.config, self.servers, self._recorder, spec.toolbox, self.check)
        self.pool = RunnerPool(
            self._launcher(spec),
            self.config.rollouts.runners,
            self.store.employ,
            self._runner_died,
            self.view.warn,
            self._fail,
        )
        try:
            self.pool.start()
            await self.gateway.start()
            self.live = await asyncio.to_thread(Live, self.run, self.config.models, self.servers)
            await self.restore(policies.live(self.run.events()).values())
        except BaseException:
            await self._stop()
            raise
        return self

    def _launcher(self, spec: RunnerSpec) -> RunnerLauncher:
        """Starts runners where `rollouts.on` says; raises ConfigError if the cluster's token file cannot be used."""
        if self.config.rollouts.on == "here":
            return ForkedRunners(spec, self._logs)
        from training.cluster.ray.runners import RayRunners

        return RayRunners(self.config.cluster, spec, self._logs, self._fail)

    def _known_doors(self) -> tuple[str | None, str | None, int | None, int | None]:
        """Keys and ports of store and gateway that visitors know; None where nobody needs to know them."""
        cluster = self.config.cluster
        if cluster.key_file is None:
            return None, None, None, None
        visitors.make_key(cluster.key_file)
        store_port = visitors.check_port(cluster.store_port, "cluster.store_port", cluster.host)
        gateway_port = visitors.check_port(cluster.gateway_port, "cluster.gateway_port", cluster.host)
        return *visitors.keys_of(cluster.key_file), store_port, gateway_port

    def _check_tls(self) -> None:
        """Raise ConfigError if runners would refuse what `cluster.tls` says; warn of what it does not cover."""
        cluster = self.config.cluster
        check_tls(cluster.tls, cluster.host)
        if cluster.tls.on and cluster.address is not None:
            self.view.warn(
                "cluster.tls covers store and gateway only: Ray's own messages and the gradients of ranks travel "
                "unencrypted, so the nodes' network must be a private one"
            )

    async def __aexit__(self, *_: object) -> None:
        await self._stop()

    async def _stop(self) -> None:
        self.pool.stop()
        self.gateway.stop()
        await self.store.close()

    async def put_live(self, policy: Policy) -> None:
        """Have rollouts that are enqueued from now on use `policy`.

        Raises:
            ModelError: Its weights do not fit the model that they replace; what was live stays live.
            RunError: Its files are not those that the run wrote.
        """
        await asyncio.to_thread(self.live.put, policy)
        await self._publish()

    async def restore(self, wanted: Iterable[Policy]) -> None:
        """Make exactly `wanted` live; every other place becomes what it was when the run began.

        Raises:
            ModelError: See `put_live`.
            RunError: See `put_live`.
        """
        await asyncio.to_thread(self.live.restore, list(wanted))
        await self._publish()

    def episode(self, record: RolloutRecord, spans: Sequence[Span] | None = None) -> Episode:
        """The episode of a recorded rollout; without its spans it reads its trace when it is needed."""
        return self._recorder.episode(record, spans)

    def recorded(self, phases: Iterable[str]) -> list[Episode]:
        """All rollouts of `phases` that ended by themselves, in the order of the phases."""
        return [
            self._recorder.episode(record) for phase in phases for record in self._recorder.recorded(phase).values()
        ]

    async def _publish(self) -> None:
        """Tell rollouts that are enqueued from now on about the models, their versions, and who selects."""
        self.policy_versions = await asyncio.to_thread(self.live.versions)
        self._resources_id = await self._describe(Beside())

    async def _describe(self, beside: Beside) -> str:
        """The id of the resources that tell rollouts to use what is live, or what is served beside it."""
        versions = {**self.policy_versions, **beside.versions}
        chooser = beside.chooser or self.live.selection(self.config.rollouts.exploration)
        described = resources.describe(self.gateway.url, self.config.models, versions, chooser, beside.models)
        resources_id = (await self.store.add_resources(described)).resources_id
        self._versions_of[resources_id] = versions
        return resources_id

    def held_out(self, inputs: Sequence[RolloutInput], stage: str) -> AsyncGenerator[RolloutRecord, None]:
        """Run the society as it is now on held-out tasks, as `training.lab.held_out` says; close the generator.

        Nothing is explored, and runners, gateway and store have no part in it.

        Args:
            stage: The name of what is live.
        """
        now = Stage(stage, stage, "sequence", tuple(self.live.policies.values()), self.policy_versions)
        return self._held_out.rollouts(inputs, now, self.live.selector())

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
            RunError: No runner is left, the gateway cannot be kept up, or the model server has ended.
            ModelError: A candidate's weights do not fit the model that they are to replace.
        """
        if self.config.gateway.engine != "thin" and any(policy.part == "weights" for policy in instead):
            raise RunError(
                f"rollouts with {instead[0].version} cannot be made with gateway.engine={self.config.gateway.engine}, "
                "which knows only the models that it was started with: set gateway.engine=thin"
            )
        named = [replace(given, phase=phase_of(given.phase, instead)) for given in inputs]
        # Closed at once when the caller stops early: until then the candidates are served.
        async with self.candidates.serve(instead) as beside, aclosing(self._rollouts(named, mode, beside)) as episodes:
            async for episode in episodes:
                yield episode

    async def _rollouts(
        self, inputs: Sequence[RolloutInput], mode: Literal["train", "val"], beside: Beside
    ) -> AsyncGenerator[Episode]:
        known = {phase: dict(self._recorder.recorded(phase)) for phase in {given.phase for given in inputs}}
        missing = [given for given in inputs if identity(given) not in known[given.phase]]
        for given in inputs:
            if record := known[given.phase].get(identity(given)):
                yield self._recorder.episode(record)
        resources_id = await self._describe(beside) if beside.versions else self._resources_id
        pending = await self._enqueue(missing, mode, resources_id)
        collecting: set[asyncio.Task[Episode]] = set()
        look = Look()
        try:
            while pending or collecting:
                self.check()
                self._changed.clear()
                for rollout in await self._ends.among(pending, look):
                    given = pending.pop(rollout.rollout_id)
                    collecting.add(asyncio.create_task(self._collect(rollout, given)))
                finished = {task for task in collecting if task.done()}
                collecting -= finished
                for task in finished:
                    yield task.result()
                if not finished:
                    await self._wait(collecting)
        finally:
            for task in collecting:
                task.cancel()
            for rollout_id in pending:
                await self.store.update_rollout(rollout_id, status="cancelled")

    async def _enqueue(
        self, inputs: Sequence[RolloutInput], mode: Literal["train", "val"], resources_id: str
    ) -> dict[str, RolloutInput]:
        """Only a runner that died gets its rollout another attempt: a bad answer would be repeated, seed for seed."""
        policy = agl.RolloutConfig(
            timeout_seconds=self.config.rollouts.timeout_s + GRACE_SECONDS,
            max_attempts=self.config.rollouts.max_attempts,
            retry_condition=["unresponsive"],
            unresponsive_seconds=self._silence(),
        )
        enqueued = await self.store.enqueue_many_rollouts(
            [
                EnqueueRolloutRequest(input=given.dump(), mode=mode, resources_id=resources_id, config=policy)
                for given in inputs
            ]
        )
        return {rollout.rollout_id: given for rollout, given in zip(enqueued, inputs, strict=True)}

    def _silence(self) -> float | None:
        """Seconds without any model call after which a visitor counts as gone; the end of our own runners is seen.

        On a cluster a node may be cut off, which Ray does not tell at once.
        """
        if self.config.cluster.key_file is None and self.config.rollouts.on == "here":
            return None
        return SILENCE_SECONDS + max(model.timeout_s for model in self.config.served().values())

    async def _wait(self, collecting: set[asyncio.Task[Episode]]) -> None:
        """Until a rollout has ended, a record is complete, or it is time to look again."""
        changed = asyncio.create_task(self._changed.wait())
        await asyncio.wait({changed, *collecting}, timeout=LOOK_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        changed.cancel()

    def check(self) -> None:
        """Raise what keeps all further rollouts from succeeding, if there is anything."""
        if self._failure is not None:
            raise self._failure
        self.servers.check()

    async def _collect(self, rollout: agl.Rollout, given: RolloutInput) -> Episode:
        """Record an ended rollout, unless it failed because the run as a whole has."""
        record, spans = await self._recorder.outcome(rollout, given, self._versions_of[rollout.resources_id])
        if record.status == "failed":
            self.check()
        episode = self._recorder.write(record, spans)
        self.metrics.rollout(record)
        for warning in self._watch.add(record):
            self.view.warn(warning)
        if record.seconds is not None:
            self.pool.productive()
        else:
            attempt = await self.store.get_latest_attempt(rollout.rollout_id)
            if attempt is not None and attempt.status == "timeout" and attempt.worker_id is not None:
                self.pool.kill(attempt.worker_id)
        return episode

    def _wake(self, rollout_id: str = "") -> None:
        self._loop.call_soon_threadsafe(self._note_end, rollout_id)

    def _note_end(self, rollout_id: str) -> None:
        if rollout_id:
            self._ends.tell(rollout_id)
        self._changed.set()

    def _fail(self, error: ChimeraError) -> None:
        self._failure = error
        self._wake()

    def _runner_died(self, worker: str, ending: str) -> None:
        self.store.dismiss(worker)
        self.view.warn(ending)
        losing = asyncio.create_task(self._fail_rollouts_of(worker, ending))
        self._losing.add(losing)  # The loop holds tasks weakly, and two runners may die at once.
        losing.add_done_callback(self._losing.discard)

    async def _fail_rollouts_of(self, worker: str, reason: str) -> None:
        running = (await self.store.query_rollouts(status_in=["preparing", "running"])).items
        for rollout in running:
            attempt = await self.store.get_latest_attempt(rollout.rollout_id)
            if attempt is not None and attempt.worker_id == worker:
                await self.store.update_attempt(
                    rollout.rollout_id, attempt.attempt_id, status="unresponsive", metadata={"error": reason}
                )
