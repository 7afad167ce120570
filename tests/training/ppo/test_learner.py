"""The thread in which an engine works: one job after another, with their results and errors."""

import asyncio
import threading

from chimera.core.errors import RunError
from training.ppo.learner import Background


async def test_jobs_run_in_turn_in_one_thread_and_their_errors_arrive():
    worker, threads = Background("a-thread"), []

    def job(number):
        threads.append(threading.current_thread().name)
        if number == 1:
            raise RunError("the second fails")
        return number

    futures = [worker.start(job, number) for number in range(3)]
    results = await asyncio.gather(*futures, return_exceptions=True)
    assert (results[0], results[2], str(results[1])) == (0, 2, "the second fails")
    assert threads == ["a-thread"] * 3
    ended = []
    worker.finish(lambda: ended.append(True), 600)
    assert ended == [True]


async def test_a_cancelled_wait_does_not_wait_and_later_jobs_are_dropped():
    worker, begun, go_on, done = Background("a-thread"), threading.Event(), threading.Event(), []

    def long():
        begun.set()
        go_on.wait()
        done.append("long")

    running, waiting = worker.start(long), worker.start(done.append, "never")
    await asyncio.to_thread(begun.wait)
    running.cancel()
    waiting.cancel()
    worker.finish(lambda: done.append("last"), 0.0)
    assert done == []
    go_on.set()
    worker._thread.join()
    assert done == ["long", "last"]
