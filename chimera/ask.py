"""`python -m chimera.ask "question"`: the society answers one question of yours, step by step, with its sources."""

import argparse
import asyncio
import os
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chimera.cli import add_config_arguments, config_from, parse_arguments
from chimera.errors import ConfigError
from chimera.types import Brief

if TYPE_CHECKING:
    from rich.console import Console

    from agents.context import Selector, Tools
    from agents.tools import Passage, Toolbox, ToolResult
    from chimera.config import Config, ModelsConfig
    from chimera.policies import Learner, Policy
    from chimera.runs import Run
    from chimera.serving.client import Endpoint
    from chimera.serving.process import ModelServers

QUESTION = "question"
"""The brief's id, and that of its abstract in the literature index."""


class SourceLog:
    """A toolbox that remembers every passage it gave, with the title and address that prompts leave out."""

    def __init__(self, toolbox: "Tools") -> None:
        self._toolbox = toolbox
        self.passages: list[Passage] = []

    def specs(self, names: Sequence[str]) -> list[dict[str, Any]]:
        """The OpenAI tool schemas of `names`."""
        return self._toolbox.specs(names)

    async def call(self, name: str, arguments: Mapping[str, Any], *, brief: Brief) -> "ToolResult":
        """Run one tool and keep what it found."""
        result = await self._toolbox.call(name, arguments, brief=brief)
        self.passages += result.passages
        return result

    def listing(self) -> list[dict[str, str | None]]:
        """Id, title and address of each source, once."""
        found: dict[str, Passage] = {}
        for passage in self.passages:
            found.setdefault(passage.id, passage)
        return [{"id": one.id, "title": one.title, "url": one.url} for one in found.values()]


def main(argv: list[str]) -> int | None:
    """Ask the society one question."""
    parser = argparse.ArgumentParser(prog="python -m chimera.ask", description=__doc__)
    parser.add_argument("question", help="the research question, best one that yes, no or maybe answers")
    parser.add_argument(
        "--context", type=Path, metavar="FILE", help="text file with an abstract for the question, added to the index"
    )
    parser.add_argument(
        "--run", metavar="NAME", help="ask the society as this run trained it: its settings, weights and policy"
    )
    add_config_arguments(parser)
    arguments = parse_arguments(parser, argv)
    question = " ".join(arguments.question.split())
    if not question:
        raise ConfigError('the question is empty: python -m chimera.ask "Does aspirin prevent stroke?"')
    run = _trained(arguments)
    config = config_from(arguments, own_question=True, reads=READS)
    if config.society.evidence == "given" and arguments.context is None:
        raise ConfigError("society.evidence=given puts your abstract into the prompts: give one with --context FILE")

    from rich.console import Console

    from chimera.abstracts import read_abstract

    context = read_abstract(arguments.context) if arguments.context else ()
    answer(Brief(QUESTION, question, context), config, Console(highlight=False), run)
    return None


READS = ("seed", "runs_dir", "data", "models", "serving", "society", "tools")
INVENTED = (
    "only invented studies are searched, which know nothing of real questions: "
    "give --context FILE, data.path=hub or tools.literature=pubmed"
)


def _trained(arguments: argparse.Namespace) -> "Run | None":
    """The run that `--run` names, whose settings are then taken instead of a file's.

    Raises:
        ConfigError: `--config` is given too.
        RunError: There is no such run.
    """
    if arguments.run is None:
        return None
    if arguments.config is not None:
        raise ConfigError(f"--run={arguments.run} brings its own settings: leave --config out")
    from chimera.runs import Run

    run = Run.open(arguments.run, config_from(arguments, own_question=True).runs_dir)
    arguments.config = run.path / "config.yaml"
    return run


