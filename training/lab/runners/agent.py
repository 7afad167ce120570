"""The society as an Agent Lightning agent: takes one task and emits one trace with a reward."""

import asyncio
import ssl
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import agentlightning as agl

from agents.context import Selector
from agents.policies.choice import make_selector
from agents.tools.toolbox import Toolbox
from chimera.config.tree import Config
from chimera.core.errors import ModelError, UnreachableError
from chimera.serving.client import Completion, HttpModel
from evaluation.conduct.rollout import EndedRollout, RolloutMaker
from evaluation.records.rollouts import RolloutInput
from evaluation.scores.rewards import Reward
from evaluation.traces.spans import REWARD, REWARD_PARTS, agent_names
from training.lab import resources as model_resources
from training.lab.gateway.litellm import plain_error
from training.lab.gateway.spec import START_SECONDS

GATEWAY_SECONDS = START_SECONDS
"""Time that a call waits for the gateway. A gateway that was killed is restarted at the same address."""


class GatewayTransport(HttpModel):
    """Calls models through the gateway, which records each exchange. Visits are spans of Agent Lightning's tracer."""

    async def complete(self, key: str, messages: Sequence[Mapping[str, Any]], **options: Any) -> Completion:
        """Return the model's answer, as `HttpModel` does."""
        try:
            return await self._patiently(key, messages, **options)
        except ModelError as error:
            raise ModelError(plain_error(str(error)), retriable=error.retriable) from error

    async def _patiently(self, key: str, messages: Sequence[Mapping[str, Any]], **options: Any) -> Completion:
        """Repeat the call while the gateway cannot be reached. Equal seeds give equal answers."""
        deadline = time.monotonic() + GATEWAY_SECONDS
        while True:
            try:
                return await super().complete(key, messages, **options)
            except UnreachableError:
                if time.monotonic() > deadline:
                    raise
            await asyncio.sleep(0.2)

    @contextmanager
    def operation(self, name: str, attributes: dict[str, Any], responses: Sequence[str]) -> Iterator[None]:
        """Agent Lightning's operation span around one visit of a role. Its output is the visit's response ids."""
        with agl.operation(name=name, **agent_names(attributes)) as operation:
            try:
                yield
            finally:
                operation.set_output({"response_ids": list(responses)})


class MedicalResearchAgent(agl.LitAgent[dict[str, Any]]):
    """Runs the society on one task at a time; the society and its tools are built once.

    Args:
        gateway_url: The run's gateway. Calls go nowhere else, whatever the resources say.
        tls: How the gateway is verified where it speaks HTTPS.
    """

    def __init__(
        self,
        config: Config,
        toolbox: Toolbox,
        gateway_url: str,
        gateway_key: str,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        super().__init__()
        self._config = config
        self._gateway = gateway_url, gateway_key
        self._transport = GatewayTransport({}, tls=tls)
        self._maker = RolloutMaker(config, self._transport, toolbox)

    async def close(self) -> None:
        await self._transport.aclose()

    async def rollout_async(self, task: dict[str, Any], resources: agl.NamedResources, rollout: agl.Rollout) -> None:
        """Answer one task and emit its reward and outcome. A failure is emitted and then raised."""
        assert isinstance(rollout, agl.AttemptedRollout)
        self._transport.route(model_resources.endpoints(resources, rollout, self._config.models, *self._gateway))
        ended = await self._maker.make(RolloutInput.load(task), partial(_selector, resources, rollout))
        emit(ended)
        if ended.failure is not None:
            raise ended.failure


def _selector(resources: agl.NamedResources, rollout: agl.Rollout) -> Selector:
    """The selector among hypotheses, without exploration on held-out tasks."""
    return make_selector(model_resources.selection(resources), greedy=rollout.mode == "val")


def emit(ended: EndedRollout) -> None:
    """Emit a rollout's failure or reward, then its outcome."""
    outcome = ended.outcome
    if ended.failure is None:
        emit_parts(Reward(outcome.parts, outcome.reward))
    else:
        agl.emit_exception(ended.failure)
    agl.emit_object(outcome.dump())


def emit_parts(reward: Reward) -> None:
    """Emit the reward with its named parts. If the total is None, the known parts are emitted as an annotation."""
    known = {name: value for name, value in reward.parts.items() if value is not None}
    if reward.total is None:
        agl.emit_annotation({REWARD_PARTS: known})
    else:
        agl.emit_reward({REWARD: reward.total, **known}, primary_key=REWARD)
