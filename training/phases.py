"""What a phase is, and which there are."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from chimera.errors import ConfigError

if TYPE_CHECKING:
    from chimera.config import Config
    from chimera.data import Dataset
    from training.lab import Lab


class Phase(Protocol):
    """One stage of a run. It finds everything it needs in the lab, and leaves what it learned there.

    Attributes:
        name: Its name on the command line, in the ledger and of its files.
    """

    @property
    def name(self) -> str:
        """The phase's name."""
        ...

    def check(self, config: "Config", dataset: "Dataset") -> None:
        """Raise ConfigError if the phase cannot be run like this: called before anything is started or written."""
        ...

    async def run(self, lab: "Lab") -> Mapping[str, Any]:
        """Do the phase's work; returns figures for the ledger and the metrics."""
        ...


PHASES: tuple[str, ...] = ("gather",)
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
    """The phases with these names."""
    from training.gather import Gather

    made: dict[str, type[Phase]] = {"gather": Gather}
    return [made[name]() for name in names]
