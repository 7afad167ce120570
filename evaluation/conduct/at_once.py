"""Work on many items, some at a time."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from typing import TypeVar

Item = TypeVar("Item")
Found = TypeVar("Found")


async def at_once(
    items: Iterable[Item], work: Callable[[Item], Awaitable[Found]], limit: int
) -> AsyncGenerator[Found, None]:
    """Results of `work` as they arrive, with at most `limit` running at a time. Closing it ends what still runs."""
    free = asyncio.Semaphore(limit)

    async def limited_work(item: Item) -> Found:
        async with free:
            return await work(item)

    tasks = [asyncio.create_task(limited_work(item)) for item in items]
    try:
        for done in asyncio.as_completed(tasks):
            yield await done
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
