"""A worker: a society that works on one task at a time, and gives the record and the trace of what it did.

Every rollout of training, gates, evaluations and replays is made by one, in this process or in an actor of Ray.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

from agents.context import AS_CONFIGURED, LearnedSociety, Selector, Tools
from chimera.config.tree import Config
from chimera.core.errors import ModelError, UnreachableError
from chimera.core.files import parse_json
from chimera.serving.client import Completion, Endpoint, HttpModel
from evaluation.records.rollouts import RolloutInput, RolloutRecord
from evaluation.rollout.make import EndedRollout, RolloutMaker, Start
from evaluation.traces import spans

ATTEMPT = "direct"
"""The attempt id in traces: every rollout has one attempt."""

Result = tuple[RolloutRecord, list[spans.Span]]
"""A rollout's record and its trace."""


@dataclass(frozen=True, slots=True)
class Job:
    """A rollout that is to be made, and all that a worker needs to know for it.

    Attributes:
        rollout_id: Its id in records and traces.
        input: The task with its seed, and the phase under which it is recorded.
        endpoints: Where each slot's model answers.
        versions: What is live, or works as a candidate: the policy versions that the record will name.
        selector: Gives who chooses among hypotheses; called within the rollout, perhaps in another process.
        scored: Slots whose models are asked how likely each token was.
        start: Where the society begins; None for the whole task.
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
    """A `Worker` with a society of its own.

    Args:
        model: Reaches the servers; workers may share it.
    """

    def __init__(self, config: Config, model: HttpModel, toolbox: Tools) -> None:
        self._transport = DirectTransport(config, model)
        self._maker = RolloutMaker(config, self._transport, toolbox)

    async def rollout(self, job: Job) -> Result:
        """See `Worker.rollout`."""
        self._transport.begin(job)
        ended = await self._maker.make(job.input, job.selector, job.start, job.learned, job.faults)
        if (gone := _unreachable(ended.failure)) is not None:
            raise gone from ended.failure
        trace = self._transport.finish(ended)
        return RolloutRecord.of(job.input, ended.outcome, job.rollout_id, job.versions), trace


class DirectTransport:
    """Calls the model servers and keeps the spans of the current rollout in memory.

    Args:
        config: Says which servers are asked for token ids. Other servers may refuse the unknown option.
    """

    def __init__(self, config: Config, model: HttpModel) -> None:
        self._with_ids = frozenset(name for name, settings in config.models.items() if settings.kind != "endpoint")
        self._servers = self._model = model
        self._rollout_id, self._scored = "", frozenset[str]()
        self._seen: set[str] = set()
        self._spans: list[spans.Span] = []

    def begin(self, job: Job) -> None:
        """Start a new rollout and forget the last one."""
        self._model = self._servers.at(job.endpoints)
        self._rollout_id, self._scored = job.rollout_id, job.scored
        self._seen, self._spans = set(), []

    async def complete(self, key: str, messages: Sequence[Mapping[str, Any]], **options: Any) -> Completion:
        """Return the model's answer, and note request and answer for the trace."""
        request = self._model.request(key, messages, **options)
        if key in self._with_ids:
            request["return_token_ids"] = True
        if key in self._scored:
            request["logprobs"] = True
        started = time.time()
        body, where = await self._model.ask(key, request), self._model.where(key)
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
        self._spans.append(spans.exchange_span(self._position(started), request, response))
        return completion

    @contextmanager
    def operation(self, name: str, attributes: dict[str, Any], responses: Sequence[str]) -> Iterator[None]:
        started, failure = time.time(), None
        try:
            yield
        except Exception as error:
            failure = error
            raise
        finally:
            at = self._position(started)
            self._spans.append(spans.operation_span(at, name, attributes, responses, failure))

    def finish(self, ended: EndedRollout) -> list[spans.Span]:
        """The rollout's trace: visits and exchanges, then the failure or the reward, then the outcome."""
        outcome, now = ended.outcome, time.time()
        last = (
            spans.reward_span(self._position(now), outcome.reward, outcome.parts)
            if ended.failure is None
            else spans.exception_span(self._position(now), ended.failure)
        )
        self._spans.append(last)
        self._spans.append(spans.outcome_span(self._position(now), outcome.dump()))
        return self._spans

    def _position(self, started: float) -> spans.Position:
        """Position in the trace of a span that began at `started` and ends now."""
        return spans.Position(self._rollout_id, ATTEMPT, len(self._spans) + 1, started, time.time())


def _unreachable(error: BaseException | None) -> UnreachableError | None:
    """The UnreachableError in the causes of `error`, if there is one."""
    while error is not None and not isinstance(error, UnreachableError):
        error = error.__cause__
    return error
