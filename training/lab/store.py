"""The run's LightningStore server: Agent Lightning's store, extended with notifications and keys.

Runners wait for work at the server (a long poll) instead of asking several times a second, and the main process gets a
call when a rollout has ended. So idling costs nothing, and no polling interval adds to a rollout's time.

Agent Lightning 0.3.0's store and client have no key and no TLS. Here every route requires the run's key, only routes
for runners and gateway exist, and data is accepted only for attempts that a runner of this run holds. With
`cluster.tls` both speak HTTPS.
"""

import asyncio
import logging
import re
import secrets
import ssl
import threading
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import agentlightning as agl
import aiohttp
import uvicorn
from agentlightning.types import AttemptStatus, EnqueueRolloutRequest
from agentlightning.utils.server_launcher import PythonServerLauncher, PythonServerLauncherArgs
from fastapi import FastAPI, HTTPException

from chimera.config.sections.cluster import TlsConfig
from chimera.core.ports import LOOPBACK, reserve
from chimera.serving.door import Door, hosts_of
from chimera.serving.tls import context_for, server_context
from training.lab.backing import in_memory, in_mongo
from training.lab.leaving import EndsWithItsClient
from training.lab.steady_time import use_steady_time

logger = logging.getLogger(__name__)

LONG_POLL_SECONDS = 10.0
CLOSE_SECONDS = 1.0
"""Time limit of the server's end. Its thread ends with the process at the latest."""
DEQUEUE = "/v1/agl/queues/rollouts/dequeue"
ROUTES = re.compile(
    r"POST /v1/traces|GET /v1/agl/(health|resources/[^/]+)"
    r"|POST /v1/chimera/runners"
    r"|POST /v1/agl/(queues/rollouts/dequeue|rollouts/[^/]+/attempts/[^/]+|workers/[^/]+|spans/next)"
)
"""The routes of runners and gateway. The main process has the store in memory and needs no route."""
FINAL_ATTEMPT: frozenset[AttemptStatus] = frozenset({"succeeded", "failed", "timeout", "unresponsive"})


class KeyedStoreClient(agl.LightningStoreClient):
    """The client of a `LabStore`, which sends the key.

    Args:
        authority: File of the authority that the store's certificate must be signed by; None: those of the system.

    Raises:
        ConfigError: The authority cannot be read.
    """

    def __init__(self, address: str, key: str, authority: str | None = None) -> None:
        super().__init__(address)
        self._key = key
        self._tls = context_for(address, authority)

    async def _get_session(self) -> aiohttp.ClientSession:
        if self._tls is not None:
            self._begin_session(self._tls)
        session = await super()._get_session()
        session.headers["authorization"] = f"Bearer {self._key}"
        return session

    def _begin_session(self, tls: ssl.SSLContext) -> None:
        """Make this loop's session, if there is none, as agentlightning 0.3.0 does, which takes no authority."""
        loop = id(asyncio.get_running_loop())
        with self._lock:
            if loop not in self._sessions or self._sessions[loop].closed:
                timeout = aiohttp.ClientTimeout(
                    total=self._request_timeout,
                    connect=self._connection_timeout,
                    sock_connect=self._connection_timeout,
                    sock_read=self._request_timeout,
                )
                self._sessions[loop] = aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(ssl=tls))

    async def dequeue_rollout(self, worker_id: str | None = None) -> agl.AttemptedRollout | None:
        """The next rollout; None if there is none yet.

        The method of agentlightning 0.3.0 treats every error as "none yet", so a refused runner would ask forever.

        Raises:
            aiohttp.ClientError: The store refuses the request, or cannot be reached.
        """
        found = await self._request_json("post", "/queues/rollouts/dequeue", json={"limit": 1, "worker_id": worker_id})
        return agl.AttemptedRollout.model_validate(found[0]) if found else None


class TlsLauncher(PythonServerLauncher):
    """Starts a server that speaks HTTPS, which agentlightning 0.3.0's launcher has no setting for."""

    def __init__(self, app: FastAPI, args: PythonServerLauncherArgs, tls: TlsConfig) -> None:
        super().__init__(app=app, args=args)
        self._tls = tls

    @property
    def access_endpoint(self) -> str:
        return f"https://{self._ensure_access_host()}:{self._ensure_port()}"

    def _create_uvicorn_server(self) -> uvicorn.Server:
        server = super()._create_uvicorn_server()
        server.config.ssl_context_factory = lambda *_: server_context(self._tls)
        return server


