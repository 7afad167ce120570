"""Puts policies live: one class for training, the gate and its roll-back, evaluations, and single questions."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from agents.context import LearnedSociety, Selector
from agents.policies import society
from agents.policies.choice import SelectionSpec, make_selector
from chimera.config.sections.models import ModelConfig
from chimera.core.errors import ModelError
from chimera.run.directory import Run
from chimera.run.policies import BY_MODEL, SELECTION, SOCIETY, Place, Policy
from chimera.run.seals import checked
from chimera.serving.embedded.checkpoint import locate
from chimera.serving.process import ModelServers

MODEL_CHOOSES = f"{BY_MODEL}'s model"
"""The policy version under `SELECTION` while no policy chooses."""


class Live:
    """The live policies of the society. At first the model servers are in the state in which the run began.

    Its methods call the servers and read files, so call them outside an event loop.
    """

    def __init__(self, run: Run, models: Mapping[str, ModelConfig], servers: ModelServers) -> None:
        self._run = run
        self._models = models
        self._servers = servers
        self._base = servers.versions()
        self._policies: dict[Place, Policy] = {}

    def put(self, policy: Policy) -> None:
        """Put `policy` live in its place. A policy that is already live there is not loaded again.

        Raises:
            ModelError: Its weights do not fit the model that they replace. The previous policy stays live.
            RunError: Its files differ from those that the run wrote.
        """
        if self._policies.get(policy.place) == policy:
            return
        folder = checked(self._run, policy.folder)
        if policy.part == "weights":
            if policy.target not in self._models:
                raise ModelError(f"{policy.version} is for the slot {policy.target!r}, which the configuration lacks")
            self._servers.load_weights(policy.target, folder, version=policy.version)
        society.of_policies(self._run.path, [policy])
        self._policies[policy.place] = policy

    def restore(self, policies: Iterable[Policy]) -> None:
        """Make exactly `policies` live. Every other place returns to its state when the run began.

        Raises:
            ModelError: See `put`.
            RunError: See `put`.
        """
        places = {policy.place: policy for policy in policies}
        for part, target in set(self._policies) - set(places):
            if part == "weights":
                folder = locate(self._models[target].path)
                self._servers.load_weights(target, folder, version=self._base[target])
            del self._policies[part, target]
        for policy in places.values():
            self.put(policy)

    def versions(self) -> dict[str, str]:
        """Policy versions for rollouts: weights or endpoint model of each slot, who chooses, and what was learned for
        the society as a whole."""
        named = {name: endpoint.model for name, endpoint in self._servers.endpoints.items()}
        chooser = self._chooser()
        versions = {**named, **self._servers.versions(), SELECTION: chooser.version if chooser else MODEL_CHOOSES}
        learned = (policy for policy in self._policies.values() if policy.target == SOCIETY)
        return versions | {policy.slot: policy.version for policy in learned}

    def society(self) -> LearnedSociety:
        """What was learned for the society as a whole."""
        return society.of_policies(self._run.path, self._policies.values())

    def weights(self, slot: str) -> Path:
        """The folder of the weights that are live in an embedded slot."""
        policy = self._policies.get(("weights", slot))
        return self._run.path / policy.folder if policy else locate(self._models[slot].path)

    def selection(self, exploration: float) -> SelectionSpec:
        """Who chooses among hypotheses in training rollouts, as data."""
        chooser = self._chooser()
        folder = str((self._run.path / chooser.folder).absolute()) if chooser else None
        return SelectionSpec(chooser.version if chooser else None, folder, exploration)

    def selector(self) -> Selector:
        """Chooses among hypotheses without exploration."""
        return make_selector(self.selection(0.0), greedy=True)

    def _chooser(self) -> Policy | None:
        return next((policy for (part, _), policy in self._policies.items() if part == "choice"), None)
