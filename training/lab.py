"""Everything that the phases of a run share: model servers, store, gateway, runners, and the run directory.

runners --(model calls)--> gateway --> model servers
   |                          |
   '--(spans)--> store <------'(exchanges)      main process: enqueues, collects, writes the run directory
"""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

import agentlightning as agl
from agentlightning.types import EnqueueRolloutRequest

from chimera.config import Config
from chimera.data import Dataset
from chimera.errors import ChimeraError
from chimera.runs import Run
from chimera.secrets import register_secret
from chimera.serving.process import ModelServers
from training import resources, traces
from training.gateway import Gateway
from training.pool import RunnerPool
from training.rollouts import RolloutInput, RolloutRecord
from training.runner import RunnerSpec
from training.store import LabStore
from training.view import View

GRACE_SECONDS = 30.0
"""A runner ends a late rollout itself; after this much longer it counts as hanging and is killed."""
TRACE_SECONDS = 10.0
"""How long a finished rollout's last exchanges may take from the gateway to the store."""
SETTLE_SECONDS = 0.5
"""How long to wait for late exchanges of a rollout whose runner could not tell what they are."""
LOOK_SECONDS = 1.0
"""The store's own time-outs and the model server's end announce nothing, so they are looked for this often."""
ENDED = ("succeeded", "failed", "cancelled")


