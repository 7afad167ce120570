"""How a policy goes live: one class, for training, the gate and its roll-back, evaluations, and single questions."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from agents.context import Selector
from agents.policies.choice import SelectionSpec, make_selector
from chimera.config.tree import ModelConfig
from chimera.core.errors import ModelError
from chimera.run.directory import Run
from chimera.run.policies import BY_MODEL, SELECTION, Place, Policy
from chimera.run.seals import checked
from chimera.serving.embedded.checkpoint import locate
from chimera.serving.process import ModelServers

MODEL_CHOOSES = f"{BY_MODEL}'s model"
"""What policy versions say under `SELECTION` while no policy chooses."""


class Live:
    """What is live of each part of the society, in front of model servers that are as the run began.

    Its methods ask the servers and read files: call them outside an event loop.

    Args:
        run: Whose policies these are.
        models: The slots.
        servers: Where they are served.
    """

    def __init__(self, run: Run, models: Mapping[str, ModelConfig], servers: ModelServers) -> None:
        self._run = run
        self._models = models
        self._servers = servers
        self._base = servers.versions()
        self._policies: dict[Place, Policy] = {}

    @property
    def policies(self) -> Mapping[Place, Policy]:
        """The policies that are live; a place that is missing is as the run began."""
        return dict(self._policies)

    def put(self, policy: Policy) -> None:
        """Put `policy` live in its place; one that is live there already is not loaded again.

        Raises:
            ModelError: Its weights do not fit the model that they replace; what was live stays live.
            RunError: Its files are not those that the run wrote.
        """
        if self._policies.get(policy.place) == policy:
            return
        folder = checked(self._run, policy.folder)
        if policy.part == "weights":
            if policy.target not in self._models:
                raise ModelError(f"{policy.version} is for the slot {policy.target!r}, which the configuration lacks")
            self._servers.load_weights(policy.target, folder, version=policy.version)
        self._policies[policy.place] = policy

    def restore(self, wanted: Iterable[Policy]) -> None:
        """Make exactly `wanted` live; every other place becomes what it was when the run began.

        Raises:
            ModelError: See `put`.
            RunError: See `put`.
        """
        places = {policy.place: policy for policy in wanted}
        for part, target in set(self._policies) - set(places):
            if part == "weights":
                folder = locate(self._models[target].path)
                self._servers.load_weights(target, folder, version=self._base[target])
            del self._policies[part, target]
        for policy in places.values():
            self.put(policy)

    def versions(self) -> dict[str, str]:
        """What rollouts carry: the version of each slot's weights, or the endpoint's model, and who chooses."""
        named = {name: endpoint.model for name, endpoint in self._servers.endpoints.items()}
        chooser = self._chooser()
        return {**named, **self._servers.versions(), SELECTION: chooser.version if chooser else MODEL_CHOOSES}

    def weights(self, slot: str) -> Path:
        """The folder of the weights that are live in an embedded slot."""
        policy = self._policies.get(("weights", slot))
        return self._run.path / policy.folder if policy else locate(self._models[slot].path)

    def selection(self, exploration: float) -> SelectionSpec:
        """Who chooses in training rollouts, as it travels to runners."""
        chooser = self._chooser()
        folder = str((self._run.path / chooser.folder).absolute()) if chooser else None
        return SelectionSpec(chooser.version if chooser else None, folder, exploration)

    def selector(self) -> Selector:
        """Who chooses where nothing is explored."""
        return make_selector(self.selection(0.0), greedy=True)

    def _chooser(self) -> Policy | None:
        return next((policy for (part, _), policy in self._policies.items() if part == "choice"), None)
