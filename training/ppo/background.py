"""A separate thread for long blocking work, such as a model's updates, that an event loop awaits.

asyncio joins its own threads when the program ends, so a stop would wait for an update to finish. This thread is not
joined: when the caller is cancelled, its job continues and ends with the process.
"""

import asyncio
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


class Background:
    """One thread that does jobs in the order of `start`. Call it from one event loop."""

    def __init__(self, name: str) -> None:
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def start(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> "asyncio.Future[R]":
        """Queue a job. The future gets its result or its exception. A job whose future is cancelled is not begun."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[R] = loop.create_future()

        def settle(result: Any, error: BaseException | None) -> None:
            if future.cancelled():
                return
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)

        def job() -> None:
            if future.cancelled():
                return
            result, error = None, None
            try:
                result = function(*args, **kwargs)
            except BaseException as raised:  # noqa: BLE001  it is raised again where the result is awaited
                error = raised
            try:
                loop.call_soon_threadsafe(settle, result, error)
            except RuntimeError:
                if not loop.is_closed():
                    raise

        self._jobs.put(job)
        return future

    def finish(self, last: Callable[[], None], seconds: float) -> None:
        """Call `last` after all jobs, then end the thread. Waits at most `seconds`."""
        self._jobs.put(last)
        self._jobs.put(None)
        self._thread.join(seconds)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()
