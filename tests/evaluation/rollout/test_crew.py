"""Workers that many callers share: how their rollouts end when nobody waits for them any more."""

import asyncio
from contextlib import aclosing, suppress

import pytest
from message_kit import refused
from record_kit import answered

from chimera.config.tree import Config
from chimera.core.errors import RunError
from chimera.core.types import ResearchTask
from chimera.run.directory import Run
from evaluation.records.rollouts import RolloutInput
from evaluation.rollout.crew import Crew
from evaluation.rollout.worker import Job


class Deaf:
    """A worker that loses the first cancellation, as LangGraph may."""

    def __init__(self):
        self.begun, self.ended = asyncio.Event(), 0

    async def rollout(self, job):
        self.begun.set()
        try:
            with suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
            await asyncio.Event().wait()
        finally:
            self.ended += 1


def job(number):
    task = ResearchTask(f"t{number}", "Does it help?", (), "yes", "generated")
    return Job(f"ro-{number}", RolloutInput.of(task, "gather", 0, 0), {}, {}, lambda: None)


@pytest.fixture
def run(tmp_path):
    with Run.create("run", Config(runs_dir=tmp_path)) as created:
        yield created


async def test_rollouts_that_are_cancelled_end_although_a_cancellation_is_lost(run):
    worker = Deaf()
    crew = Crew(run, [worker])

    async def collect():
        async with aclosing(crew.rollouts([job(1), job(2)])) as made:
            return [record async for record, _ in made]

    collecting = asyncio.create_task(collect())
    await worker.begun.wait()
    collecting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await collecting
    assert worker.ended == 1  # The second rollout was not begun.


async def test_one_rollout_that_is_cancelled_frees_its_worker(run):
    worker = Deaf()
    crew = Crew(run, [worker])
    for _ in range(2):
        worker.begun.clear()
        waiting = asyncio.create_task(crew.rollout(job(1)))
        await worker.begun.wait()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    assert worker.ended == 2


class Failing:
    """A worker whose rollouts end with the next of `errors`; None is a success."""

    def __init__(self, errors):
        self.errors = iter(errors)

    async def rollout(self, job):
        error = next(self.errors)
        record = answered(job.rollout_id, job.input.task.id, None if error else "yes", error=error)
        return record, []


@pytest.mark.parametrize(
    ("errors", "made"),
    [
        ([f"{role}: model 'junior' answered 400: no tools" for role in "ABCDEFGH"], 4),
        (["A: no tools", "B: no tools", "A: cut", *["A: no tools"] * 5], 8),
        ([None, *["A: no tools"] * 7], 8),
        (["A: no tools"] * 4, 4),
    ],
)
async def test_first_rollouts_that_fail_for_one_cause_are_the_last(run, errors, made):
    crew = Crew(run, [Failing(errors)])
    records = []

    async def collect():
        async with aclosing(crew.rollouts([job(number) for number in range(len(errors))])) as results:
            records.extend([record async for record, _ in results])

    if made < len(errors):
        with refused(RunError, "4 rollouts", "no tools"):
            await collect()
    else:
        await collect()
