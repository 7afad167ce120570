"""A runner process: takes rollouts from the store one at a time and runs the society on them."""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import agentlightning as agl
import aiohttp

from agents.tools.own import TOOL_KEYS
from agents.tools.passages import DocumentLike
from agents.tools.toolbox import Toolbox, build_toolbox
from chimera.config.tree import Config
from chimera.core.fingerprints import Fingerprint
from chimera.core.secrets import protect_logging, register_secret
from chimera.data.tasks import Dataset
from chimera.serving.tls import context_for, trusted_files
from training.lab.runners.agent import MedicalResearchAgent
from training.lab.runners.telemetry import RolloutTracer, use_plain_resources
from training.lab.store import KeyedStoreClient


@dataclass(frozen=True, slots=True)
class Doors:
    """Addresses for runners, and their keys. Keys are not resources, so that none reaches the store.

    `authority` is the file of the authority that must have signed the certificates of store and gateway where they
    speak HTTPS; None: one that the system trusts.
    """

    store_url: str
    gateway_url: str
    store_key: str = field(repr=False)
    gateway_key: str = field(repr=False)
    authority: str | None = None


@dataclass(frozen=True, slots=True)
class RunnerSpec:
    """Specification of a runner process. It has only fingerprints of the tasks' conclusions, by task id."""

    doors: Doors
    config: Config
    documents: Sequence[DocumentLike]
    conclusions: Mapping[str, Fingerprint]
    secrets: Mapping[str, str] = field(repr=False)

    @classmethod
    def of(cls, doors: Doors, config: Config, dataset: Dataset, secrets: Mapping[str, str]) -> Self:
        """Make the specification with the parts of `dataset` and `secrets` that runners may have: no keys of models."""
        known = {name: secrets[name] for name in (*TOOL_KEYS, *config.tools.secret_names()) if name in secrets}
        return cls(doors, config, dataset.documents(), dataset.conclusions(), known)

    def toolbox(self) -> Toolbox:
        """The tools of the society that a runner runs."""
        config = self.config
        return build_toolbox(
            config.tools, self.documents, self.secrets, roles=config.roles, conclusions=self.conclusions
        )


def worker_name(number: int) -> str:
    return f"Worker-{number}"


def serve(spec: RunnerSpec, number: int, *, ends: bool = False) -> None:
    """The runner process: work until it is killed. Each `number` may be used only once in a run.

    Args:
        ends: True to return when the store can no longer be reached, because the run has ended.
    """
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s", force=True)
    doors = spec.doors
    for name, value in {**spec.secrets, "gateway key": doors.gateway_key, "store key": doors.store_key}.items():
        register_secret(name, value)
    protect_logging()
    use_plain_resources()
    agent = MedicalResearchAgent(
        spec.config,
        spec.toolbox(),
        doors.gateway_url,
        doors.gateway_key,
        context_for(doors.gateway_url, doors.authority),
    )
    # The store answers a request for work only when there is some, so the runner need not wait between requests.
    runner: agl.LitAgentRunner[dict[str, Any]] = agl.LitAgentRunner(
        tracer=RolloutTracer(doors.store_key, trusted_files(doors.authority)),
        poll_interval=0.05,
        interval_jitter=0.02,
        heartbeat_interval=30.0,
    )
    runner.init(agent)
    store = KeyedStoreClient(doors.store_url, doors.store_key, doors.authority)
    runner.init_worker(number, store)

    async def work() -> None:
        try:
            await runner.iter()
        finally:
            await agent.close()
            await store.close()

    try:
        asyncio.run(work())
    except aiohttp.ClientConnectionError:
        if not ends:
            raise
