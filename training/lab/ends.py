"""Which rollouts have ended.

To ask the store about all that are awaited, whenever one ends, would take a second each time if there are ten thousand.
"""

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import agentlightning as agl

LOOK_SECONDS = 1.0
"""The store's own time-outs announce nothing, so they are looked for this often."""
LOOK_SHARE = 0.05
"""Most of the time that is spent on looking, which takes half a second with ten thousand ended rollouts."""
ENDED = ("succeeded", "failed", "cancelled")


@dataclass(slots=True)
class Look:
    """When one who waits next asks the store about all rollouts, in the event loop's time."""

    due: float = 0.0


class Ends:
    """Ends of rollouts: those of which the store has told, and now and then all that it knows."""

    def __init__(self, store: agl.LightningStoreServer) -> None:
        self._store = store
        self._told: set[str] = set()

    def tell(self, rollout_id: str) -> None:
        self._told.add(rollout_id)

    async def among(self, pending: Collection[str], look: Look) -> Sequence[agl.Rollout]:
        """The rollouts of `pending`, by their ids, that have ended.

        Args:
            pending: Those that are awaited; nobody else awaits them.
            look: Kept between calls by the one who waits.
        """
        if not pending:
            return []
        told = [rollout_id for rollout_id in self._told if rollout_id in pending]
        self._told.difference_update(told)
        clock = asyncio.get_running_loop().time
        if (began := clock()) < look.due:
            known = [await self._store.get_rollout_by_id(rollout_id) for rollout_id in told]
            return [rollout for rollout in known if rollout is not None and rollout.status in ENDED]
        ended = (await self._store.query_rollouts(status_in=ENDED)).items
        look.due = clock() + max(LOOK_SECONDS, (clock() - began) / LOOK_SHARE)
        return [rollout for rollout in ended if rollout.rollout_id in pending]
