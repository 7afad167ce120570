"""The slot whose model plays each role, and the names of groups of roles."""

from collections.abc import Iterable
from difflib import get_close_matches

from pydantic import Field

from chimera.config.loader import ConfigSection
from chimera.core.errors import ConfigError


class RoleConfig(ConfigSection):
    """One role of the society, or the judge."""

    model: str = Field(min_length=1, description="the slot (models.<slot>) whose model plays this role")


class RolesConfig(ConfigSection):
    """The slot of each role."""

    Geneticist: RoleConfig = RoleConfig(model="junior")
    Pharmacologist: RoleConfig = RoleConfig(model="junior")
    Neurologist: RoleConfig = RoleConfig(model="junior")
    Supervisor: RoleConfig = RoleConfig(model="supervisor")
    HypothesisRefiner: RoleConfig = RoleConfig(model="refiner")
    ProtocolDesigner: RoleConfig = RoleConfig(model="senior")
    PeerReviewer: RoleConfig = RoleConfig(model="board")
    SafetyOfficer: RoleConfig = RoleConfig(model="board")
    PrincipalInvestigator: RoleConfig = RoleConfig(model="principal")
    Judge: RoleConfig = RoleConfig(model="judge")

    def slots(self) -> dict[str, str]:
        """The slot of each role, by the role's name."""
        return {name: getattr(self, name).model for name in type(self).model_fields}


JUDGE = "Judge"
"""Scores the society's result; it is not a node of the graph."""
JUNIORS: tuple[str, ...] = ("Geneticist", "Pharmacologist", "Neurologist")
"""The roles that propose hypotheses, in the order in which hypotheses are listed."""
GRADING: tuple[str, ...] = ("PeerReviewer", "SafetyOfficer", "PrincipalInvestigator", JUDGE)
"""The roles that grade other roles' answers. The deterministic rubric can play only these."""
GROUPS: dict[str, tuple[str, ...]] = {"juniors": JUNIORS, "seniors": ("HypothesisRefiner", "ProtocolDesigner")}
"""Names of groups of roles, for the lists of roles that a phase trains."""


def expand(names: Iterable[str], setting: str) -> tuple[str, ...]:
    """The roles that `names` of roles and groups stand for, in the order of the society, without duplicates.

    Args:
        names: The names in the setting.
        setting: The setting's key, for the error message.

    Raises:
        ConfigError: There is no such role or group.
    """
    known = (*RolesConfig.model_fields, *GROUPS)
    found: set[str] = set()
    for name in names:
        if name not in known:
            near = get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
            raise ConfigError(f"{setting} names {name!r}, which is neither a role nor a group of roles: {hint}")
        found |= set(GROUPS.get(name, (name,)))
    return tuple(role for role in RolesConfig.model_fields if role in found)
