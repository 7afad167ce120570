"""Ends a request that waits for work when its runner leaves, so that no rollout is given to nobody.

A runner that is killed, or that somebody ends, while it waits has asked for the next rollout already. Its rollout would
be made again by another runner, but only after the time in which a runner may be silent.
"""

import asyncio
from collections.abc import MutableMapping
from typing import Any


class EndsWithItsClient:
    """An ASGI middleware that cancels requests of one path whose client has closed the connection."""

    def __init__(self, app: Any, path: str) -> None:
        self._app = app
        self._path = path

    async def __call__(self, scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        """Serve one ASGI connection."""
        if scope["type"] != "http" or scope["path"] != self._path:
            await self._app(scope, receive, send)
            return
        arrived: asyncio.Queue[MutableMapping[str, Any]] = asyncio.Queue()
        answered = False

        async def listen() -> None:
            message = {"type": ""}
            while message["type"] != "http.disconnect":
                message = await receive()
                arrived.put_nowait(message)

        async def answer(message: MutableMapping[str, Any]) -> None:
            nonlocal answered
            answered = True
            await send(message)

        working = asyncio.ensure_future(self._app(scope, arrived.get, answer))
        listening = asyncio.ensure_future(listen())
        try:
            await asyncio.wait([working, listening], return_when=asyncio.FIRST_COMPLETED)
            if working.done() or answered:  # The connection also counts as closed after the answer.
                await working
        finally:
            listening.cancel()
            working.cancel()
