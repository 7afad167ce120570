"""The tools that roles may call: literature, clinical trials, proteins and Gene Ontology terms.

A model reads each tool's docstring as its description, and calls it by name with JSON arguments. Every call returns
a `ToolResult`: passages, an empty result that says so, or an error in one sentence.
"""

import inspect
import json
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError, create_model

from agents.tools.excerpts import excerpt
from agents.tools.leaks import is_source
from agents.tools.literature import LiteratureIndex
from agents.tools.live.go import QuickGO
from agents.tools.live.http import LiveHttp
from agents.tools.live.proteins import UniProt
from agents.tools.live.pubmed import NCBI_KEY, PubMed
from agents.tools.live.tavily import TAVILY_KEY, Tavily
from agents.tools.live.trials import ClinicalTrials
from agents.tools.ontology import Knowledge, open_knowledge
from agents.tools.passages import MAX_QUERY, DocumentLike, Passage, Query, ToolError, clean
from chimera.config.tree import ToolsConfig
from chimera.core.errors import ConfigError
from chimera.core.fingerprints import Fingerprint
from chimera.core.types import Brief

__all__ = ["DocumentLike", "Passage", "Query", "Tool", "ToolError", "ToolResult", "Toolbox", "build_toolbox"]

Search = Callable[[str], Awaitable[Sequence[Passage]]]
"""A tool's function: takes a text, returns passages, best first; raises ToolError. Its name is the tool's name, its
docstring the tool's description."""

TOOL_KEYS = (NCBI_KEY, TAVILY_KEY)
"""Variables with the keys that tools use."""
_SHOWN = 80
_MAX_ID = 200
"""Web search results have their address as id."""


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The result of one tool call.

    `valid` is False if the tool does not exist or its arguments do not fit. `ok` is False if the call failed for any
    reason. A search that finds nothing is ok: `passages` is empty and `note` names the query.
    """

    tool: str
    ok: bool
    passages: tuple[Passage, ...] = ()
    error: str | None = None
    valid: bool = True
    note: str | None = None

    def content(self) -> dict[str, Any]:
        """The payload of the tool message: {"results": [{"id", "text"}, ...]}, with "note" when empty, or {"error"}."""
        if self.error is not None:
            return {"error": self.error}
        results = [{"id": passage.id, "text": passage.text} for passage in self.passages]
        return {"results": results, "note": self.note} if self.note else {"results": results}


@dataclass(frozen=True, slots=True)
class Tool:
    """One tool: its search, its arguments as a pydantic model, and whether its answers come from the open web."""

    name: str
    description: str
    arguments: type[BaseModel]
    search: Search
    live: bool

    @classmethod
    def of(cls, search: Search, *, live: bool) -> "Tool":
        """Describe `search` by its own name, docstring and the one parameter in its signature."""
        name = getattr(search, "__name__", type(search).__name__)
        description = inspect.getdoc(search)
        if not description:
            raise TypeError(f"tool {name} has no docstring: models read it as the tool's description")
        ((parameter, details),) = inspect.signature(search).parameters.items()
        fields: dict[str, Any] = {parameter: (details.annotation, ...)}
        arguments = create_model(name, __config__=ConfigDict(extra="forbid"), **fields)
        return cls(name, " ".join(description.split()), arguments, search, live)

    @property
    def parameter(self) -> str:
        """Name of the tool's one parameter."""
        return next(iter(self.arguments.model_fields))

    def spec(self) -> dict[str, Any]:
        """A new OpenAI tool definition of the tool."""
        parameters = json.loads(_parameters_text(self.arguments))
        function = {"name": self.name, "description": self.description, "parameters": parameters}
        return {"type": "function", "function": function}


@cache
def _parameters_text(arguments: type[BaseModel]) -> str:
    """The JSON schema of a tool's arguments as cached text: pydantic is slow to make it, and text is immutable."""
    schema = arguments.model_json_schema()
    properties = {key: {k: v for k, v in value.items() if k != "title"} for key, value in schema["properties"].items()}
    parameters = {
        "type": "object",
        "properties": properties,
        "required": schema["required"],
        "additionalProperties": False,
    }
    return json.dumps(parameters)


