"""One rollout: the society works on one task, the judge scores the result, and the reward is computed.

A transport says how a model is reached, and where spans go (`evaluation.rollout.worker`).
"""

import contextvars
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from agents.context import AS_CONFIGURED, LearnedSociety, Selector, Tools
from agents.society import Society
from agents.state import ResearchState
from agents.visit.record import CallRecord, by_visit, count, dump, tokens, tool_calls
from chimera.config.tree import Config
from chimera.core.errors import ChimeraError, RateLimitError, RoleError
from chimera.core.rate_limits import TimeLimit
from chimera.run.directory import Run
from chimera.serving.client import Completion, Model
from evaluation.records.rollouts import Outcome, RolloutInput, RolloutRecord
from evaluation.rollout.faults import FaultyTools
from evaluation.scores.judge import Judge
from evaluation.scores.rewards import Reward, compute_reward
from evaluation.telemetry.sender import recorded
from evaluation.traces import spans

_responses: contextvars.ContextVar[list[str]] = contextvars.ContextVar("responses")
"""Ids of the responses to the current visit. Each visit runs in its own context."""


class Transport(Model, Protocol):
    """How a rollout reaches the models, and where its spans go."""

    def operation(
        self, name: str, attributes: dict[str, Any], responses: Sequence[str]
    ) -> AbstractContextManager[None]:
        """A span around one visit of a role. When the visit ends, `responses` holds the ids of its responses."""
        ...


@dataclass(frozen=True, slots=True)
class EndedRollout:
    """Result of a rollout. `failure` is the exception that ended it; its sentence is the outcome's `error`."""

    outcome: Outcome
    failure: Exception | None


@dataclass(frozen=True, slots=True)
class Start:
    """Where a rollout begins that goes on from a recorded one.

    Attributes:
        records: The calls that it took, for the reward.
    """

    role: str
    state: ResearchState
    records: Sequence[CallRecord]


class RolloutMaker:
    """Runs the society, which is built once, on one task at a time."""

    def __init__(self, config: Config, transport: Transport, toolbox: Tools) -> None:
        self._config = config
        self._transport = transport
        self._records: list[CallRecord] = []
        self._tokens = (0, 0)
        self._weights: dict[str, set[str]] = {}
        self._refused: RateLimitError | None = None
        self._tools = FaultyTools(toolbox)
        self._society = Society(
            self,
            self._tools,
            config.society,
            config.roles,
            evaluate=Judge(self, config.judge_of).evaluate,
            operation=self._operation,
            observe=self._observe,
            timeout_s=config.rollouts.timeout_s,
        )

    async def make(
        self,
        rollout_input: RolloutInput,
        selector: Callable[[], Selector],
        start: Start | None = None,
        learned: LearnedSociety = AS_CONFIGURED,
        faults: float = 0.0,
    ) -> EndedRollout:
        """Run the society on one task; whatever fails is this rollout's outcome.

        Args:
            selector: Gives who chooses among hypotheses. It is called within the rollout: a policy that cannot be read
                is the rollout's failure.
            start: Where the society begins; None for the whole task. The reward is that of the whole task, all
                counts are of what is done now.
            learned: What was learned for the society as a whole.
            faults: Share of tool calls that fail.
        """
        self._tools.begin(rollout_input.seed, faults)
        self._records, self._tokens, self._weights, self._refused = [], (0, 0), {}, None
        started = time.perf_counter()
        try:
            state = await self._run(rollout_input, start, {"select": selector(), "learned": learned})
            records = [*(start.records if start else ()), *self._records]
            reward = compute_reward(state, records, rollout_input.task, self._config.reward)
            if self._refused is not None:  # The judge's calls too, which a rollout goes on without.
                raise self._refused
        except Exception as error:  # noqa: BLE001  a bad rollout is data, and says why it failed
            return EndedRollout(self._outcome({}, None, started, _sentence(error)), error)
        outputs = {key: value for key, value in state.items() if key != "messages"}
        return EndedRollout(self._outcome(outputs, reward, started, None), None)

    async def complete(self, key: str, messages: Sequence[Mapping[str, Any]], **options: Any) -> Completion:
        """Answer through the transport, and note the answer's id and weights."""
        try:
            completion = await self._transport.complete(key, messages, **options)
        except RateLimitError as error:
            self._refused = error
            raise
        _responses.get().append(completion.response_id)
        read, written = self._tokens
        self._tokens = read + completion.prompt_tokens, written + completion.completion_tokens
        if completion.weights_version is not None:
            self._weights.setdefault(key, set()).add(completion.weights_version)
        return completion

    @contextmanager
    def _operation(self, name: str, attributes: dict[str, Any]) -> Iterator[None]:
        responses: list[str] = []
        token = _responses.set(responses)
        try:
            with self._transport.operation(name, attributes, responses):
                yield
        finally:
            _responses.reset(token)

    def _observe(self, record: CallRecord) -> None:
        self._records.append(record)

    async def _run(
        self, rollout_input: RolloutInput, start: Start | None, policies: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        brief, seed = rollout_input.task.brief(), rollout_input.seed
        limit = self._config.rollouts.timeout_s
        deadline = TimeLimit(limit)
        try:
            async with deadline:
                if start is None:
                    return await self._society.run(brief, seed, **policies)
                return await self._society.run_from(start.role, start.state, brief, seed, **policies)
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
            weights_versions={model: sorted(seen) for model, seen in self._weights.items()},
            counts=self._counts(),
            tokens=tokens(self._records),
            visits=by_visit(self._records),
            tool_calls=tool_calls(self._records, self._config.roles.tool_names()),
            calls=[dump(record) for record in self._records],
            seconds=round(time.perf_counter() - started, 3),
        )

    def _counts(self) -> dict[str, int]:
        """Totals of the society's calls, and the tokens of all others: the judge's, if a model judges."""
        counts = count(self._records)
        judge = {
            "judge_prompt_tokens": self._tokens[0] - counts["prompt_tokens"],
            "judge_completion_tokens": self._tokens[1] - counts["completion_tokens"],
        }
        return counts | judge if any(judge.values()) else counts


def keep(run: Run, record: RolloutRecord, trace: Sequence[spans.Span]) -> list[spans.Span]:
    """Write a rollout to disk, its trace first, so that no record names a missing trace. Then telemetry gets it.

    Returns:
        The trace as written: without bookkeeping spans and secrets.
    """
    kept_spans = [] if record.trace is None else spans.write(trace, run.path / record.trace)
    run.append_rollout(record.dump(), phase=record.phase)
    recorded(run, record, kept_spans)
    return kept_spans


def _sentence(error: Exception) -> str:
    """The error as one sentence. For errors that are not Chimera's, the type comes first."""
    return str(error) if isinstance(error, ChimeraError) else f"{type(error).__name__}: {error}"
