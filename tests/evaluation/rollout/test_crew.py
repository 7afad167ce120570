"""Workers that many callers share: how their rollouts end when nobody waits for them any more."""

import asyncio
from contextlib import aclosing, suppress

import pytest

from chimera.config.tree import Config
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
