"""The workers of one run: each rollout takes one that is free, and is on disk before anybody hears of it."""

import asyncio
import uuid
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Sequence
from textwrap import shorten
from typing import Any

from chimera.core.errors import RunError, UnreachableError
from chimera.run.directory import Run
from evaluation.records.rollouts import RolloutRecord, cause
from evaluation.rollout.worker import Job, Result, Worker
from evaluation.telemetry.sender import recorded
from evaluation.traces import spans

LOOK_SECONDS = 1.0
"""Interval of the checks that the model server is alive: a server that ends sends no notice."""
FEWEST = 4
"""Rollouts that say, if all fail for one cause, that the rest would fail too."""
SHOWN = 400
CANCEL_SECONDS = 0.1
"""Interval of the cancellations of a rollout."""


class Crew:
    """Makes and records rollouts of one run's society, for any number of callers at a time.

    Args:
        run: The run that records them; owned by this process.
        workers: As many rollouts are made at a time.
        check: Raises an error that makes all further rollouts fail, such as the end of the model server.
    """

    def __init__(self, run: Run, workers: Iterable[Worker], check: Callable[[], None] = lambda: None) -> None:
        self._run = run
        self._check = check
        self._free: asyncio.Queue[Worker] = asyncio.Queue()
        for worker in workers:
            self._free.put_nowait(worker)
        self.size = self._free.qsize()

    async def rollout(self, job: Job) -> Result:
        """Make a rollout when a worker is free; returns its record and its trace as they are on disk.

        Raises:
            UnreachableError: A model server cannot be reached; nothing is recorded.
            ChimeraError: `check` found a reason to stop; a rollout that failed is not recorded then.
        """
        worker = await self._free.get()
        try:
            record, trace = await _whole(worker.rollout(job))
        except UnreachableError:
            self._check()
            raise
        finally:
            self._free.put_nowait(worker)
        if record.status == "failed":  # What a server that has ended makes fail says nothing about the society.
            self._check()
        return record, keep(self._run, record, trace)

    async def rollouts(self, jobs: Sequence[Job], *, on_trial: bool = False) -> AsyncGenerator[Result, None]:
        """Make all `jobs` and yield each in the order of their ends. Close the generator when you stop early.

        Args:
            on_trial: They show what a policy is worth, also one that makes all of them fail.

        Raises:
            RunError: The first rollouts, as many as are made at a time and at least four, all failed for one cause.
            ChimeraError: As `rollout`. Rollouts that have ended are recorded.
        """
        first: list[RolloutRecord] = []
        waiting = iter(jobs)
        ended: asyncio.Queue[Result | Exception] = asyncio.Queue()

        async def work() -> None:
            try:
                for job in waiting:
                    ended.put_nowait(await self.rollout(job))
            except Exception as error:  # noqa: BLE001  raised by the one who waits
                ended.put_nowait(error)

        tasks = [asyncio.create_task(work()) for _ in range(min(len(jobs), self.size))]
        try:
            for _ in jobs:
                result = await self._next(ended)
                if isinstance(result, Exception):
                    raise result
                yield result
                first.append(result[0])
                if not on_trial and len(first) == max(FEWEST, self.size) < len(jobs):
                    _check_first(first)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _next(self, ended: "asyncio.Queue[Result | Exception]") -> Result | Exception:
        # Python 3.11's `asyncio.wait_for` can lose a cancellation.
        getting = asyncio.create_task(ended.get())
        try:
            while not (await asyncio.wait([getting], timeout=LOOK_SECONDS))[0]:
                self._check()
            return getting.result()
        finally:
            getting.cancel()


def keep(run: Run, record: RolloutRecord, trace: Sequence[spans.Span]) -> list[spans.Span]:
    """Write a rollout to disk, its trace first, so that no record names a missing trace. Then telemetry gets it.

    Returns:
        The trace as written: without bookkeeping spans and secrets.
    """
    kept_spans = [] if record.trace is None else spans.write(trace, run.path / record.trace)
    run.append_rollout(record.dump(), phase=record.phase)
    recorded(run, record, kept_spans)
    return kept_spans


def _check_first(records: Sequence[RolloutRecord]) -> None:
    """Raise RunError if all rollouts failed for one cause."""
    causes = {cause(record) for record in records}
    if len(causes) == 1 and None not in causes:
        why = shorten(records[0].error or "no reason recorded", SHOWN, placeholder=" ...")
        raise RunError(f"the first {len(records)} rollouts all failed for one cause, so no more are made: {why}")


async def _whole(rollout: Coroutine[Any, Any, Result]) -> Result:
    """Await a rollout, which has ended when this returns or raises, also when it is cancelled.

    LangGraph 1.2 loses a cancellation that arrives while it ends a node's time limit, so one is not enough.
    """
    task = asyncio.create_task(rollout)
    try:
        await asyncio.wait([task])
        return task.result()
    finally:
        while not task.done():
            task.cancel()
            await asyncio.wait([task], timeout=CANCEL_SECONDS)


def new_id(prefix: str) -> str:
    """A new rollout's id: what it is for, and twelve hexadecimal digits."""
    return f"{prefix}-{uuid.uuid4().hex[:12]}"