def answer(brief: Brief, config: "Config", console: "Console", run: "Run | None" = None) -> None:
    """Start the models, have the society work on `brief`, and show each step as it is made.

    With a `run`, its learned weights and its supervisor's policy are used.
    """
    from chimera.ask_view import Card, show
    from chimera.policies import live
    from chimera.secrets import api_key_names, load_secrets
    from chimera.serving.process import serve

    secrets = load_secrets(api_key_names(config.models.model_dump()))
    toolbox, searched = _toolbox(brief, config, secrets)
    about = (("models", _players(config.models)), ("searches", searched))
    if config.data.path == "generated" and config.tools.literature == "local" and not brief.context:
        about += (("note", INVENTED),)
    learned = live(run.events()) if run else {}
    if run:
        versions = ", ".join(policy.version for policy in learned.values()) or "nothing: its base models answer"
        about += (("learned", f"{versions} (run {run.name})"),)
    show(console, Card(brief.goal, about, "cyan"))
    server_log = Path(tempfile.gettempdir(), f"chimera-ask-{os.getpid()}.log")
    with serve(config.models, config.serving, secrets, log_file=server_log) as servers:
        selector = _load(servers, run, learned) if run else None
        asyncio.run(_work(brief, config, console, SourceLog(toolbox), servers.endpoints, selector))
    server_log.unlink(missing_ok=True)  # After an error it stays: the error names it.


def _load(servers: "ModelServers", run: "Run", learned: "Mapping[Learner, Policy]") -> "Selector | None":
    """Serve the weights that `run` learned; the selector of its supervisor's policy, None when it has none."""
    from training.selection import SelectionSpec, make_selector

    for learner, policy in learned.items():
        if learner != "supervisor":
            servers.load_weights(learner, run.path / policy.folder, version=policy.version)
    chooser = learned.get("supervisor")
    if chooser is None:
        return None
    folder = str((run.path / chooser.folder).absolute())
    return make_selector(SelectionSpec(chooser.version, folder, exploration=0.0), greedy=True)


async def _work(
    brief: Brief,
    config: "Config",
    console: "Console",
    log: SourceLog,
    endpoints: Mapping[str, "Endpoint"],
    selector: "Selector | None",
) -> None:
    from agents.society import Society
    from agents.sources import given_sources
    from chimera.ask_view import Card, cards, show, source_lines
    from chimera.serving.client import HttpModel
    from evaluation.judge import Judge

    given = (given_sources(brief) or []) if config.society.evidence == "given" else []
    model = HttpModel(endpoints)
    society = Society(model, log, config.society, evaluate=Judge(model).evaluate)
    working = console.status("the juniors read") if console.is_terminal else nullcontext()
    try:
        with working as status:
            async for node, update in society.stream(brief, config.seed, select=selector):
                texts = [(one["id"], one["text"]) for one in given] + [(one.id, one.text) for one in log.passages]
                for card in cards(update, texts):
                    show(console, card)
                if status is not None:
                    status.update(f"{node} is done, the next one works")
    finally:
        await model.aclose()
    sources = [{"id": one["id"], "title": "your abstract", "url": None} for one in given] + log.listing()
    show(console, Card("Sources", source_lines(sources), "cyan"))


def _toolbox(brief: Brief, config: "Config", secrets: Mapping[str, str]) -> "tuple[Toolbox, str]":
    """The tools and, in words, what they search: the configured data's abstracts and the question's own."""
    from agents.sources import given_sources
    from agents.tools import build_toolbox
    from chimera.data import Document, load

    documents: list[Document] = []
    searched = [f"{name}: {where}" for name, where in config.tools.model_dump().items() if where in _LIVE]
    if "local" in (config.tools.literature, config.tools.trials):
        data = load(config.data)
        documents += data.documents()
        searched.append(data.describe())
    if brief.context:
        documents += [Document(one["id"], "your abstract", one["text"]) for one in given_sources(brief) or ()]
        searched.append("your abstract")
    # A user's question has no answer key, so nothing needs to be hidden from live searches.
    return build_toolbox(config.tools, documents, secrets, block_source=False), "; ".join(searched)


_LIVE = ("pubmed", "tavily", "clinicaltrials", "uniprot", "quickgo")


def _players(models: "ModelsConfig") -> str:
    """Which model plays which part, such as 'nano: junior, supervisor, senior; rubric: board, principal, judge'."""
    parts: dict[str, list[str]] = {}
    for key in type(models).model_fields:
        one = getattr(models, key)
        name = {"embedded": one.path, "endpoint": one.model or "endpoint", "rubric": "rubric"}[one.kind]
        parts.setdefault(name, []).append(key)
    return "; ".join(f"{name}: {', '.join(keys)}" for name, keys in parts.items())


if __name__ == "__main__":
    from chimera.cli import run_command

    run_command(main)
