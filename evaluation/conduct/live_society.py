"""A society with running models: a person asks a question and sees each step with its sources."""

import shutil
import tempfile
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping, Sequence, Set
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.jupyter import JupyterMixin

from agents.context import AS_CONFIGURED, LearnedSociety, Selector, Tools
from agents.person import SKIP, PersonVerdict
from agents.saver import open_saver
from agents.society import WAITS, Saved, Society
from agents.tools.source_log import SourceLog
from agents.tools.text.passages import Passage
from agents.tools.toolbox import build_toolbox
from agents.visit.sources import given_sources
from chimera.config.roles import JUDGE, tool_name
from chimera.config.sections.bundled import toy_parts
from chimera.config.tree import Config
from chimera.core.cli import keep_direct
from chimera.core.errors import ChimeraError
from chimera.core.machine import lasting_folder
from chimera.core.secrets import load_secrets
from chimera.core.types import Brief, Source
from chimera.data.tasks import Document, load
from chimera.serving.client import HttpModel
from chimera.serving.process import ModelServers, serve
from chimera.show.ask import cards
from chimera.show.card import Card
from evaluation.conduct.grounds import LIVE, YOURS, Origins, Read, Rule, source_lines
from evaluation.conduct.kept import THREAD, Kept
from evaluation.conduct.own_abstract import OwnAbstract
from evaluation.rollout.answering import answering
from evaluation.scores.judge import Judge

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

BOOKKEEPING = ("messages", "sender", "turn_count")
"""Fields of the state that every role writes."""


@dataclass(frozen=True, slots=True)
class Library:
    """The sources that the society can search.

    Attributes:
        searched: Where the tools search, in words.
        rule: The rule for decisions on a person's own question; None for tasks of the data.
    """

    toolbox: Tools
    searched: str
    origins: Origins
    rule: Rule | None = None


@dataclass(frozen=True, slots=True, repr=False)
class Step(JupyterMixin):
    """The result of one node of the graph.

    Attributes:
        number: Number of the step, from 1. The three juniors end in any order.
        update: The fields of the state that it wrote. The answer to a person's own question is withheld unless a real
            source supports it (see `evaluation.conduct.grounds.Rule`).
        sources: The passages that the society has found so far, as a further card.
        tool_calls: Number of tool calls so far.
        slot: The slot whose model plays the node; None if the node is not a role.
        waits_for: What a person has to confirm before the work goes on (see `agents.person`); None otherwise.
    """

    number: int
    node: str
    update: Mapping[str, Any]
    cards: tuple[Card, ...]
    sources: Card
    tool_calls: int = 0
    slot: str | None = None
    waits_for: Mapping[str, Any] | None = None
    read: tuple[Read, ...] = ()

    @property
    def wrote(self) -> tuple[str, ...]:
        """The fields of the state that the node wrote, without those that every role writes."""
        return tuple(name for name in self.update if name not in BOOKKEEPING)

    @property
    def headline(self) -> str:
        """The node, its model and the fields that it wrote, in one line."""
        model = f" ({self.slot} model)" if self.slot else ""
        return f"Step {self.number}: {self.node}{model} wrote {', '.join(self.wrote)}"

    def __repr__(self) -> str:
        """Headlines only, because `update` holds whole conversations."""
        return "\n".join([self.headline, *(f"  {card.headline}" for card in self.cards)])

    def __rich_console__(self, console: "Console", options: "ConsoleOptions") -> "RenderResult":
        from rich.text import Text

        yield Text(self.headline, style="dim")
        yield from self.cards


class LiveSociety:
    """A society with running models. Made by `open_society`."""

    def __init__(self, config: Config, servers: ModelServers, library: Library) -> None:
        self.servers = servers
        self._config = config
        self._library = library

    async def answer(
        self,
        brief: Brief,
        seed: int | None = None,
        *,
        select: Selector | None = None,
        learned: LearnedSociety = AS_CONFIGURED,
        kept_question: Kept | None = None,
        verdict: PersonVerdict | None = None,
    ) -> AsyncGenerator[Step, None]:
        """Work on `brief` and yield each node's step as it ends.

        With `kept_question`, the work goes on where it was left. If a person has to confirm the decision, the last step
        has `waits_for`.

        Args:
            brief: The question and the material that the society may see.
            select: Chooses the hypothesis instead of the supervisor's model.
            learned: What was learned for the society as a whole.
            verdict: A person's verdict on the decision that the kept work waits with.

        Raises:
            RoleError: A role failed or ran out of time; the message names it.
        """
        config, log = self._config, SourceLog(self._library.toolbox)
        endpoints = answering(self.servers.endpoints, config, config.evaluation.temperature)
        model = HttpModel(endpoints, pause_s=config.rollouts.pause_s)
        slots, limit = config.roles.slots(), config.rollouts.timeout_s
        judge = Judge(model, slots[JUDGE])
        society = Society(model, log, config.society, config.roles, evaluate=judge.evaluate, timeout_s=limit)
        desk = _Desk(self._config, self._library, log, brief)
        where = None
        async with AsyncExitStack() as stack:
            stack.push_async_callback(model.aclose)
            if kept_question is not None:
                desk.take_up(await kept_question.state(), kept_question.sources())
                saver = await stack.enter_async_context(open_saver(kept_question.states))
                where = Saved(saver, THREAD, verdict.model_dump() if verdict else None)
            policies = {"select": select, "learned": learned}
            async for node, written in _nodes(society, brief, seed, policies, where, desk):
                if kept_question is not None:
                    kept_question.keep_sources(log.found)
                yield desk.step(node, written, slots.get(node))


