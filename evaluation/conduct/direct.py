"""Rollouts in the main process: the society talks to the model servers itself, many tasks at a time.

They are recorded as they end, like those of the runners (`evaluation.conduct.rollout` makes both). One that fails is
recorded too. Only a server that cannot be reached ends the evaluation: its rollouts are no answers of the society.
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
"""The end of a model server announces nothing, so it is looked for this often."""
ATTEMPT = "direct"
"""Traces name the attempt of a rollout; here there is only one."""


class DirectRollouts:
    """Makes and records rollouts of one run's society.

    Args:
        run: Where they are recorded; owned by this process.
        config: The whole configuration.
        model: Answers every logical model.
        toolbox: The society's tools.
        check: Raises what keeps all further rollouts from succeeding, such as the end of the model server.
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
        """Run the society on `inputs`; each rollout is on disk when it is yielded, failed ones too.

        Args:
            inputs: Tasks with seeds, and the phase to record them under.
            stage: Whose policies the servers use now.
            selector: Who chooses among hypotheses.

        Raises:
            UnreachableError: A model server cannot be reached; what has ended is recorded.
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
    """A society that works on one task at a time.

    Args:
        config: The whole configuration.
        model: Reaches the servers.
        toolbox: The society's tools.
    """

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
    """Asks the model servers itself, and keeps the spans of the rollout at hand in memory.

    Args:
        config: Tells which servers are asked for token ids: others may refuse what they do not know.
        model: Reaches the servers; several transports may share it.
    """

    def __init__(self, config: Config, model: HttpModel) -> None:
        self._models = config.models
        self._model = model
        self.begin("")

    def begin(self, rollout_id: str) -> None:
        """A new rollout: nothing of the last one is kept."""
        self._rollout_id = rollout_id
        self._seen: set[str] = set()
        self._spans: list[spans.Span] = []

    async def complete(self, key: str, messages: Sequence[Mapping[str, Any]], **options: Any) -> Completion:
        """Answer as the model does, and note request and answer for the trace."""
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
        """A span around one visit of a role."""
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
        """The rollout's trace: its visits and exchanges, then its failure or its reward, then its outcome."""
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
        """Where a span that began then and ends now stands in the trace."""
        return spans.Position(self._rollout_id, ATTEMPT, len(self._spans) + 1, started, time.time())


def _unreachable(error: BaseException | None) -> UnreachableError | None:
    """The unreachable server behind `error`, if there is one."""
    while error is not None and not isinstance(error, UnreachableError):
        error = error.__cause__
    return error
