"""The tools' back ends, and MCP servers."""

from typing import Annotated, Literal

from pydantic import Field

from chimera.config.loader import AnyPath, ConfigSection, When
from chimera.config.sections.models import HttpAddress, VariableName


class McpServer(ConfigSection):
    """One MCP server, whose tools roles may call: a program of this machine, or an address."""

    command: tuple[str, ...] = Field(
        default=(), description="program with its arguments, which speaks MCP through its input and output"
    )
    env: Annotated[tuple[VariableName, ...], When.unset("url")] = Field(
        default=(), description="environment variables that the program gets, besides PATH, HOME and the like"
    )
    url: HttpAddress | None = Field(
        default=None, description="address of a server that speaks MCP over streamable HTTP"
    )
    api_key_env: Annotated[VariableName | None, When.set("url")] = Field(
        default=None, description="name of the environment variable with the key of the server at url"
    )


LOCAL = {"local", "separate"}
"""Back ends that need no network."""


class ToolsConfig(ConfigSection):
    """The tools' back ends. Live ones need the network, and only Tavily needs a key."""

    literature: Literal["local", "pubmed", "tavily"] = Field(
        default="local", description="abstracts of the data set, PubMed E-utilities, or Tavily web search"
    )
    trials: Literal["local", "separate", "clinicaltrials", "tavily"] = Field(
        default="local",
        description="clinical trials: the local index (separate: literature_search then leaves them out), "
        "ClinicalTrials.gov, or Tavily web search",
    )
    protein: Literal["local", "uniprot"] = Field(default="local", description="proteins: the database, or UniProt")
    ontology: Literal["local", "quickgo"] = Field(
        default="local", description="gene ontology: the database, or QuickGO"
    )
    results: int = Field(default=1, ge=1, le=10, description="passages that one search returns")
    max_chars: int = Field(default=1200, ge=100, le=1_000_000, description="most characters of a passage (live 20,000)")
    timeout_s: float = Field(
        default=10.0,
        gt=0,
        le=604_800,
        description="seconds that one live request, or one call of a LangChain tool, may take",
    )
    retries: int = Field(default=2, ge=0, le=100, description="further tries after 429 or 5xx")
    retracted: Literal["omit", "mark"] = Field(
        default="omit",
        description="retracted articles, articles with an expression of concern, and trials that were withdrawn or "
        "stopped for a stated reason: omit only says that there is one, mark also shows its text; neither is evidence",
    )
    database: AnyPath | None = Field(
        default=None, description="SQLite file of proteins and GO terms; the shipped seed otherwise"
    )
    mcp: dict[str, McpServer] = Field(default={}, description="MCP servers by free names")

    def secret_names(self) -> tuple[str, ...]:
        """The environment variables that MCP servers name."""
        named = [name for server in self.mcp.values() for name in (*server.env, server.api_key_env) if name]
        return tuple(dict.fromkeys(named))

    @property
    def local(self) -> bool:
        """True if no back end uses the network."""
        return {self.literature, self.trials, self.protein, self.ontology} <= LOCAL