class _Desk:
    """Makes the steps of one question from what the nodes wrote."""

    def __init__(self, config: Config, library: Library, log: SourceLog, brief: Brief) -> None:
        self._library, self._log = library, log
        origins = library.origins
        self._abstract = [origins.abstract(source["id"], source["text"]) for source in given_sources(brief) or ()]
        self._given = config.society.evidence == "given"
        self._evidence: list[str] = []
        self._decided: dict[str, Any] = {}
        self._number = 0
        self.withheld = False
        """True once a decision was withheld."""

    def take_up(self, state: Mapping[str, Any], sources: Sequence[tuple[str, Passage]]) -> None:
        """Begin with what an earlier process had reached."""
        self._log.found += sources
        self._decided = {name: value for name, value in state.items() if name.startswith("final_")}
        self._evidence = state.get("refined_hypothesis", {"evidence": []})["evidence"]
        if self._library.rule and "final_decision" in state:
            read = [*self._abstract, *(self._library.origins.of(tool, passage) for tool, passage in self._log.found)]
            self.withheld = "final_withheld" in self._library.rule.apply(state, self._evidence, read)

    def step(self, node: str, written: Mapping[str, Any], slot: str | None) -> Step:
        self._number += 1
        rule = self._library.rule
        read = [self._library.origins.of(tool, passage) for tool, passage in self._log.found]
        if self._given:
            read = self._abstract + read
        # Tools may cut a long abstract. A quote from the part that was cut is still the person's own sentence.
        citable = self._abstract + read if rule and not self._given else read
        self._evidence = written.get("refined_hypothesis", {"evidence": self._evidence})["evidence"]
        # The seat writes only what a person changed.
        update = {**self._decided, **written} if "confirmation" in written else written
        if rule and "final_decision" in update:
            update = rule.apply(update, self._evidence, citable)
            self.withheld = "final_withheld" in update
        texts = [(source.where, source.text) for source in citable]
        sources = Card("Sources", source_lines(read), "cyan")
        shown, waits_for = tuple(cards(update, texts)), update.get(WAITS)
        return Step(self._number, node, update, shown, sources, self._log.calls, slot, waits_for, tuple(read))


async def _nodes(
    society: Society, brief: Brief, seed: int | None, policies: Mapping[str, Any], saved: Saved | None, desk: _Desk
) -> AsyncIterator[tuple[str, Mapping[str, Any]]]:
    """What each node wrote. A decision that is withheld from the person is not put to the person."""
    skipped = False
    async for node, written in society.stream(brief, seed, saved=saved, **policies):
        skipped = WAITS in written and desk.withheld
        if not skipped:
            yield node, written
    if saved is not None and skipped:
        async for node, written in society.stream(brief, seed, saved=replace(saved, verdict=SKIP), **policies):
            yield node, written


def build_library(config: Config, secrets: Mapping[str, str], question: Brief | None = None) -> Library:
    """The tools of `config`, over the configured data's abstracts.

    Args:
        question: A person's own question. Searches find its abstract but no generated tasks, which are invented
            studies. It has no answer key, so live searches hide nothing. None: tasks of the data are asked, and
            live searches hide the articles behind them.

    Raises:
        ConfigError: A configured tool lacks its key or its database.
        DataError: The data cannot be read.
    """
    documents: list[Document] = []
    conclusions = None
    searched = [LIVE[where] for where in map(str, config.tools.model_dump().values()) if where in LIVE]
    searched += [f"your tool {tool_name(reference)}" for reference in config.roles.foreign()]
    source: Source = "generated" if config.data.path == "generated" else "pubmedqa"
    local = "local" in (config.tools.literature, config.tools.trials)
    if question is None or (local and source != "generated"):
        data = load(config.data)
        documents += data.documents()
        conclusions = data.conclusions()
        source = data.source
        searched.append(data.describe())
    abstracts = [
        Document(section["id"], YOURS, section["text"])
        for section in (given_sources(question) if question else None) or ()
    ]
    searched += [YOURS] * len(abstracts)
    hide = question is None
    toolbox: Tools = build_toolbox(
        config.tools,
        [*documents, *abstracts],
        secrets,
        roles=config.roles,
        conclusions=conclusions if hide else None,
        block_source=hide,
    )
    if abstracts and config.society.evidence == "retrieved":
        toolbox = OwnAbstract(toolbox, abstracts[0], config.tools.max_chars)
    origins = Origins(config.tools, source, question.id if question else None)
    if question is None:
        return Library(toolbox, "; ".join(dict.fromkeys(searched)), origins)
    offered = "what you gave" if searched == [YOURS] else "what was searched"
    rule = Rule(question.goal, offered, toy=bool(toy_parts(config.used())))
    return Library(toolbox, "; ".join(dict.fromkeys(searched)), origins, rule)


@contextmanager
def open_society(
    config: Config, library: Library | None = None, *, learning: Set[str] = frozenset()
) -> Iterator[LiveSociety]:
    """Run the models of `config` for the duration of a `with` block.

    Args:
        library: The sources that the society can search. None: those for tasks of the configured data.
        learning: The slots that may get weights of their own.

    Raises:
        ConfigError: A key, a model's folder or a tool's database is missing.
        ModelError: The model server did not start. The message names its log, which alone is kept.
    """
    keep_direct()
    secrets = load_secrets(config.secret_names())
    library = library or build_library(config, secrets)
    logs, named = Path(tempfile.mkdtemp(prefix="chimera-models-", dir=lasting_folder())), False
    log_file = logs / "models.log"
    try:
        with serve(config.used(), config.serving, secrets, log_file=log_file, learning=learning) as servers:
            yield LiveSociety(config, servers, library)
    except ChimeraError as error:
        named = str(logs) in str(error)
        raise
    finally:
        if not named:
            shutil.rmtree(logs)
