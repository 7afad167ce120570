"""What a phase is, and which there are."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

from chimera.core.errors import ConfigError

if TYPE_CHECKING:
    from chimera.config.tree import Config
    from chimera.data.tasks import Dataset
    from chimera.run.policies import Policy
    from training.lab.lab import Lab


@dataclass(frozen=True, slots=True)
class PhaseResult:
    """What a phase came to.

    Attributes:
        figures: For the ledger and the metrics.
        learned: The policy that the phase learned; None when it learned none. It goes live if the gate lets it.
    """

    figures: Mapping[str, Any]
    learned: "Policy | None" = None


class Phase(Protocol):
    """One stage of a run. It finds everything it needs in the lab, and leaves what it learned there.

    Attributes:
        name: Its name on the command line, in the ledger and of its files.
        learns: Whether it changes a policy, so that the gate compares before and after.
    """

    @property
    def name(self) -> str:
        """The phase's name."""
        ...

    @property
    def learns(self) -> bool:
        """Whether it changes a policy."""
        ...

    def check(self, config: "Config", dataset: "Dataset") -> None:
        """Raise ConfigError if the phase cannot be run like this: called before anything is started or written."""
        ...

    async def run(self, lab: "Lab") -> PhaseResult:
        """Do the phase's work, or what is left of it when the run is resumed."""
        ...


ALGORITHMS = {
    "gather": "training.algorithms.gather:Gather",
    "sft": "training.algorithms.sft.phase:Sft",
    "ppo": "training.algorithms.ppo.phase:Ppo",
    "bandit": "training.algorithms.bandit.phase:Bandit",
}
"""Module and class of each phase."""
PHASES = tuple(ALGORITHMS)
"""All phases, in the order in which a run goes through them."""


def check_names(text: str | None) -> tuple[str, ...]:
    """The phases that a comma-separated list names, in its order; all of them for None.

    Raises:
        ConfigError: A name is unknown or repeated, or there is none.
    """
    if text is None:
        return PHASES
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    valid = f"the phases are {', '.join(PHASES)}"
    for name in names:
        if name not in PHASES:
            raise ConfigError(f"there is no phase {name!r}: {valid}")
    if not names:
        raise ConfigError(f"--phases names none: {valid}")
    if len(set(names)) < len(names):
        raise ConfigError(f"--phases={text} names a phase twice")
    return names


def make_phases(names: Sequence[str]) -> list[Phase]:
    """The phases with these names; only their modules are imported."""
    places = [ALGORITHMS[name].split(":") for name in names]
    return [getattr(import_module(module), kind)() for module, kind in places]
