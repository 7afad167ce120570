"""`python -m chimera.ask "question"`: the society answers one question of yours, step by step, with its sources."""

import argparse
import asyncio
from collections.abc import Mapping
from contextlib import aclosing, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from chimera.cli import add_config_arguments, config_from, parse_arguments
from chimera.errors import ConfigError
from chimera.types import Brief

if TYPE_CHECKING:
    from rich.console import Console

    from agents.context import Selector
    from chimera.config import Config, ModelsConfig
    from chimera.policies import Learner, Policy
    from chimera.runs import Run
    from chimera.serving.process import ModelServers
    from evaluation.live_society import LiveSociety

QUESTION = "question"
"""The brief's id, and that of its abstract in the literature index."""


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
    from evaluation.live_society import build_library, open_society

    library = build_library(config, load_secrets(api_key_names(config.models.model_dump())), brief)
    about = (("models", _players(config.models)), ("searches", library.searched))
    if config.data.path == "generated" and config.tools.literature == "local" and not brief.context:
        about += (("note", INVENTED),)
    learned = live(run.events()) if run else {}
    if run:
        versions = ", ".join(policy.version for policy in learned.values()) or "nothing: its base models answer"
        about += (("learned", f"{versions} (run {run.name})"),)
    show(console, Card(brief.goal, about, "cyan"))
    with open_society(config, library) as society:
        selector = _load(society.servers, run, learned) if run else None
        asyncio.run(_work(society, brief, config.seed, console, selector))


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
    society: "LiveSociety", brief: Brief, seed: int, console: "Console", selector: "Selector | None"
) -> None:
    from chimera.ask_view import show

    sources = None
    working = console.status("the juniors read") if console.is_terminal else nullcontext()
    async with aclosing(society.answer(brief, seed, select=selector)) as steps:
        with working as status:
            async for step in steps:
                for card in step.cards:
                    show(console, card)
                if status is not None:
                    status.update(f"{step.node} is done, the next one works")
                sources = step.sources
    if sources is not None:
        show(console, sources)


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
