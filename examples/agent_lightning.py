"""The society in Agent Lightning's own Trainer, with its store server, runner processes and LLMProxy as released.

    python -m examples.agent_lightning

Chimera's runs need none of these: they make rollouts in their own process. This is for people who have a Trainer.
"""

import agentlightning as agl  # isort: skip  Before Chimera's packages, which postpone the import of LiteLLM.

import logging
import os
import secrets
import tempfile
from pathlib import Path
from typing import Any

from agentlightning.utils.server_launcher import PythonServerLauncherArgs

from agents.context import SupervisorChoice, Tools
from agents.tools.toolbox import build_toolbox
from chimera.config.tree import Config
from chimera.core.machine import free_port
from chimera.data.tasks import load
from chimera.serving.client import Endpoint, HttpModel
from chimera.serving.process import ModelServers, serve
from evaluation.records.rollouts import RolloutInput
from evaluation.rollout.worker import Job, SocietyWorker
from evaluation.traces.spans import EXCHANGE
from training.learning.adapter import HierarchicalTraceAdapter

TASKS = 2


class TrainerAgent(agl.LitAgent[dict[str, Any]]):
    """The society; resources say where each slot's model is, and the proxy records each call of it."""

    def __init__(self, config: Config, toolbox: Tools, key: str) -> None:
        super().__init__()
        self._worker, self._key = SocietyWorker(config, HttpModel({}), toolbox), key

    async def rollout_async(self, task: dict[str, Any], resources: agl.NamedResources, rollout: agl.Rollout) -> None:
        """Answer one task, and give Agent Lightning its visits, its reward and its outcome as spans."""
        assert isinstance(rollout, agl.AttemptedRollout)
        endpoints: dict[str, Endpoint] = {}
        for slot, proxy in resources.items():
            assert isinstance(proxy, agl.ProxyLLM)
            url = proxy.get_base_url(rollout.rollout_id, rollout.attempt.attempt_id)
            endpoints[slot] = Endpoint(f"{url}/v1", slot, self._key)
        input_ = RolloutInput.load(task)
        record, trace = await self._worker.rollout(Job(rollout.rollout_id, input_, endpoints, {}, SupervisorChoice))
        for span in trace:
            if span.name != EXCHANGE:
                self.tracer.create_span(span.name, dict(span.attributes))
        if record.status == "failed":
            raise RuntimeError(record.error)


class GatherOnce(agl.Algorithm):
    """Has each task worked on once, and prints what the adapter makes of the traces."""

    def __init__(self, slots: list[str]) -> None:
        super().__init__()
        self._slots = slots

    async def run(self, train_dataset: Any = None, val_dataset: Any = None) -> None:
        """See `agl.Algorithm.run`."""
        store, proxy, adapter = self.get_store(), self.get_llm_proxy(), self.get_adapter()
        assert proxy is not None
        await proxy.start()
        try:
            await store.add_resources({slot: proxy.as_resource(model=slot) for slot in self._slots})
            ids = [(await store.enqueue_rollout(task, mode="train")).rollout_id for task in train_dataset]
            for rollout in await store.wait_for_rollouts(rollout_ids=ids, timeout=1200):
                spans = list(await store.query_spans(rollout.rollout_id))
                triplets, reward = adapter.adapt(spans), agl.find_final_reward(spans)
                print(f"{rollout.status}: reward {reward}, {len(triplets)} triplets with token ids", flush=True)
        finally:
            await proxy.stop()


def main() -> None:
    """Answer some tasks with the bundled model."""
    config = Config()
    dataset = load(config.data)
    tasks = [RolloutInput.of(task, "example", 0, 0).dump() for task in dataset.train[:TASKS]]
    with (
        tempfile.TemporaryDirectory() as folder,
        serve(config.served(), config.serving, {}, log_file=Path(folder) / "models.log") as servers,
    ):
        key = os.environ["LITELLM_MASTER_KEY"] = f"sk-{secrets.token_urlsafe(24)}"
        trainer = agl.Trainer(
            algorithm=GatherOnce(list(servers.endpoints)),
            strategy=agl.ClientServerExecutionStrategy(n_runners=2, server_host="127.0.0.1", server_port=free_port()),
            adapter=HierarchicalTraceAdapter(config.reward, roles=["HypothesisRefiner", "ProtocolDesigner"]),
            tracer=agl.OtelTracer(),
            llm_proxy=agl.LLMProxy(model_list=models(servers), launcher_args=launcher()),
        )
        trainer.fit(TrainerAgent(config, build_toolbox(config.tools, dataset.documents(), {}), key), tasks)


def models(servers: ModelServers) -> Any:
    """LiteLLM's list of models; it knows how to ask vLLM for token ids, and Chimera's server answers alike."""
    return [
        {
            "model_name": slot,
            "litellm_params": {
                "model": f"hosted_vllm/{endpoint.model}",
                "api_base": endpoint.base_url,
                "api_key": endpoint.api_key,
            },
        }
        for slot, endpoint in servers.endpoints.items()
    ]


def launcher() -> PythonServerLauncherArgs:
    """The proxy on loopback; its default health check would need the key."""
    return PythonServerLauncherArgs(
        host="127.0.0.1",
        access_host="127.0.0.1",
        port=free_port(),
        healthcheck_url="/health/liveliness",
        launch_mode="mp",
        log_level=logging.WARNING,
    )


if __name__ == "__main__":
    logging.getLogger("agentlightning").setLevel(logging.WARNING)
    main()
