"""Chimera's own four tools and their back ends: literature, clinical trials, proteins and Gene Ontology terms."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pydantic import ConfigDict, create_model

from agents.tools.literature import LiteratureIndex
from agents.tools.live.go import QuickGO
from agents.tools.live.http import LiveHttp, SearchCache
from agents.tools.live.proteins import UniProt
from agents.tools.live.pubmed import NCBI_KEY, PubMed
from agents.tools.live.tavily import TAVILY_KEY, Tavily
from agents.tools.live.trials import ClinicalTrials
from agents.tools.ontology.database import Knowledge, open_knowledge
from agents.tools.text.passages import Passage, Query
from agents.tools.tool import Search, SearchTool, Tool
from chimera.config.sections.tools import LOCAL, ToolsConfig
from chimera.core.errors import ConfigError
from chimera.data.tasks import Document

TOOL_KEYS = (NCBI_KEY, TAVILY_KEY)
"""Variables with the keys that these tools use."""


def own_tool(search: Search, *, live: bool) -> Tool:
    """The tool that `search` makes, by its own name, docstring and the one parameter in its signature.

    Equal searches of a live tool are asked once.
    """
    name = getattr(search, "__name__", type(search).__name__)
    description = inspect.getdoc(search)
    if not description:
        raise TypeError(f"tool {name} has no docstring: models read it as the tool's description")
    ((parameter, details),) = inspect.signature(search).parameters.items()
    cache = SearchCache()

    async def cached(text: str) -> Sequence[Passage]:
        return await cache.get(text, lambda: search(text))

    find = cached if live else search
    fields: dict[str, Any] = {parameter: (details.annotation, ...)}
    schema = create_model(name, __config__=ConfigDict(extra="forbid"), **fields)
    base = SearchTool(name=name, description=" ".join(description.split()), args_schema=schema, search=find)
    # The search itself, and not LangChain's `ainvoke`, which costs a quarter of a millisecond more a call.
    return Tool(name, base, lambda arguments: find(arguments[parameter].strip()), live)


class LocalTools:
    """The back ends that need no network: the task data's own abstracts and the protein and ontology database."""

    def __init__(self, literature: LiteratureIndex, knowledge: Knowledge, results: int, *, separate: bool) -> None:
        self._literature = literature
        self._knowledge = knowledge
        self._results = results
        self._trials_in_literature = False if separate else None

    async def literature_search(self, query: Query) -> Sequence[Passage]:
        """Search abstracts of medical studies by research question or key words."""
        return self._literature.search(query, self._results, trials=self._trials_in_literature)

    async def clinical_trials(self, query: Query) -> Sequence[Passage]:
        """Search only those abstracts that report a clinical trial; this is not a trial registry."""
        return self._literature.search(query, self._results, trials=True)

    async def protein_lookup(self, name: Query) -> Sequence[Passage]:
        """Look up a protein by name, gene symbol or UniProt accession."""
        return self._knowledge.proteins(name, self._results)

    async def gene_ontology(self, term: Query) -> Sequence[Passage]:
        """Look up a Gene Ontology term by name, synonym or GO id."""
        return self._knowledge.terms(term, self._results)


def own_tools(config: ToolsConfig, documents: Sequence[Document], secrets: Mapping[str, str]) -> list[Tool]:
    """The four tools with the back ends that `config` names.

    Raises:
        ConfigError: The key of a configured back end is missing or malformed, or `tools.database` is not a Chimera
            database.
    """
    index, knowledge = LiteratureIndex(documents), open_knowledge(config.database)
    local = LocalTools(index, knowledge, config.results, separate=config.trials == "separate")
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
        "separate": lambda: local.clinical_trials,
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
    return [
        own_tool(literature[config.literature](), live=config.literature != "local"),
        own_tool(trials[config.trials](), live=config.trials not in LOCAL),
        own_tool(protein[config.protein](), live=config.protein != "local"),
        own_tool(ontology[config.ontology](), live=config.ontology != "local"),
    ]


def _key(secrets: Mapping[str, str], name: str) -> str | None:
    key = secrets.get(name, "").strip()
    if not (key.isascii() and key.isprintable()):
        raise ConfigError(f"{name} holds characters that no key has, such as a typographic quote: copy it again")
    return key or None