class LabStore(agl.LightningStoreServer):
    """Store server in a thread of the main process.

    Args:
        on_ended: Called with the rollout's id, in any thread, when an attempt has ended.
        port: Its port; None is a free one.
        key: Its key; None is a fresh one.
        host: The address of this machine at which it listens.
        mongo: Address of the MongoDB that holds rollouts and spans; None keeps them in memory.
        tls: Whether it speaks HTTPS, and with which files.

    Raises:
        ConfigError: The MongoDB cannot be used.
    """

    def __init__(
        self,
        on_ended: Callable[[str], None],
        *,
        port: int | None = None,
        key: str | None = None,
        host: str = LOOPBACK,
        mongo: str | None = None,
        tls: TlsConfig | None = None,
    ) -> None:
        use_steady_time()
        kept = in_memory() if mongo is None else in_mongo(mongo)
        if isinstance(kept, agl.InMemoryLightningStore):
            _read_again_when_changed(kept)
        self._kept: Any = kept
        self._mongo = mongo is not None
        reserved = reserve(port or 0, host=host)
        super().__init__(
            kept,
            launcher_args=PythonServerLauncherArgs(
                port=reserved.getsockname()[1],
                host=host,
                access_host=host,
                launch_mode="thread",
                log_level=30,
                thread_join_timeout=CLOSE_SECONDS,
            ),
        )
        if tls is not None and tls.on:
            assert self.app is not None
            self.server_launcher = TlsLauncher(self.app, self.launcher_args, tls)
        self._reserved = reserved
        self.key = key or secrets.token_urlsafe(24)
        assert self.app is not None
        self.app.add_middleware(EndsWithItsClient, path=DEQUEUE)
        self.app.add_middleware(Door, key=self.key, hosts=hosts_of(host), routes=ROUTES)
        self._on_ended = on_ended
        self._waiting: set[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = set()
        self._waiting_lock = threading.Lock()
        self._workers: set[str] = set()
        self._held: set[tuple[str, str]] = set()
        self._ended: dict[str, AttemptStatus] = {}
        self._closing = False

    async def enqueue_many_rollouts(self, rollouts: Sequence[EnqueueRolloutRequest]) -> Sequence[agl.Rollout]:
        """Enqueue and wake waiting runners."""
        enqueued = await super().enqueue_many_rollouts(rollouts)
        self._wake()
        return enqueued

    async def dequeue_rollout(self, worker_id: str | None = None) -> agl.AttemptedRollout | None:
        """The next rollout. Waits up to 10 s for one. None for workers that are dismissed or were never employed."""
        arrived = (asyncio.get_running_loop(), asyncio.Event())
        with self._waiting_lock:
            self._waiting.add(arrived)
        try:
            deadline = arrived[0].time() + LONG_POLL_SECONDS
            while not self._closing and worker_id in self._workers:
                found = await super().dequeue_rollout(worker_id)
                if found is not None:
                    self._held.add((found.rollout_id, found.attempt.attempt_id))
                left = deadline - arrived[0].time()
                if found is not None or left <= 0:
                    return found
                try:
                    await asyncio.wait_for(arrived[1].wait(), left)
                except TimeoutError:
                    return None
                arrived[1].clear()
            return None
        finally:
            with self._waiting_lock:
                self._waiting.discard(arrived)

    async def update_attempt(self, rollout_id: str, attempt_id: str, *args: Any, **kwargs: Any) -> agl.Attempt:
        """Update an attempt, and notify if it has ended. A retry goes back to the queue, so runners are woken too."""
        self._believe(rollout_id, attempt_id)
        attempt = await super().update_attempt(rollout_id, attempt_id, *args, **kwargs)
        if attempt.status in FINAL_ATTEMPT:
            self._ended[attempt_id] = attempt.status
            self._wake()
            self._on_ended(rollout_id)
        return attempt

    async def add_many_spans(self, spans: Sequence[agl.Span]) -> Sequence[agl.Span]:
        """Add spans without reviving an attempt that has ended or a rollout that waits for another attempt.

        agentlightning 0.3.0 treats a late span as a sign of life: it sets the attempt from "unresponsive" and the
        rollout from "requeuing" to "running", so no runner would get it. Late spans occur because the gateway sends an
        exchange after the answer, also to a runner that was killed meanwhile.
        """
        for span in spans:
            self._believe(span.rollout_id, span.attempt_id)
        added = await super().add_many_spans(spans)
        for rollout_id in {span.rollout_id for span in spans if span.attempt_id in self._ended}:
            rollout = await self.get_rollout_by_id(rollout_id)
            if isinstance(rollout, agl.AttemptedRollout) and rollout.status == "running":
                attempt_id = rollout.attempt.attempt_id
                if attempt_id in self._ended:
                    await super().update_attempt(rollout_id, attempt_id, status=self._ended[attempt_id])
                    self._wake()
        return added

    def employ(self, worker_id: str) -> None:
        """Give work to this worker when it asks."""
        self._workers.add(worker_id)

    def dismiss(self, worker_id: str) -> None:
        """Give no more work to this worker. Its process has ended, but its last request may still wait here."""
        self._workers.discard(worker_id)

    async def close(self) -> None:
        """Answer all waiting runners and stop the server."""
        self._closing = True
        self._wake()
        self._reserved.close()
        try:
            await self.stop()
        except RuntimeError as error:
            # A request is still in progress. A run that ends or is stopped does not wait for it.
            logger.warning("the store's server did not end within %g s: %s", CLOSE_SECONDS, error)
        if self._mongo:
            await self._kept.close()

    def _believe(self, rollout_id: str, attempt_id: str) -> None:
        """Refuse data about an attempt that was not given to a runner of this run."""
        if (rollout_id, attempt_id) not in self._held:
            raise HTTPException(403, f"no runner of this run holds attempt {attempt_id} of rollout {rollout_id}")

    def _wake(self) -> None:
        with self._waiting_lock:
            for loop, event in self._waiting:
                loop.call_soon_threadsafe(event.set)


def _read_again_when_changed(memory: agl.InMemoryLightningStore) -> None:
    """Make reads start again if another thread has changed the collection that they iterate over.

    agentlightning 0.3.0 reads without its lock, even if thread-safe. Its setting to read with the lock locks twice.
    """
    collections = memory.collections
    for collection in (collections.rollouts, collections.attempts, collections.spans, collections.workers):
        for name in ("query", "get"):
            vars(collection)[name] = _persistent(getattr(collection, name))


def _persistent(read: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    async def again(*args: Any, **kwargs: Any) -> Any:
        while True:
            try:
                return await read(*args, **kwargs)
            except RuntimeError as error:
                if "changed size during iteration" not in str(error):
                    raise

    return again
