"""A worker: a society that works on one task at a time, and gives the record and the trace of what it did.

Every rollout of training, gates, evaluations and replays is made by one, in this process or in an actor of Ray: the
society works on a task, the judge scores the result, and the reward is computed.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

from agents.context import AS_CONFIGURED, LearnedSociety, Selector, Tools
from agents.society import Society, Start
from agents.visit.record import CallRecord, by_visit, count, dump, tokens, tool_calls
from chimera.config.tree import Config
from chimera.core.errors import ChimeraError, ModelError, RateLimitError, RoleError, UnreachableError
from chimera.core.files import parse_json
from chimera.core.rate_limits import TimeLimit
from chimera.serving.client import Completion, Endpoint, HttpModel
from evaluation.records.rollouts import Outcome, RolloutInput, RolloutRecord
from evaluation.rollout.faults import FaultyTools
from evaluation.scores.judge import Judge
from evaluation.scores.rewards import Reward, compute_reward
from evaluation.traces import spans

ATTEMPT = "direct"
"""The attempt id in traces: every rollout has one attempt."""

Result = tuple[RolloutRecord, list[spans.Span]]
"""A rollout's record and its trace."""

_responses: ContextVar[list[str]] = ContextVar("responses")
"""Ids of the responses to the current visit. Each visit runs in its own context."""


@dataclass(frozen=True, slots=True)
class Job:
    """A rollout that is to be made, and all that a worker needs to know for it.

    Attributes:
        rollout_id: Its id in records and traces.
        input: The task with its seed, and the phase under which it is recorded.
        endpoints: Where each slot's model answers.
        versions: What is live, or works as a candidate: the policy versions that the record will name.
        selector: Gives who chooses among hypotheses; called within the rollout, perhaps in another process. A policy
            that cannot be read is the rollout's failure.
        scored: Slots whose models are asked how likely each token was.
        start: Where the society begins; None for the whole task. The reward is that of the whole task, all counts are
            of what is done now.
        mode: "train" for rollouts to learn from, "val" for held-out tasks.
        learned: What was learned for the society as a whole.
        faults: Share of tool calls that fail.
    """

    rollout_id: str
    input: RolloutInput
    endpoints: Mapping[str, Endpoint]
    versions: Mapping[str, str]
    selector: Callable[[], Selector]
    scored: frozenset[str] = frozenset()
    start: Start | None = None
    mode: Literal["train", "val"] = "val"
    learned: LearnedSociety = AS_CONFIGURED
    faults: float = 0.0


class Worker(Protocol):
    """Makes one rollout at a time. `SocietyWorker` does it in this process."""

    async def rollout(self, job: Job) -> Result:
        """Make a rollout; nothing is written. One that failed says so in its record.

        Raises:
            UnreachableError: A model server cannot be reached, which says nothing about the society.
        """
        ...


