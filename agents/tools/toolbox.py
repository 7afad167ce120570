"""The tools that roles may call: Chimera's own four, LangChain tools, and those of MCP servers.

A model reads each tool's description, and calls it by name with JSON arguments. Every call returns a `ToolResult`:
passages, an empty result that says so, or an error in one sentence.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from agents.tools.foreign import foreign_tool, load_tool
from agents.tools.leaks import is_source
from agents.tools.mcp import McpServers
from agents.tools.own import own_tools
from agents.tools.result import ToolResult
from agents.tools.text.excerpts import excerpt
from agents.tools.text.passages import MAX_ID, MAX_SOURCE, Passage, ToolError, caution_of, clean
from agents.tools.tool import ArgumentError, Tool, short
from chimera.config.roles import MCP, RolesConfig
from chimera.config.sections.tools import ToolsConfig
from chimera.core.quotes import Fingerprint
from chimera.core.types import Brief
from chimera.data.tasks import Document


class Toolbox:
    """Runs tool calls; concurrent calls are safe."""

    def __init__(
        self,
        tools: Sequence[Tool],
        *,
        results: int,
        max_chars: int,
        conclusions: Mapping[str, Fingerprint] | None = None,
        block_source: bool = True,
        retracted: Literal["omit", "mark"] = "omit",
    ) -> None:
        """Offer `tools`; each result has at most `results` passages of at most `max_chars` characters.

        `retracted` says whether the note shows the text of what is no evidence.

        `block_source` removes the article behind the task's question from live results, and results that quote its
        conclusion (`conclusions`, by task id). Switch it off only for questions without an answer key.
        """
        self._tools = {tool.name: tool for tool in tools}
        self._results = results
        self._max_chars = max_chars
        self._conclusions = conclusions or {}
        self._block_source = block_source
        self._retracted = retracted

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._tools)

    def tool(self, name: str) -> Tool:
        """The tool that models know as `name`; raises KeyError."""
        return self._tools[name]

    def specs(self, names: Sequence[str]) -> list[dict[str, Any]]:
        """OpenAI tool definitions of `names`, in that order; raises KeyError for an unknown name."""
        return [self._tools[name].spec() for name in dict.fromkeys(names)]

    async def call(self, name: str, arguments: Mapping[str, Any] | None, *, brief: Brief) -> ToolResult:
        """Call one tool; `arguments` is None if the model's arguments were not a JSON object."""
        tool = self._tools.get(name)
        if tool is None:
            return _invalid(name, f"there is no tool {short(name)!r}; the tools are {', '.join(self._tools)}")
        try:
            arguments = tool.check(arguments)
        except ArgumentError as error:
            return _invalid(name, str(error))
        text = " ".join(" ".join(value for value in arguments.values() if isinstance(value, str)).split()) or name
        try:
            longest = MAX_SOURCE if tool.live else None
            hits = [replace(hit, text=clean(hit.text, longest)) for hit in await tool.find(arguments)]
        except ToolError as error:
            return ToolResult(name, ok=False, error=clean(str(error)))
        if tool.live and self._block_source:
            conclusion = self._conclusions.get(brief.id)
            read = ((passage, replace(passage, text=f"{passage.text} {passage.caution}".strip())) for passage in hits)
            hits = [passage for passage, whole in read if not is_source(whole, brief, conclusion)]
        cautions = {passage: passage.caution or caution_of(passage.title) for passage in hits} if tool.live else {}
        evidence = [passage for passage in hits if not cautions.get(passage)]
        passages = tuple(self._shorten(passage, text) for passage in evidence[: self._results])
        notes = [self._no_evidence(passage, why, text) for passage, why in cautions.items() if why]
        nothing = None if passages else f"no match for {short(text)!r}"
        return ToolResult(name, ok=True, passages=passages, note="; ".join(notes) or nothing)

    def _no_evidence(self, passage: Passage, why: str, query: str) -> str:
        """What a role is told of a passage that it may not quote."""
        if not passage.text:
            return short(why, self._max_chars)
        shown = self._shorten(passage, query)
        no_evidence = f"{shown.id} is no evidence ({short(why)})"
        return f"{no_evidence}: {shown.text}" if self._retracted == "mark" else f"{no_evidence} and is left out"

    def _shorten(self, passage: Passage, query: str) -> Passage:
        return replace(
            passage,
            id=clean(passage.id)[:MAX_ID],
            title=clean(passage.title)[: self._max_chars],
            text=excerpt(passage.text, query, self._max_chars),
        )


def build_toolbox(
    config: ToolsConfig,
    documents: Sequence[Document],
    secrets: Mapping[str, str],
    *,
    roles: RolesConfig | None = None,
    conclusions: Mapping[str, Fingerprint] | None = None,
    block_source: bool = True,
) -> Toolbox:
    """Chimera's own tools with the back ends that `config` names, and the other tools that `roles` name.

    `conclusions` are the fingerprints of the conclusions that live tools must not show, by task id
    (`Dataset.conclusions`).

    Raises ConfigError if a key of a configured back end is missing or malformed, if `tools.database` is not a Chimera
    database, or if a tool cannot be loaded.
    """
    foreign = foreign_tools(config, roles, McpServers(config.mcp, secrets)) if roles else []
    return Toolbox(
        [*own_tools(config, documents, secrets), *foreign],
        results=config.results,
        max_chars=config.max_chars,
        conclusions=conclusions,
        block_source=block_source,
        retracted=config.retracted,
    )


def check_tools(config: ToolsConfig, roles: RolesConfig, secrets: Mapping[str, str]) -> None:
    """Load the tools that are not Chimera's own, to see that they are there.

    Raises:
        ConfigError: One of them cannot be loaded.
    """
    servers = McpServers(config.mcp, secrets)
    try:
        foreign_tools(config, roles, servers)
    finally:
        servers.close()


def foreign_tools(config: ToolsConfig, roles: RolesConfig, servers: McpServers) -> list[Tool]:
    """The tools that roles name and that are not Chimera's own; raises ConfigError if one of them cannot be loaded."""
    place = {
        reference: f"roles.{role}.tools" for role, references in roles.references().items() for reference in references
    }
    tools: list[Tool] = []
    for reference in roles.foreign():
        load = servers.tool if reference.startswith(MCP) else load_tool
        tools.append(foreign_tool(reference, load(reference, place[reference]), config.timeout_s))
    return tools


def _invalid(name: str, error: str) -> ToolResult:
    return ToolResult(short(name), ok=False, error=error, valid=False)
