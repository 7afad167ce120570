"""The lab as one phase sees it: `training.learning.base.Bench` over a run's lab."""

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from chimera.run.directory import phases_before
from chimera.run.policies import Policy
from evaluation.records.rollouts import RolloutInput
from training.learning.episodes import Episode

if TYPE_CHECKING:
    from training.lab.lab import Lab


class LabBench:
    """One phase's bench.

    Args:
        lab: The run's lab.
        phase: The phase's name.
    """

    def __init__(self, lab: "Lab", phase: str) -> None:
        self.config = lab.config
        self.dataset = lab.dataset
        self.run = lab.run
        self.view = lab.view
        self.metrics = lab.metrics
        self._lab = lab
        self._phase = phase

    @property
    def versions(self) -> Mapping[str, str]:
        """What is live."""
        return self._lab.policy_versions

    def weights(self, slot: str) -> Path:
        """The folder of the weights that are live in an embedded slot."""
        return self._lab.live.weights(slot)

    def rollouts(
        self, inputs: Sequence[RolloutInput], *, mode: Literal["train", "val"] = "train"
    ) -> AsyncGenerator[Episode]:
        """Run the society on `inputs`; see `Lab.rollouts`."""
        return self._lab.rollouts(inputs, mode=mode)

    async def episodes(self) -> list[Episode]:
        """All rollouts on training tasks that were made before this phase began for the first time.

        A phase that is done again learns from what it had the first time: later rollouts are answers of what was
        learned from it.
        """
        earlier = phases_before(self.run.events(), self._phase)
        names = [name for name in self.config.pipeline if name != self._phase and (earlier is None or name in earlier)]
        return await asyncio.to_thread(self._lab.recorded, names)

    async def publish(self, policy: Policy) -> None:
        """Put `policy` live."""
        await self._lab.put_live(policy)
