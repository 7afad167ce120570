"""Answers that were given before: a request with a seed has one answer for the same weights, so it is decoded once.

The gate and reports let societies that differ in one role answer the same tasks with the same seeds. All calls before
that role are the same, and cost nothing the second time.
"""

import asyncio
import hashlib
from collections import OrderedDict
from typing import Any

from chimera.serving.embedded.protocol import ChatRequest, new_id


class Answers:
    """The last answers of one server.

    Args:
        most: How many are kept; the one that was not asked for the longest time goes first. 0 keeps none.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._known: OrderedDict[str, dict[str, Any]] = OrderedDict()
        self.reused = 0
        """Number of requests that were answered without the model."""

    def key(self, request: ChatRequest, weights: int) -> str | None:
        """What tells equal requests to the same weights; None for one whose answer is drawn anew each time.

        Args:
            weights: A number that no other weights of this server have had.
        """
        if not self._most or (request.seed is None and request.temperature != 0):
            return None
        question = request.model_dump_json(exclude={"stream", "stream_options"})
        return hashlib.sha256(f"{weights}\n{question}".encode()).hexdigest()

    async def find(self, key: str | None) -> dict[str, Any] | None:
        """The answer, under an id of its own; None if there is none. Its choices must not be changed."""
        if key is None or (answer := self._known.get(key)) is None:
            return None
        self._known.move_to_end(key)
        self.reused += 1
        await asyncio.sleep(0)  # A caller that asks the same in a loop would keep the event loop to itself.
        return {**answer, "id": new_id()}

    def keep(self, key: str | None, response: dict[str, Any]) -> None:
        if key is not None:
            self._known[key] = response
            while len(self._known) > self._most:
                self._known.popitem(last=False)
