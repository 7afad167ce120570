"""The society as an Agent Lightning agent: one task in, one trace with a reward out."""

import asyncio
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
from evaluation.traces.spans import REWARD, REWARD_PARTS
from training.lab import resources as model_resources
from training.lab.gateway.litellm import plain_error
from training.lab.gateway.spec import START_SECONDS

GATEWAY_SECONDS = START_SECONDS
"""How long a call waits for the gateway: one that was killed is started again at its address."""


class GatewayTransport(HttpModel):
    """Asks the gateway, which records each exchange; visits are spans of Agent Lightning's tracer."""

    async def complete(self, key: str, messages: Sequence[Mapping[str, Any]], **options: Any) -> Completion:
        """Answer as `HttpModel` does."""
        try:
            return await self._patiently(key, messages, **options)
        except ModelError as error:
            raise ModelError(plain_error(str(error)), retriable=error.retriable) from error

    async def _patiently(self, key: str, messages: Sequence[Mapping[str, Any]], **options: Any) -> Completion:
        """Ask, again and again while the gateway cannot be reached; the same seed gives the same answer."""
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
        """Agent Lightning's operation span around one visit of a role; the ids of its responses are its output."""
        with agl.operation(name=name, **attributes) as operation:
            try:
                yield
            finally:
                operation.set_output({"response_ids": list(responses)})


class MedicalResearchAgent(agl.LitAgent[dict[str, Any]]):
    """Runs the society on one task at a time; the society and its tools are built once.

    Args:
        config: The whole configuration.
        toolbox: The society's tools.
        gateway_url: The run's own gateway; calls go nowhere else, whatever the resources say.
        gateway_key: What the gateway asks callers for.
    """

    def __init__(self, config: Config, toolbox: Toolbox, gateway_url: str, gateway_key: str) -> None:
        super().__init__()
        self._config = config
        self._gateway = gateway_url, gateway_key
        self._transport = GatewayTransport({})
        self._maker = RolloutMaker(config, self._transport, toolbox)

    async def rollout_async(self, task: dict[str, Any], resources: agl.NamedResources, rollout: agl.Rollout) -> None:
        """Answer one task and emit its reward and outcome; a failure is emitted too and then raised."""
        assert isinstance(rollout, agl.AttemptedRollout)
        self._transport.route(model_resources.endpoints(resources, rollout, self._config.models, *self._gateway))
        ended = await self._maker.make(RolloutInput.load(task), partial(_selector, resources, rollout))
        emit(ended)
        if ended.failure is not None:
            raise ended.failure


def _selector(resources: agl.NamedResources, rollout: agl.Rollout) -> Selector:
    """Who chooses among hypotheses; nothing is explored on held-out tasks."""
    return make_selector(model_resources.selection(resources), greedy=rollout.mode == "val")


def emit(ended: EndedRollout) -> None:
    """Emit what came of a rollout: its failure or its reward, then its outcome."""
    outcome = ended.outcome
    if ended.failure is None:
        emit_parts(Reward(outcome.parts, outcome.reward))
    else:
        agl.emit_exception(ended.failure)
    agl.emit_object(outcome.dump())


def emit_parts(reward: Reward) -> None:
    """Emit the reward with its named parts; without a total the parts that are known are kept as an annotation."""
    known = {name: value for name, value in reward.parts.items() if value is not None}
    if reward.total is None:
        agl.emit_annotation({REWARD_PARTS: known})
    else:
        agl.emit_reward({REWARD: reward.total, **known}, primary_key=REWARD)
