"""A runner process: takes rollouts from the store one at a time and runs the society on them."""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import agentlightning as agl

from agents.tools import Document, Toolbox, build_toolbox
from chimera.config import Config
from chimera.data import Dataset
from chimera.fingerprints import Fingerprint
from chimera.secrets import protect_logging, register_secret
from training.agent import MedicalResearchAgent
from training.telemetry import RolloutTracer, use_plain_resources


@dataclass(frozen=True, slots=True)
class RunnerSpec:
    """What every runner process needs; of the tasks' conclusions only fingerprints, by task id."""

    store_url: str
    config: Config
    documents: Sequence[Document]
    conclusions: Mapping[str, Fingerprint]
    gateway_key: str = field(repr=False)
    secrets: Mapping[str, str] = field(repr=False)

    @classmethod
    def of(cls, store_url: str, config: Config, dataset: Dataset, gateway_key: str, secrets: Mapping[str, str]) -> Self:
        """What runners may have of `dataset`, with the rest."""
        return cls(store_url, config, dataset.documents(), dataset.conclusions(), gateway_key, secrets)

    def toolbox(self) -> Toolbox:
        """The tools of the society that a runner runs."""
        return build_toolbox(self.config.tools, self.documents, self.secrets, conclusions=self.conclusions)


def worker_name(number: int) -> str:
    """How the store names runner `number`."""
    return f"Worker-{number}"


def serve(spec: RunnerSpec, number: int) -> None:
    """The runner process: work until it is ended. `number` must not be used twice in a run."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s", force=True)
    for name, value in {**spec.secrets, "gateway key": spec.gateway_key}.items():
        register_secret(name, value)
    protect_logging()
    use_plain_resources()
    agent = MedicalResearchAgent(spec.config, spec.toolbox(), spec.gateway_key)
    # The store answers a request for work only when there is some, so there is nothing to wait for between requests.
    runner: agl.LitAgentRunner[dict[str, Any]] = agl.LitAgentRunner(
        tracer=RolloutTracer(), poll_interval=0.05, interval_jitter=0.02, heartbeat_interval=30.0
    )
    runner.init(agent)
    runner.init_worker(number, agl.LightningStoreClient(spec.store_url))
    asyncio.run(runner.iter())