class SocietyWorker:
    """A `Worker` with a society of its own, which is built once. It keeps the spans of its rollout in memory.

    Args:
        config: Says also which servers are asked for token ids. Other servers may refuse the unknown option.
        model: Reaches the servers; workers may share it.
    """

    def __init__(self, config: Config, model: HttpModel, toolbox: Tools) -> None:
        self._config = config
        self._with_ids = frozenset(name for name, settings in config.models.items() if settings.kind != "endpoint")
        self._servers = model
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

    async def rollout(self, job: Job) -> Result:
        """See `Worker.rollout`; whatever fails is the rollout's outcome."""
        self._job, self._model = job, self._servers.at(job.endpoints)
        self._seen: set[str] = set()
        self._spans: list[spans.Span] = []
        self._records: list[CallRecord] = []
        self._tokens = (0, 0)
        self._weights: dict[str, set[str]] = {}
        self._refused: RateLimitError | None = None
        self._tools.begin(job.input.seed, job.faults)
        started = time.perf_counter()
        try:
            outputs, reward = await self._work(job)
        except Exception as error:  # A bad rollout is data, and says why it failed.
            if (gone := _unreachable(error)) is not None:
                raise gone from error
            outcome = self._outcome({}, None, started, _sentence(error))
            self._spans.append(spans.exception_span(self._position(time.time()), error))
        else:
            outcome = self._outcome(outputs, reward, started, None)
            self._spans.append(spans.reward_span(self._position(time.time()), outcome.reward, outcome.parts))
        self._spans.append(spans.outcome_span(self._position(time.time()), outcome.dump()))
        return RolloutRecord.of(job.input, outcome, job.rollout_id, job.versions), self._spans

    async def _work(self, job: Job) -> tuple[dict[str, Any], Reward]:
        """The society's outputs on the task, and their reward."""
        selector, limit = job.selector(), self._config.rollouts.timeout_s
        deadline = TimeLimit(limit)
        try:
            async with deadline:
                state = await self._society.run(
                    job.input.task.brief(), job.input.seed, select=selector, learned=job.learned, start=job.start
                )
        except TimeoutError as error:
            if not deadline.expired():
                raise
            raise RoleError("society", f"took longer than {limit:g} s (rollouts.timeout_s)") from error
        records = [*(job.start.records if job.start else ()), *self._records]
        reward = compute_reward(state, records, job.input.task, self._config.reward)
        if self._refused is not None:  # The judge's calls too, which a rollout goes on without.
            raise self._refused
        return {key: value for key, value in state.items() if key != "messages"}, reward

    async def complete(self, key: str, messages: Sequence[Mapping[str, Any]], **options: Any) -> Completion:
        """The answer of the society's or the judge's model; request and answer are noted for the trace."""
        request = self._model.request(key, messages, **options)
        request |= {"return_token_ids": True} if key in self._with_ids else {}
        request |= {"logprobs": True} if key in self._job.scored else {}
        started = time.time()
        try:
            body, where = await self._model.ask(key, request), self._model.where(key)
        except RateLimitError as error:
            self._refused = error
            raise
        completion = self._model.read(key, body)[0]
        try:
            response = parse_json(body)
        except ValueError as error:
            raise ModelError(f"{where} answered 200 with what a trace cannot hold: {error}", retriable=True) from error
        # Some servers give no ids, or draw them from a small range; a trace needs one for each answer.
        if not completion.response_id or completion.response_id in self._seen:
            response["id"] = f"{completion.response_id or 'answer'}-{len(self._seen)}"
            completion = replace(completion, response_id=response["id"])
        self._seen.add(completion.response_id)
        if key not in self._with_ids:  # As the conversation holds it: in a form that all readers know.
            response["choices"][0]["message"] = completion.message
        self._spans.append(spans.exchange_span(self._position(started), self._model.sent(key, request), response))
        _responses.get().append(completion.response_id)
        read, written = self._tokens
        self._tokens = read + completion.prompt_tokens, written + completion.completion_tokens
        if completion.weights_version is not None:
            self._weights.setdefault(key, set()).add(completion.weights_version)
        return completion

    @contextmanager
    def _operation(self, name: str, attributes: dict[str, Any]) -> Iterator[None]:
        """A span around one visit of a role, with the ids of its responses."""
        started, failure = time.time(), None
        responses: list[str] = []
        token = _responses.set(responses)
        try:
            yield
        except Exception as error:
            failure = error
            raise
        finally:
            _responses.reset(token)
            at = self._position(started)
            self._spans.append(spans.operation_span(at, name, attributes, responses, failure))

    def _observe(self, record: CallRecord) -> None:
        self._records.append(record)

    def _position(self, started: float) -> spans.Position:
        """Position in the trace of a span that began at `started` and ends now."""
        return spans.Position(self._job.rollout_id, ATTEMPT, len(self._spans) + 1, started, time.time())

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


def _sentence(error: Exception) -> str:
    """The error as one sentence. For errors that are not Chimera's, the type comes first."""
    return str(error) if isinstance(error, ChimeraError) else f"{type(error).__name__}: {error}"


def _unreachable(error: BaseException | None) -> UnreachableError | None:
    """The UnreachableError in the causes of `error`, if there is one."""
    while error is not None and not isinstance(error, UnreachableError):
        error = error.__cause__
    return error
