"""The society as an Agent Lightning agent: one task in, one trace with a reward out."""

import asyncio
import contextvars
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import agentlightning as agl

from agents.context import Selector
from agents.policies.choice import make_selector
from agents.record import CallRecord, by_visit, count, dump, tokens, tool_calls
from agents.society import Society
from agents.tools.toolbox import Toolbox
from chimera.config.roles import JUDGE
from chimera.config.tree import Config
from chimera.core.errors import ChimeraError, ModelError, RoleError, UnreachableError
from chimera.serving.client import Completion, HttpModel
from evaluation.records.rollouts import Outcome, RolloutInput
from evaluation.scores.judge import Judge
from evaluation.scores.rewards import Reward, compute_reward
from training.lab import resources as model_resources
from training.lab.gateway.litellm import plain_error
from training.lab.gateway.spec import START_SECONDS

REWARD_KEY = "reward"
GATEWAY_SECONDS = START_SECONDS
"""How long a call waits for the gateway: one that was killed is started again at its address."""

_responses: contextvars.ContextVar[list[str]] = contextvars.ContextVar("responses")
"""Ids of the responses that the visit in progress has got; each visit runs in its own context."""


class TracedModel(HttpModel):
    """The HTTP model, which notes each response's id for the visit that asked, and the weights behind it."""

    weights_versions: dict[str, set[str]]

    async def complete(self, key: str, messages: Sequence[Mapping[str, Any]], **options: Any) -> Completion:
        """Answer as `HttpModel` does."""
        try:
            completion = await self._patiently(key, messages, **options)
        except ModelError as error:
            raise ModelError(plain_error(str(error)), retriable=error.retriable) from error
        _responses.get().append(completion.response_id)
        if completion.weights_version is not None:
            self.weights_versions.setdefault(key, set()).add(completion.weights_version)
        return completion

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
def traced_operation(name: str, attributes: dict[str, Any]) -> Iterator[None]:
    """Agent Lightning's operation span around one visit of a role; the ids of its responses are its output."""
    token = _responses.set([])
    try:
        with agl.operation(name=name, **attributes) as operation:
            try:
                yield
            finally:
                operation.set_output({"response_ids": _responses.get()})
    finally:
        _responses.reset(token)


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
        self._model = TracedModel({})
        self._records: list[CallRecord] = []
        self._society = Society(
            self._model,
            toolbox,
            config.society,
            config.roles.slots(),
            evaluate=Judge(self._model, config.slot(JUDGE)).evaluate,
            operation=traced_operation,
            observe=self._observe,
        )

    async def rollout_async(self, task: dict[str, Any], resources: agl.NamedResources, rollout: agl.Rollout) -> None:
        """Answer one task and emit its reward and outcome; a failure is emitted too and then raised."""
        assert isinstance(rollout, agl.AttemptedRollout)
        given = RolloutInput.load(task)
        self._model.route(model_resources.endpoints(resources, rollout, self._config.models, *self._gateway))
        self._model.weights_versions = {}
        self._records = []
        started = time.perf_counter()
        try:
            state = await self._run(given, self._selector(resources, rollout))
            reward = compute_reward(state, self._records, given.task, self._config.reward)
        except Exception as error:
            agl.emit_exception(error)
            agl.emit_object(self._outcome({}, None, started, _reason(error)).dump())
            raise
        emit_parts(reward)
        outputs = {key: value for key, value in state.items() if key != "messages"}
        agl.emit_object(self._outcome(outputs, reward, started, None).dump())

    def _observe(self, record: CallRecord) -> None:
        self._records.append(record)

    def _selector(self, resources: agl.NamedResources, rollout: agl.Rollout) -> Selector:
        """Who chooses among hypotheses; nothing is explored on held-out tasks."""
        return make_selector(model_resources.selection(resources), greedy=rollout.mode == "val")

    async def _run(self, given: RolloutInput, select: Selector) -> Mapping[str, Any]:
        limit = self._config.rollouts.timeout_s
        deadline = asyncio.timeout(limit)
        try:
            async with deadline:
                return await self._society.run(given.task.brief(), seed=given.seed, select=select)
        except TimeoutError as error:
            if not deadline.expired():
                raise
            raise RoleError("society", f"took longer than {limit:g} s (rollouts.timeout_s)") from error

    def _outcome(self, outputs: dict[str, Any], reward: Reward | None, started: float, error: str | None) -> Outcome:
        return Outcome(
            error=error,
            outputs=outputs,
            reward=None if reward is None else reward.total,
            parts={} if reward is None else dict(reward.parts),
            weights_versions={model: sorted(seen) for model, seen in self._model.weights_versions.items()},
            counts=count(self._records),
            tokens=tokens(self._records),
            visits=by_visit(self._records),
            tool_calls=tool_calls(self._records),
            calls=[dump(record) for record in self._records],
            seconds=round(time.perf_counter() - started, 3),
        )


def emit_parts(reward: Reward) -> None:
    """Emit the reward with its named parts; without a total the parts that are known are kept as an annotation."""
    known = {name: value for name, value in reward.parts.items() if value is not None}
    if reward.total is None:
        agl.emit_annotation({"reward_parts": known})
    else:
        agl.emit_reward({REWARD_KEY: reward.total, **known}, primary_key=REWARD_KEY)


def _reason(error: Exception) -> str:
    """One sentence; ours already are, others say what they are."""
    return str(error) if isinstance(error, ChimeraError) else f"{type(error).__name__}: {error}"
