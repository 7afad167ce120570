"""Rollouts in the main process: the society calls the model servers directly, many tasks at a time.

Each rollout is recorded when it ends, as those of the runners are (`evaluation.conduct.rollout` makes both). Failed
rollouts are recorded too. Only an unreachable server ends the evaluation: its failures say nothing about the society.
"""

import asyncio
import time
import uuid
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from agents.context import Selector, Tools
from chimera.config.tree import Config
from chimera.core.errors import ModelError, UnreachableError
from chimera.core.plain_json import parse_json
from chimera.run.directory import Run
from chimera.serving.client import Completion, HttpModel, read_completions
from evaluation.conduct.rollout import EndedRollout, RolloutMaker, Start, keep
from evaluation.records.rollouts import Made, RolloutInput, RolloutRecord
from evaluation.records.study import Stage
from evaluation.traces import spans
from evaluation.traces.calls import untraced

LOOK_SECONDS = 1.0
"""Interval of the checks that the model server is alive: a server that ends sends no notice."""
ATTEMPT = "direct"
"""The attempt id in traces. Rollouts of the main process have one attempt."""


class DirectRollouts:
    """Makes and records rollouts of one run's society.

    Args:
        run: The run that records them; owned by this process.
        check: Raises an error that makes all further rollouts fail, such as the end of the model server.
    """

    def __init__(
        self, run: Run, config: Config, model: HttpModel, toolbox: Tools, check: Callable[[], None] = lambda: None
    ) -> None:
        self._run = run
        self._check = check
        self._seats = [Seat(config, model, toolbox) for _ in range(config.evaluation.concurrency)]

    async def rollouts(
        self, inputs: Sequence[RolloutInput], stage: Stage, selector: Selector
    ) -> AsyncGenerator[RolloutRecord, None]:
        """Run the society on `inputs`. Each rollout, failed or not, is on disk when it is yielded.

        Args:
            inputs: Tasks with seeds and the phase under which they are recorded.

        Raises:
            UnreachableError: A model server cannot be reached. Rollouts that have ended are recorded.
            ChimeraError: `check` found a reason to stop.
        """
        waiting = iter(inputs)
        busy: dict[asyncio.Task[RolloutRecord], Seat] = {}

        def begin(seat: Seat) -> None:
            if (given := next(waiting, None)) is not None:
                busy[asyncio.create_task(self._rollout(seat, given, stage, selector))] = seat

        try:
            for seat in self._seats:
                begin(seat)
            while busy:
                done, _ = await asyncio.wait(busy, timeout=LOOK_SECONDS, return_when=asyncio.FIRST_COMPLETED)
                self._check()
                for task in done:
                    record = task.result()
                    begin(busy.pop(task))
                    yield record
        finally:
            for task in busy:
                task.cancel()
            await asyncio.gather(*busy, return_exceptions=True)

    async def _rollout(self, seat: "Seat", given: RolloutInput, stage: Stage, selector: Selector) -> RolloutRecord:
        record, trace = await seat.rollout(f"ev-{uuid.uuid4().hex[:12]}", given, stage.versions, lambda: selector)
        keep(self._run, record, trace)
        return record


class Seat:
    """A society that works on one task at a time."""

    def __init__(self, config: Config, model: HttpModel, toolbox: Tools) -> None:
        self._transport = DirectTransport(config, model)
        self._maker = RolloutMaker(config, self._transport, toolbox)

    async def rollout(
        self,
        rollout_id: str,
        given: RolloutInput,
        versions: Mapping[str, str],
        selector: Callable[[], Selector],
        start: Start | None = None,
    ) -> tuple[RolloutRecord, list[spans.Span]]:
        """One rollout and its trace; nothing is written. Arguments as for `RolloutMaker.make`.

        Raises:
            UnreachableError: A model server cannot be reached.
        """
        self._transport.begin(rollout_id)
        ended = await self._maker.make(given, selector, start)
        if (gone := _unreachable(ended.failure)) is not None:
            raise gone from ended.failure
        trace = self._transport.finish(ended)
        made = Made(rollout_id, versions, untraced_calls=len(untraced(trace)))
        return RolloutRecord.of(given, ended.outcome, made), trace


class DirectTransport:
    """Calls the model servers directly and keeps the spans of the current rollout in memory.

    Args:
        config: Says which servers are asked for token ids. Other servers may refuse the unknown option.
        model: Reaches the servers; several transports may share it.
    """

    def __init__(self, config: Config, model: HttpModel) -> None:
        self._models = config.models
        self._model = model
        self.begin("")

    def begin(self, rollout_id: str) -> None:
        """Start a new rollout and forget the last one."""
        self._rollout_id = rollout_id
        self._seen: set[str] = set()
        self._spans: list[spans.Span] = []

    async def complete(self, key: str, messages: Sequence[Mapping[str, Any]], **options: Any) -> Completion:
        """Return the model's answer, and note request and answer for the trace."""
        request = self._model.request(key, messages, **options)
        if self._models[key].kind != "endpoint":
            request["return_token_ids"] = True
        started = time.time()
        body, where = await self._model.ask(key, request), self._model.where(key)
        completion = read_completions(body, where)[0]
        try:
            response = parse_json(body)
        except ValueError as error:
            raise ModelError(f"{where} answered 200 with what a trace cannot hold: {error}", retriable=True) from error
        # Some servers give no ids, or draw them from a small range; a trace needs one for each answer.
        if not completion.response_id or completion.response_id in self._seen:
            response["id"] = f"{completion.response_id or 'answer'}-{len(self._seen)}"
            completion = replace(completion, response_id=response["id"])
        self._seen.add(completion.response_id)
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
