"""Rollouts without the training stack: the society talks to the model servers itself, many tasks at a time.

Each rollout is recorded as it ends, in the form of training's rollouts and with a trace, so a report need not know who
made it. One that fails is a record too; only a server that cannot be reached ends the evaluation, because its rollouts
are no answers of the society.
"""

import asyncio
import contextvars
import time
import uuid
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from agents.context import Selector, Tools
from agents.record import CallRecord, by_visit, count, dump, tokens, tool_calls
from agents.society import Society
from chimera.config.roles import JUDGE
from chimera.config.tree import Config
from chimera.core.errors import ChimeraError, RoleError, UnreachableError
from chimera.run.directory import Run
from chimera.serving.client import Completion, Model
from evaluation.records.rollouts import Outcome, RolloutInput, RolloutRecord
from evaluation.records.study import Stage
from evaluation.scores.judge import Judge
from evaluation.scores.rewards import Reward, compute_reward
from evaluation.traces import spans

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
        self, run: Run, config: Config, model: Model, toolbox: Tools, check: Callable[[], None] = lambda: None
    ) -> None:
        self._run = run
        self._config = config
        self._check = check
        self._seats = [_Seat(config, model, toolbox) for _ in range(config.evaluation.concurrency)]

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
        busy: dict[asyncio.Task[RolloutRecord], _Seat] = {}

        def begin(seat: _Seat) -> None:
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

    async def _rollout(self, seat: "_Seat", given: RolloutInput, stage: Stage, selector: Selector) -> RolloutRecord:
        rollout_id = f"ev-{uuid.uuid4().hex[:12]}"
        started = time.perf_counter()
        seat.start(rollout_id)
        try:
            state = await self._state(seat, given, selector)
            reward = compute_reward(state, seat.records, given.task, self._config.reward)
        except Exception as error:
            if (gone := _unreachable(error)) is not None:
                raise gone from error
            outcome = seat.outcome({}, None, started, _reason(error))
        else:
            outputs = {key: value for key, value in state.items() if key != "messages"}
            outcome = seat.outcome(outputs, reward, started, None)
        trace = Path("traces") / given.phase / f"{rollout_id}.jsonl.gz"
        spans.write(
            [*seat.spans, spans.outcome_span(seat.position(time.time()), outcome.dump())], self._run.path / trace
        )
        record = _record(rollout_id, given, stage, outcome, str(trace))
        self._run.append_rollout(record.dump(), phase=given.phase)
        return record

    async def _state(self, seat: "_Seat", given: RolloutInput, selector: Selector) -> Mapping[str, Any]:
        limit = self._config.rollouts.timeout_s
        deadline = asyncio.timeout(limit)
        try:
            async with deadline:
                return await seat.society.run(given.task.brief(), seed=given.seed, select=selector)
        except TimeoutError as error:
            if not deadline.expired():
                raise
            raise RoleError("society", f"took longer than {limit:g} s (rollouts.timeout_s)") from error


_responses: contextvars.ContextVar[list[str]] = contextvars.ContextVar("responses")
"""Ids of the responses that the visit in progress has got; each visit runs in its own context."""


