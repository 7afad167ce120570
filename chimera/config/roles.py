"""The slot whose model plays each role, its tools, and the names of groups of roles."""

import re
from collections.abc import Iterable
from typing import Self

from pydantic import Field, field_validator, model_validator

from chimera.config.loader import ConfigSection
from chimera.core.errors import ConfigError, suggestion

LITERATURE, TRIALS, PROTEIN, ONTOLOGY = "literature_search", "clinical_trials", "protein_lookup", "gene_ontology"
OWN_TOOLS = (LITERATURE, TRIALS, PROTEIN, ONTOLOGY)
"""Chimera's own tools; `tools` names their back ends."""
MCP = "mcp:"
"""Start of the reference to an MCP server's tool: mcp:SERVER/TOOL."""
AS = " as "
"""Stands between a tool of others and the name that roles know it by: mcp:SERVER/TOOL as NAME."""
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
"""The names of tools that OpenAI-compatible servers accept."""


def target(reference: str) -> str:
    """The tool that a reference names, without the name that it gives it."""
    return reference.rpartition(AS)[0] or reference


def mcp_tool(reference: str) -> tuple[str, str]:
    """The server and its own name of the tool in mcp:server/tool; the tool's name may hold any characters."""
    server, _, name = target(reference).removeprefix(MCP).partition("/")
    return server, name


def tool_name(reference: str) -> str:
    """The name by which models know a tool: the one after "as", else its own in module:name or mcp:server/name."""
    renamed, _, name = reference.rpartition(AS)
    if renamed:
        return name.strip()
    return mcp_tool(reference)[1] if reference.startswith(MCP) else reference.rpartition(":")[2]


def is_foreign(reference: str) -> bool:
    """True if a tool is a LangChain tool (module:name) or an MCP server's, false if it is one of Chimera's own."""
    return ":" in reference


class RoleConfig(ConfigSection):
    """One role of the society, or the judge."""

    model: str = Field(min_length=1, description="the slot (models.<slot>) whose model plays this role")
    tools: tuple[str, ...] = Field(
        default=(),
        description=f"tools that it may call: {', '.join(OWN_TOOLS)}, module:name (any LangChain tool), or "
        "mcp:server/tool (a server in tools.mcp); both may be followed by `as name`, the name that models know",
    )

    @field_validator("tools")
    @classmethod
    def _are_tools(cls, references: tuple[str, ...]) -> tuple[str, ...]:
        for reference in references:
            if not is_foreign(reference) and reference not in OWN_TOOLS:
                hint = suggestion(reference, OWN_TOOLS, f"there are {', '.join(OWN_TOOLS)}")
                raise ValueError(
                    f"there is no tool {reference!r}: {hint} (or module:name of a LangChain tool, or mcp:server/tool)"
                )
            if reference.startswith(MCP) and not re.fullmatch(rf"{MCP}\w+/.+", target(reference)):
                raise ValueError(f"{reference!r} must be mcp:server/tool, with a server of tools.mcp")
            if not _NAME.fullmatch(tool_name(reference)):
                raise ValueError(
                    f"the name {tool_name(reference)!r} of the tool {reference!r} is not one that model servers accept "
                    f"(1 to 64 letters, digits, _ and -): give it another, as in '{target(reference)}{AS}NAME'"
                )
        return references


class RolesConfig(ConfigSection):
    """The slot and the tools of each role."""

    Geneticist: RoleConfig = RoleConfig(model="junior", tools=(LITERATURE, PROTEIN, ONTOLOGY))
    Pharmacologist: RoleConfig = RoleConfig(model="junior", tools=(LITERATURE, TRIALS, PROTEIN))
    Neurologist: RoleConfig = RoleConfig(model="junior", tools=(LITERATURE, TRIALS, ONTOLOGY))
    Supervisor: RoleConfig = RoleConfig(model="supervisor")
    HypothesisRefiner: RoleConfig = RoleConfig(model="refiner", tools=(LITERATURE,))
    ProtocolDesigner: RoleConfig = RoleConfig(model="senior", tools=(LITERATURE, TRIALS))
    PeerReviewer: RoleConfig = RoleConfig(model="board")
    SafetyOfficer: RoleConfig = RoleConfig(model="board")
    PrincipalInvestigator: RoleConfig = RoleConfig(model="principal")
    Judge: RoleConfig = RoleConfig(model="judge")

    def slots(self) -> dict[str, str]:
        return {name: getattr(self, name).model for name in type(self).model_fields}

    def references(self) -> dict[str, tuple[str, ...]]:
        """The tools of each role, by the role's name, as the configuration names them."""
        return {name: tuple(dict.fromkeys(getattr(self, name).tools)) for name in type(self).model_fields}

    def tool_names(self) -> dict[str, tuple[str, ...]]:
        """The tools of each role, by the role's name, as models know them."""
        return {role: tuple(map(tool_name, references)) for role, references in self.references().items()}

    def foreign(self) -> tuple[str, ...]:
        """The tools of all roles that are not Chimera's own, each once."""
        named = (reference for references in self.references().values() for reference in references)
        return tuple(dict.fromkeys(filter(is_foreign, named)))

    def mcp(self) -> dict[str, str]:
        """The MCP server of each tool that belongs to one, by the tool's reference."""
        of_servers = (reference for reference in self.foreign() if reference.startswith(MCP))
        return {reference: mcp_tool(reference)[0] for reference in of_servers}

    @model_validator(mode="after")
    def _names_are_unique(self) -> Self:
        tools = {name: name for name in OWN_TOOLS}
        for reference in self.foreign():
            name = tool_name(reference)
            if tools.setdefault(name, reference) != reference:
                raise ValueError(
                    f"two tools are called {name!r}, {tools[name]} and {reference}: models know tools by this name, so "
                    f"give one of them another, as in '{target(reference)}{AS}NAME'"
                )
        return self


JUDGE = "Judge"
"""Scores the society's result; it is not a node of the graph."""
JUNIORS: tuple[str, ...] = ("Geneticist", "Pharmacologist", "Neurologist")
"""The roles that propose hypotheses, in the order in which hypotheses are listed."""
GRADING: tuple[str, ...] = ("PeerReviewer", "SafetyOfficer", "PrincipalInvestigator", JUDGE)
"""The roles that grade other roles' answers. The deterministic rubric can play only these."""
SAFETY, DECIDER = GRADING[1:3]
"""Who reviews for harm, and who decides."""
SUPERVISOR, REFINER, DESIGNER = "Supervisor", "HypothesisRefiner", "ProtocolDesigner"
GROUPS: dict[str, tuple[str, ...]] = {"juniors": JUNIORS, "seniors": (REFINER, DESIGNER)}
"""Names of groups of roles, for the lists of roles that a phase trains."""


def expand(names: Iterable[str], setting: str) -> tuple[str, ...]:
    """The roles that `names` of roles and groups stand for, in the order of the society, without duplicates.

    Args:
        setting: The setting's key, for the error message.

    Raises:
        ConfigError: There is no such role or group.
    """
    valid_names = (*RolesConfig.model_fields, *GROUPS)
    roles: set[str] = set()
    for name in names:
        if name not in valid_names:
            hint = suggestion(name, valid_names, f"there are {', '.join(valid_names)}")
            raise ConfigError(f"{setting} names {name!r}, which is neither a role nor a group of roles: {hint}")
        roles |= set(GROUPS.get(name, (name,)))
    return tuple(role for role in RolesConfig.model_fields if role in roles)