class LocalTools:
    """The back ends that need no network: the task data's own abstracts and the protein and ontology database."""

    def __init__(self, literature: LiteratureIndex, knowledge: Knowledge, results: int) -> None:
        self._literature = literature
        self._knowledge = knowledge
        self._results = results

    async def literature_search(self, query: Query) -> Sequence[Passage]:
        """Search abstracts of medical studies by research question or key words."""
        return self._literature.search(query, self._results)

    async def clinical_trials(self, query: Query) -> Sequence[Passage]:
        """Search only those abstracts that report a clinical trial; this is not a trial registry."""
        return self._literature.search(query, self._results, trials_only=True)

    async def protein_lookup(self, name: Query) -> Sequence[Passage]:
        """Look up a protein by name, gene symbol or UniProt accession."""
        return self._knowledge.proteins(name, self._results)

    async def gene_ontology(self, term: Query) -> Sequence[Passage]:
        """Look up a Gene Ontology term by name, synonym or GO id."""
        return self._knowledge.terms(term, self._results)


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
    ) -> None:
        """Offer `tools`; each result has at most `results` passages of at most `max_chars` characters.

        `block_source` removes the article behind the task's question from live results, and results that quote its
        conclusion (`conclusions`, by task id). Switch it off only for questions without an answer key.
        """
        self._tools = {tool.name: tool for tool in tools}
        self._results = results
        self._max_chars = max_chars
        self._conclusions = conclusions or {}
        self._block_source = block_source

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all tools."""
        return tuple(self._tools)

    def specs(self, names: Sequence[str]) -> list[dict[str, Any]]:
        """OpenAI tool definitions of `names`, in that order; raises KeyError for an unknown name."""
        return [self._tools[name].spec() for name in dict.fromkeys(names)]

    async def call(self, name: str, arguments: Mapping[str, Any] | None, *, brief: Brief) -> ToolResult:
        """Call one tool; `arguments` is None if the model's arguments were not a JSON object."""
        tool = self._tools.get(name)
        if tool is None:
            return _invalid(name, f"there is no tool {_short(name)!r}; the tools are {', '.join(self._tools)}")
        try:
            text: str = getattr(tool.arguments.model_validate(arguments), tool.parameter)
        except ValidationError as error:
            return _invalid(name, _explain(tool, arguments, error))
        try:
            found = await tool.search(text)
        except ToolError as error:
            return ToolResult(name, ok=False, error=clean(str(error)))
        if tool.live and self._block_source:
            conclusion = self._conclusions.get(brief.id)
            found = [passage for passage in found if not is_source(passage, brief, conclusion)]
        passages = tuple(self._shorten(passage, text) for passage in found[: self._results])
        return ToolResult(name, ok=True, passages=passages, note=None if passages else f"no match for {_short(text)!r}")

    def _shorten(self, passage: Passage, query: str) -> Passage:
        return replace(
            passage,
            id=clean(passage.id)[:_MAX_ID],
            title=clean(passage.title)[: self._max_chars],
            text=excerpt(clean(passage.text), query, self._max_chars),
        )


def build_toolbox(
    config: ToolsConfig,
    documents: Sequence[DocumentLike],
    secrets: Mapping[str, str],
    *,
    conclusions: Mapping[str, Fingerprint] | None = None,
    block_source: bool = True,
) -> Toolbox:
    """All four tools with the back ends that `config` names.

    `conclusions` are the fingerprints of the conclusions that live tools must not show, by task id
    (`Dataset.conclusions`).

    Raises ConfigError if the key of a configured back end is missing or malformed, or if `tools.database` is not a
    Chimera database.
    """
    local = LocalTools(LiteratureIndex(documents), open_knowledge(config.database), config.results)
    http = LiveHttp(config.timeout_s, config.retries)

    def tavily(setting: str) -> Tavily:
        key = _key(secrets, TAVILY_KEY)
        if key is None:
            raise ConfigError(f"{setting}=tavily needs {TAVILY_KEY}: set it in the environment or in .env")
        return Tavily(http, config.results, key)

    literature: dict[str, Callable[[], Search]] = {
        "local": lambda: local.literature_search,
        "pubmed": lambda: PubMed(http, config.results, _key(secrets, NCBI_KEY)).literature_search,
        "tavily": lambda: tavily("tools.literature").literature_search,
    }
    trials: dict[str, Callable[[], Search]] = {
        "local": lambda: local.clinical_trials,
        "clinicaltrials": lambda: ClinicalTrials(http, config.results).clinical_trials,
        "tavily": lambda: tavily("tools.trials").clinical_trials,
    }
    protein: dict[str, Callable[[], Search]] = {
        "local": lambda: local.protein_lookup,
        "uniprot": lambda: UniProt(http, config.results).protein_lookup,
    }
    ontology: dict[str, Callable[[], Search]] = {
        "local": lambda: local.gene_ontology,
        "quickgo": lambda: QuickGO(http, config.results).gene_ontology,
    }
    tools = [
        Tool.of(literature[config.literature](), live=config.literature != "local"),
        Tool.of(trials[config.trials](), live=config.trials != "local"),
        Tool.of(protein[config.protein](), live=config.protein != "local"),
        Tool.of(ontology[config.ontology](), live=config.ontology != "local"),
    ]
    return Toolbox(
        tools,
        results=config.results,
        max_chars=config.max_chars,
        conclusions=conclusions,
        block_source=block_source,
    )


def _key(secrets: Mapping[str, str], name: str) -> str | None:
    key = secrets.get(name, "").strip()
    if not (key.isascii() and key.isprintable()):
        raise ConfigError(f"{name} holds characters that no key has, such as a typographic quote: copy it again")
    return key or None


def _invalid(name: str, error: str) -> ToolResult:
    return ToolResult(_short(name), ok=False, error=error, valid=False)


def _explain(tool: Tool, arguments: object, error: ValidationError) -> str:
    expected = f'{tool.name} takes {{"{tool.parameter}": text of 1 to {MAX_QUERY} characters}}'
    if not isinstance(arguments, Mapping):
        return f"{expected}; the arguments were not a JSON object"
    faults = "; ".join(
        f"{_short('.'.join(map(str, fault['loc'])))}: {fault['msg'][:1].lower()}{fault['msg'][1:]}"
        for fault in error.errors(include_url=False, include_input=False)[:3]
    )
    return f"{expected}; {faults}"


def _short(text: str) -> str:
    text = re.sub(r"\s+", " ", clean(text))
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."