class Lab:
    """One run's machinery, as an async context manager; a phase asks it for rollouts.

    Args:
        run: Where everything is recorded.
        config: The whole configuration.
        dataset: The tasks.
        servers: The models, already served.
        secrets: Keys for the tools.
        view: Shows progress.
    """

    def __init__(
        self,
        run: Run,
        config: Config,
        dataset: Dataset,
        servers: ModelServers,
        secrets: Mapping[str, str],
        view: View,
    ) -> None:
        self.run = run
        self.config = config
        self.dataset = dataset
        self.servers = servers
        self.view = view
        self.policy_versions: dict[str, str] = {}
        self._secrets = dict(secrets)
        self._logs = run.path / "logs"
        self._resources_id = ""
        self._versions_of: dict[str | None, dict[str, str]] = {}
        self._changed = asyncio.Event()
        self._failure: ChimeraError | None = None
        self._losing: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self.store = LabStore(self._wake)
        await self.store.start()
        self.gateway = Gateway(
            self.store.endpoint,
            self.config.models,
            self.servers.endpoints,
            self._logs / "gateway.log",
            self.view.warn,
            self._fail,
        )
        register_secret("gateway key", self.gateway.key)
        for name, endpoint in self.servers.endpoints.items():
            register_secret(f"key of model {name}", endpoint.api_key)
        spec = RunnerSpec.of(self.store.endpoint, self.config, self.dataset, self.gateway.key, self._secrets)
        self.pool = RunnerPool(
            spec, self.config.rollouts.runners, self._logs, self._runner_died, self.view.warn, self._fail
        )
        try:
            self.pool.start()
            await self.gateway.start()
            await self.publish()
        except BaseException:
            await self._stop()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stop()

    async def _stop(self) -> None:
        self.pool.stop()
        self.gateway.stop()
        await self.store.close()

    async def publish(self) -> None:
        """Tell rollouts that are enqueued from now on about the models' current policy versions."""
        named = {name: endpoint.model for name, endpoint in self.servers.endpoints.items()}
        self.policy_versions = {**named, **await asyncio.to_thread(self.servers.versions)}
        described = resources.describe(self.gateway.url, self.config.models, self.policy_versions)
        self._resources_id = (await self.store.add_resources(described)).resources_id
        self._versions_of[self._resources_id] = self.policy_versions

    async def rollouts(
        self, inputs: Sequence[RolloutInput], *, mode: Literal["train", "val"] = "train"
    ) -> AsyncIterator[RolloutRecord]:
        """Run the society on `inputs` and yield each rollout as it ends, recorded in the run directory by then.

        Failed rollouts are yielded too. When the caller stops iterating, rollouts that have not started never will.

        Raises:
            RunError: No runner is left, the gateway cannot be kept up, or the model server has ended.
        """
        policy = agl.RolloutConfig(
            timeout_seconds=self.config.rollouts.timeout_s + GRACE_SECONDS,
            max_attempts=self.config.rollouts.max_attempts,
            retry_condition=["failed", "timeout"],
        )
        enqueued = await self.store.enqueue_many_rollouts(
            [
                EnqueueRolloutRequest(input=given.dump(), mode=mode, resources_id=self._resources_id, config=policy)
                for given in inputs
            ]
        )
        pending = {rollout.rollout_id: given for rollout, given in zip(enqueued, inputs, strict=True)}
        collecting: set[asyncio.Task[RolloutRecord]] = set()
        try:
            while pending or collecting:
                self._check()
                for rollout in await self._ended(pending):
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

    async def _ended(self, pending: Mapping[str, RolloutInput]) -> Sequence[agl.Rollout]:
        self._changed.clear()
        if not pending:
            return []
        return (await self.store.query_rollouts(rollout_id_in=list(pending), status_in=ENDED)).items

    async def _wait(self, collecting: set[asyncio.Task[RolloutRecord]]) -> None:
        """Until a rollout has ended, a record is complete, or it is time to look again."""
        changed = asyncio.create_task(self._changed.wait())
        await asyncio.wait({changed, *collecting}, timeout=LOOK_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        changed.cancel()

    def _check(self) -> None:
        """Raise what keeps all further rollouts from succeeding, if there is anything."""
        if self._failure is not None:
            raise self._failure
        self.servers.check()

    async def _collect(self, rollout: agl.Rollout, given: RolloutInput) -> RolloutRecord:
        """Bring trace and outcome together, and write both down."""
        attempt = await self.store.get_latest_attempt(rollout.rollout_id)
        spans = await self._trace(rollout.rollout_id, attempt)
        path = Path("traces") / given.phase / f"{rollout.rollout_id}.jsonl.gz"
        if spans:
            traces.write(spans, self.run.path / path)
        record = self._record(rollout, attempt, spans, given, str(path) if spans else None)
        self.run.append_rollout(record.dump(), phase=given.phase)
        if record.seconds is not None:
            self.pool.productive()
        elif attempt is not None and attempt.status == "timeout" and attempt.worker_id is not None:
            self.pool.kill(attempt.worker_id)
        return record

    async def _trace(self, rollout_id: str, attempt: agl.Attempt | None) -> Sequence[agl.Span]:
        """The rollout's spans; the gateway writes an exchange just after answering, so the last may be on their way."""
        deadline = self._loop.time() + TRACE_SECONDS
        spans = (await self.store.query_spans(rollout_id)).items
        if attempt is not None and traces.outcome(spans, attempt.attempt_id) is None:
            # The runner died: what it asked for last is not known.
            await asyncio.sleep(SETTLE_SECONDS)
            spans = (await self.store.query_spans(rollout_id)).items
        while traces.untraced(spans) and self._loop.time() < deadline:
            await asyncio.sleep(0.05)
            spans = (await self.store.query_spans(rollout_id)).items
        return spans

    def _record(
        self,
        rollout: agl.Rollout,
        attempt: agl.Attempt | None,
        spans: Sequence[agl.Span],
        given: RolloutInput,
        trace: str | None,
    ) -> RolloutRecord:
        outcome = (traces.outcome(spans, attempt.attempt_id) if attempt else None) or {}
        status = "succeeded" if rollout.status == "succeeded" and outcome else "failed"
        parts = outcome.get("parts", {})
        outputs = outcome.get("outputs", {})
        return RolloutRecord(
            rollout_id=rollout.rollout_id,
            task_id=given.task.id,
            source=given.task.source,
            level=given.task.level,
            phase=given.phase,
            repeat=given.repeat,
            seed=given.seed,
            attempt=attempt.sequence_id if attempt else 0,
            status=status,
            error=None if status == "succeeded" else outcome.get("error") or _reason(rollout, attempt),
            label=given.task.label,
            decision=outputs.get("final_decision"),
            reward=outcome.get("reward"),
            parts=parts,
            missing=[name for name, value in parts.items() if value is None],
            policy_versions=self._versions_of[rollout.resources_id],
            weights_versions=outcome.get("weights_versions", {}),
            outputs=outputs,
            counts=outcome.get("counts", {}),
            untraced_calls=len(traces.untraced(spans)),
            seconds=outcome.get("seconds"),
            worker=attempt.worker_id if attempt else None,
            trace=trace,
        )

    def _wake(self, _rollout_id: str = "") -> None:
        self._loop.call_soon_threadsafe(self._changed.set)

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
                    rollout.rollout_id, attempt.attempt_id, status="failed", metadata={"error": reason}
                )


def _reason(rollout: agl.Rollout, attempt: agl.Attempt | None) -> str:
    """Why a rollout failed whose runner could not say so."""
    if attempt is None:
        return f"the rollout was {rollout.status} before it started"
    if attempt.metadata and "error" in attempt.metadata:
        return str(attempt.metadata["error"])
    if attempt.status == "timeout":
        return f"the runner {attempt.worker_id} gave no result in time (rollouts.timeout_s) and was ended"
    return f"the attempt ended as {attempt.status!r} and its outcome never reached the store: see logs/"
