"""The lab as one phase sees it: `training.learning.base.Bench` over a run's lab."""

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from chimera.core.errors import RunError
from chimera.run.directory import phases_before
from chimera.run.policies import Policy
from chimera.serving.client import Completion, read_completions
from evaluation.records.rollouts import RolloutInput
from training.bench import branches
from training.bench.replays import Replays
from training.bench.side_calls import SideCalls
from training.learning.episodes import Episode
from training.learning.experience import Call
from training.tune.fine_tune import fine_tune

if TYPE_CHECKING:
    from training.lab.lab import Lab


class LabBench:
    """One phase's bench."""

    def __init__(self, lab: "Lab", phase: str) -> None:
        self.config = lab.config
        self.dataset = lab.dataset
        self.run = lab.run
        self.view = lab.view
        self.metrics = lab.metrics
        self._lab = lab
        self._phase = phase

    @cached_property
    def _side(self) -> SideCalls:
        lab = self._lab
        return SideCalls(lab.run, self._phase, lab.config, lab.model, lab.check)

    @cached_property
    def _replays(self) -> Replays:
        return Replays(self._lab, self._phase)

    @property
    def versions(self) -> Mapping[str, str]:
        return self._lab.policy_versions

    def weights(self, slot: str) -> Path:
        return self._lab.live.weights(slot)

    def rollouts(
        self, inputs: Sequence[RolloutInput], *, mode: Literal["train", "val"] = "train", instead: Sequence[Policy] = ()
    ) -> AsyncGenerator[Episode]:
        return self._lab.rollouts(inputs, mode=mode, instead=instead)

    async def episodes(self) -> list[Episode]:
        earlier = phases_before(self.run.events(), self._phase)
        names = [name for name in self.config.pipeline if name != self._phase and (earlier is None or name in earlier)]
        return await asyncio.to_thread(self._lab.recorded, names)

    async def publish(self, policy: Policy) -> None:
        await self._lab.put_live(policy)

    @asynccontextmanager
    async def computing(self) -> AsyncGenerator[None]:
        servers = self._lab.servers
        try:
            await asyncio.to_thread(servers.sleep)
            yield
        finally:
            await asyncio.to_thread(servers.wake)

    async def branch(self, call: Call, k: int, *, seed: int) -> list[Call]:
        settings = self.config.pipeline.get(self._phase)
        scored = settings is not None and settings.needs_log_probs()
        return await branches.ask_again(self._side, self.config, self.versions, call, k, seed, log_probs=scored)

    async def replay(
        self, episode: Episode, *, at: str, instead: Mapping[str, Any] | None = None, policies: Sequence[Policy] = ()
    ) -> Episode:
        return await self._replays.make(episode, at, instead or {}, policies)

    async def ask(self, slot: str, messages: Sequence[Mapping[str, Any]], **options: Any) -> Completion:
        if slot not in self._lab.servers.endpoints:
            served = ", ".join(self._lab.servers.endpoints)
            raise RunError(
                f"{self._phase} asks the model of the slot {slot!r}, which is not served: there are {served}"
            )
        side_call = await self._side.make("ask", slot, self.versions[slot], messages, **options)
        return read_completions(side_call.response, f"model {slot!r}")[0]

    fine_tune = fine_tune  # The function takes the bench first.

    def spent(self) -> Mapping[str, float]:
        return {**self._side.spent(), **self._replays.spent()}
