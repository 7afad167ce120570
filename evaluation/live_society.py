"""A society whose models run, for a person who puts a question to it and sees each step with its sources."""

import os
import tempfile
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agents.context import Selector
from agents.roles import ROLES
from agents.society import Society
from agents.source_log import SourceLog
from agents.sources import given_sources
from agents.tools import Toolbox, build_toolbox
from chimera.ask_view import Card, cards, source_lines
from chimera.card_html import card_html, escaped
from chimera.cli import keep_loopback_direct
from chimera.config import Config
from chimera.data import Document, load
from chimera.secrets import api_key_names, load_secrets
from chimera.serving.client import HttpModel
from chimera.serving.process import ModelServers, serve
from chimera.types import Brief
from evaluation.judge import Judge

LIVE = ("pubmed", "tavily", "clinicaltrials", "uniprot", "quickgo")
"""Back ends of tools that ask the web."""
BOOKKEEPING = ("messages", "sender", "turn_count")
"""Fields of the state that every role writes."""


@dataclass(frozen=True, slots=True)
class Library:
    """What the society can search: the tools, and in words where they look."""

    toolbox: Toolbox
    searched: str


@dataclass(frozen=True, slots=True, repr=False)
class Step:
    """One node of the graph has ended.

    Attributes:
        number: Which step this is, from 1; the three juniors end in any order.
        node: The node.
        update: What it wrote into the state.
        cards: The same for a reader.
        sources: The passages that the society has found up to here, as one more card.
    """

    number: int
    node: str
    update: Mapping[str, Any]
    cards: tuple[Card, ...]
    sources: Card

    @property
    def wrote(self) -> tuple[str, ...]:
        """The fields of the state that it wrote, without those that every role writes."""
        return tuple(name for name in self.update if name not in BOOKKEEPING)

    @property
    def headline(self) -> str:
        """The node, the model that plays it and what it wrote, in one line."""
        model = f" ({ROLES[self.node].model} model)" if self.node in ROLES else ""
        return f"Step {self.number}: {self.node}{model} wrote {', '.join(self.wrote)}"

    def __repr__(self) -> str:
        """The headlines alone: `update` holds whole conversations."""
        return "\n".join([self.headline, *(f"  {card.headline}" for card in self.cards)])

    def _repr_html_(self) -> str:
        return f"<p><small>{escaped(self.headline)}</small></p>{''.join(map(card_html, self.cards))}"


class LiveSociety:
    """A society whose models run. Made by `open_society`.

    Attributes:
        servers: Where each logical model is served.
    """

    def __init__(self, config: Config, servers: ModelServers, library: Library) -> None:
        self.servers = servers
        self._config = config
        self._library = library

    async def answer(
        self, brief: Brief, seed: int | None = None, *, select: Selector | None = None
    ) -> AsyncGenerator[Step, None]:
        """Work on `brief` and yield each node's step as it ends.

        Args:
            brief: The question and what may be known of it.
            seed: Of everything random in the work.
            select: Decides which hypothesis goes on, instead of the supervisor's model.

        Raises:
            RoleError: A role failed or ran out of time; the message names it.
        """
        given = (given_sources(brief) or []) if self._config.society.evidence == "given" else []
        listed = [{"id": one["id"], "title": "your abstract", "url": None} for one in given]
        log, model = SourceLog(self._library.toolbox), HttpModel(self.servers.endpoints)
        society = Society(model, log, self._config.society, evaluate=Judge(model).evaluate)
        number = 0
        try:
            async for node, update in society.stream(brief, seed, select=select):
                number += 1
                texts = [(one["id"], one["text"]) for one in given] + [(one.id, one.text) for one in log.passages]
                sources = Card("Sources", source_lines([*listed, *log.listing()]), "cyan")
                yield Step(number, node, update, tuple(cards(update, texts)), sources)
        finally:
            await model.aclose()


def build_library(config: Config, secrets: Mapping[str, str], question: Brief | None = None) -> Library:
    """The tools of `config`, over the configured data's abstracts.

    Args:
        config: The whole configuration.
        secrets: Keys of live tools.
        question: A person's own question, whose abstract can be found too. It has no answer key, so live searches hide
            nothing. Without it tasks of the data are asked, and live searches hide the articles behind them.

    Raises:
        ConfigError: A configured tool lacks its key or its database.
        DataError: The data cannot be read.
    """
    documents: list[Document] = []
    conclusions = None
    searched = [f"{name}: {where}" for name, where in config.tools.model_dump().items() if where in LIVE]
    if question is None or "local" in (config.tools.literature, config.tools.trials):
        data = load(config.data)
        documents += data.documents()
        conclusions = data.conclusions()
        searched.append(data.describe())
    if question is not None and question.context:
        documents += [Document(one["id"], "your abstract", one["text"]) for one in given_sources(question) or ()]
        searched.append("your abstract")
    hide = question is None
    toolbox = build_toolbox(
        config.tools, documents, secrets, conclusions=conclusions if hide else None, block_source=hide
    )
    return Library(toolbox, "; ".join(searched))


@contextmanager
def open_society(config: Config, library: Library | None = None) -> Iterator[LiveSociety]:
    """Run the models of `config` for the duration of a `with` block.

    Args:
        config: The whole configuration.
        library: What the society can search; for tasks of the configured data without it.

    Raises:
        ConfigError: A key, a model's folder or a tool's database is missing.
        ModelError: The model server did not start; the message names its log, which is kept then.
    """
    keep_loopback_direct()
    secrets = load_secrets(api_key_names(config.models.model_dump()))
    library = library or build_library(config, secrets)
    descriptor, name = tempfile.mkstemp(prefix="chimera-models-", suffix=".log")
    os.close(descriptor)
    log_file = Path(name)
    with serve(config.models, config.serving, secrets, log_file=log_file) as servers:
        yield LiveSociety(config, servers, library)
    log_file.unlink()  # After an error it stays: the error names it.