class _Seat:
    """A society that works on one task at a time, and what it has done for the one at hand."""

    def __init__(self, config: Config, model: Model, toolbox: Tools) -> None:
        self._model = model
        self.society = Society(
            self,
            toolbox,
            config.society,
            config.roles.slots(),
            evaluate=Judge(self, config.slot(JUDGE)).evaluate,
            operation=self._operation,
            observe=self._observe,
        )
        self.start("")

    def start(self, rollout_id: str) -> None:
        """A new task: nothing of the last one is kept."""
        self._rollout_id = rollout_id
        self._seen: set[str] = set()
        self._weights: dict[str, set[str]] = {}
        self.records: list[CallRecord] = []
        self.spans: list[spans.Span] = []

    async def complete(self, key: str, messages: Sequence[Mapping[str, Any]], **options: Any) -> Completion:
        """Answer as the model does, and note request and answer for the trace."""
        request = {"model": key, "messages": list(messages), **_given(options)}
        started = time.time()
        completion = await self._model.complete(key, messages, **options)
        # Some servers give no ids, or draw them from a small range; a trace needs one for each answer.
        if not completion.response_id or completion.response_id in self._seen:
            completion = replace(completion, response_id=f"{completion.response_id or 'answer'}-{len(self._seen)}")
        self._seen.add(completion.response_id)
        _responses.get().append(completion.response_id)
        if completion.weights_version is not None:
            self._weights.setdefault(key, set()).add(completion.weights_version)
        self.spans.append(spans.exchange_span(self.position(started), request, _response(completion)))
        return completion

    @contextmanager
    def _operation(self, name: str, attributes: dict[str, Any]) -> Iterator[None]:
        token = _responses.set([])
        started = time.time()
        try:
            yield
        finally:
            self.spans.append(spans.operation_span(self.position(started), name, attributes, _responses.get()))
            _responses.reset(token)

    def position(self, started: float) -> spans.Position:
        """Where a span that began then and ends now stands in the trace."""
        return spans.Position(self._rollout_id, ATTEMPT, len(self.spans) + 1, started, time.time())

    def _observe(self, record: CallRecord) -> None:
        self.records.append(record)

    def outcome(self, outputs: dict[str, Any], reward: Reward | None, started: float, error: str | None) -> Outcome:
        """What came of the task."""
        return Outcome(
            error=error,
            outputs=outputs,
            reward=None if reward is None else reward.total,
            parts={} if reward is None else dict(reward.parts),
            weights_versions={model: sorted(seen) for model, seen in self._weights.items()},
            counts=count(self.records),
            tokens=tokens(self.records),
            visits=by_visit(self.records),
            tool_calls=tool_calls(self.records),
            calls=[dump(record) for record in self.records],
            seconds=round(time.perf_counter() - started, 3),
        )


def _given(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options without those that are not sent; a seed of 0 is."""
    return {name: value for name, value in options.items() if value not in (None, (), [])}


def _response(completion: Completion) -> dict[str, Any]:
    """The answer as an OpenAI-compatible server would have sent it."""
    return {
        "id": completion.response_id,
        "weights_version": completion.weights_version,
        "choices": [{"index": 0, "finish_reason": completion.finish_reason, "message": completion.message}],
        "usage": {"prompt_tokens": completion.prompt_tokens, "completion_tokens": completion.completion_tokens},
    }


def _record(rollout_id: str, given: RolloutInput, stage: Stage, outcome: Outcome, trace: str) -> RolloutRecord:
    return RolloutRecord(
        rollout_id=rollout_id,
        task_id=given.task.id,
        source=given.task.source,
        level=given.task.level,
        phase=given.phase,
        repeat=given.repeat,
        seed=given.seed,
        attempt=1,
        status="succeeded" if outcome.error is None else "failed",
        error=outcome.error,
        label=given.task.label,
        answer=outcome.outputs.get("final_answer"),
        decision=outcome.outputs.get("final_decision"),
        veto=outcome.outputs.get("final_veto"),
        reward=outcome.reward,
        parts=outcome.parts,
        missing=[name for name, value in outcome.parts.items() if value is None],
        policy_versions=dict(stage.versions),
        weights_versions=outcome.weights_versions,
        outputs=outcome.outputs,
        counts=outcome.counts,
        tokens=outcome.tokens,
        visits=outcome.visits,
        tool_calls=outcome.tool_calls,
        seconds=outcome.seconds,
        trace=trace,
    )


def _unreachable(error: BaseException | None) -> UnreachableError | None:
    """The unreachable server behind `error`, if there is one."""
    while error is not None and not isinstance(error, UnreachableError):
        error = error.__cause__
    return error


def _reason(error: Exception) -> str:
    """One sentence; ours already are, others say what they are."""
    return str(error) if isinstance(error, ChimeraError) else f"{type(error).__name__}: {error}"
