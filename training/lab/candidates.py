"""Policies that work in some rollouts beside what is live, which does not change."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from agents.context import LearnedSociety
from agents.policies.choice import SelectionSpec
from agents.policies.society import of_policies
from chimera.config.tree import Config
from chimera.core.errors import ModelError, RunError
from chimera.run.directory import Run, short_name
from chimera.run.policies import Policy
from chimera.run.seals import checked
from chimera.serving.process import ModelServers


@dataclass(frozen=True, slots=True)
class Beside:
    """Candidates that are being served.

    Attributes:
        versions: Their versions, by the names that rollouts carry (`Policy.slot`).
        models: The model to ask for in place of a slot's live weights.
        chooser: Who chooses among hypotheses; None for who does so live.
        society: What they are for the society as a whole.
    """

    versions: Mapping[str, str] = field(default_factory=dict)
    models: Mapping[str, str] = field(default_factory=dict)
    chooser: SelectionSpec | None = None
    society: LearnedSociety = field(default_factory=LearnedSociety)


class ServedCandidates:
    """Serves candidates as long as somebody uses them."""

    def __init__(self, run: Run, config: Config, servers: ModelServers) -> None:
        self._run = run
        self._config = config
        self._servers = servers
        self._users: Counter[str] = Counter()
        self._changing = asyncio.Lock()

    @asynccontextmanager
    async def serve(self, policies: Sequence[Policy]) -> AsyncIterator[Beside]:
        """Serve `policies` for the duration of the block.

        Raises:
            RunError: Two of them have the same place, or one's files are not those that the run wrote.
            ModelError: Weights do not fit the model that they are to replace.
        """
        if len({policy.place for policy in policies}) < len(policies):
            raise RunError(
                f"{', '.join(policy.version for policy in policies)} are to work together: one for each place only"
            )
        models: dict[str, str] = {}
        chooser = None
        async with AsyncExitStack() as stack:
            for policy in policies:
                folder = await asyncio.to_thread(checked, self._run, policy.folder)
                if policy.part == "weights":
                    models[policy.target] = await stack.enter_async_context(self._weights(policy, folder))
                elif policy.part == "choice":
                    share = self._config.rollouts.exploration
                    chooser = SelectionSpec(policy.version, str(folder.absolute()), share)
            society = await asyncio.to_thread(of_policies, self._run.path, policies)
            yield Beside({policy.slot: policy.version for policy in policies}, models, chooser, society)

    @asynccontextmanager
    async def _weights(self, policy: Policy, folder: Path) -> AsyncIterator[str]:
        """The name under which the policy's weights answer."""
        if policy.target not in self._config.models:
            raise ModelError(f"{policy.version} is for the slot {policy.target!r}, which the configuration lacks")
        async with self._changing:
            name = await asyncio.to_thread(self._servers.add_candidate, policy.target, folder, policy.version)
            self._users[name] += 1
        try:
            yield name
        finally:
            async with self._changing:
                self._users[name] -= 1
                if not self._users[name]:
                    await asyncio.to_thread(self._remove, name)

    def _remove(self, name: str) -> None:
        try:
            self._servers.remove_candidate(name)
        except ModelError:
            self._servers.check()
            raise


def phase_of(phase: str, policies: Sequence[Policy]) -> str:
    """Where rollouts of `phase` with candidates are recorded: no reader of training rollouts takes them for its own."""
    return short_name("--".join((phase, *(policy.version.replace("@", ".") for policy in policies))))
