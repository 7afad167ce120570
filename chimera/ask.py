"""`python -m chimera.ask "question"`: the society answers one question of yours, step by step, with its sources."""

import argparse
import asyncio
from collections.abc import Mapping
from contextlib import aclosing, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from chimera.core.cli import add_config_arguments, config_from, parse_arguments
from chimera.core.errors import ConfigError
from chimera.core.types import SOURCE_NAMES, Brief, ResearchTask

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.console import Console

    from agents.context import Selector
    from chimera.config.tree import Config, ModelConfig
    from chimera.run.directory import Run
    from chimera.run.policies import Policy
    from chimera.serving.process import ModelServers
    from chimera.show.card import Card
    from evaluation.conduct.live_society import LiveSociety

QUESTION = "question"
"""Id of the brief, and of its abstract in the literature index."""
READS = ("seed", "runs_dir", "data", "models", "roles", "serving", "society", "tools")
SOURCES = "--context FILE with an abstract, data.path=hub (PubMedQA) or tools.literature=pubmed"


def main(argv: list[str]) -> int | None:
    """Ask the society one question."""
    arguments = parse_arguments(_parser(), argv)
    if arguments.task is not None and arguments.question is not None:
        # argparse takes the first setting for the question, because the question is left out here.
        arguments.overrides.insert(0, arguments.question)
    run = _trained(arguments)
    config = config_from(arguments, own_question=arguments.task is None, reads=READS)
    if run is not None:
        from chimera.config.programs import check_confirmed

        check_confirmed(config, arguments.overrides)
    asked = _own_question(arguments, config) if arguments.task is None else _task(arguments, config)

    from rich.console import Console

    answer(asked, config, Console(highlight=False), run)
    return None


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m chimera.ask", description=__doc__)
    parser.add_argument("question", nargs="?", help="the research question, best one that yes, no or maybe answers")
    parser.add_argument(
        "--context", type=Path, metavar="FILE", help="text file with an abstract for the question, which is searched"
    )
    parser.add_argument(
        "--task", metavar="ID", help="instead of a question of yours: a task of the data, such as generated-0-5"
    )
    parser.add_argument(
        "--run", metavar="NAME", help="ask the society as this run trained it: its settings, weights and policy"
    )
    add_config_arguments(parser)
    return parser


@dataclass(frozen=True, slots=True)
class Asked:
    """What the society is asked: a user's question, or a task of the data."""

    brief: Brief
    task: ResearchTask | None = None

    @property
    def real(self) -> bool:
        """True if the question is about the real world, which is so unless the task is generated."""
        return self.task is None or self.task.source != "generated"


def _own_question(arguments: argparse.Namespace, config: "Config") -> Asked:
    """The user's question; checks that there are sources to answer it from.

    Raises:
        ConfigError: There is no question, or there are no sources.
        DataError: The abstract cannot be read.
    """
    from chimera.core.abstracts import read_abstract

    question = " ".join((arguments.question or "").split())
    if not question:
        raise ConfigError('the question is empty: python -m chimera.ask "Does aspirin prevent stroke?"')
    _check_readable(config, has_context=arguments.context is not None)
    context = read_abstract(arguments.context) if arguments.context else ()
    return Asked(Brief(QUESTION, question, context))


def _check_readable(config: "Config", *, has_context: bool) -> None:
    """Refuse a question for which the society could read no source.

    Raises:
        ConfigError: There are no sources, or no role may read them.
    """
    society, tools = config.society, config.tools
    if society.evidence == "given" and not has_context:
        raise ConfigError("society.evidence=given puts your abstract into the prompts: give one with --context FILE")
    if society.evidence == "retrieved" and society.max_tool_calls == 0:
        raise ConfigError(
            "society.max_tool_calls=0: no role may search, so none could read a source; "
            "set society.evidence=given and give --context FILE, or allow a tool call"
        )
    live = (tools.literature, tools.trials) != ("local", "local")
    if config.data.path == "generated" and not (live or has_context or config.roles.foreign()):
        raise ConfigError(
            "there is nothing to answer your question from, because generated tasks are invented studies: "
            f"give {SOURCES}; --task generated-0-5 shows the society at work on an invented study"
        )


def _task(arguments: argparse.Namespace, config: "Config") -> Asked:
    """The task that `--task` names.

    Raises:
        ConfigError: There is no such task, or `--context` is given too.
    """
    from chimera.data.tasks import load

    if arguments.context is not None:
        raise ConfigError("--context is for a question of yours: --task brings its own abstract")
    tasks = {task.id: task for task in load(config.data).tasks}
    if arguments.task not in tasks:
        raise ConfigError(f"--task={arguments.task} is not in the data; there are {', '.join(list(tasks)[:3])}, ...")
    return Asked(tasks[arguments.task].brief(), tasks[arguments.task])


def _trained(arguments: argparse.Namespace) -> "Run | None":
    """The run that `--run` names; its settings replace those of a file.

    Raises:
        ConfigError: `--config` is given too.
        RunError: There is no such run.
    """
    if arguments.run is None:
        return None
    if arguments.config is not None:
        raise ConfigError(f"--run={arguments.run} brings its own settings: leave --config out")
    from chimera.run.directory import Run

    run = Run.open(arguments.run, config_from(arguments, own_question=True).runs_dir)
    arguments.config = run.config_file
    return run


def answer(asked: Asked, config: "Config", console: "Console", run: "Run | None" = None) -> None:
    """Start the models, let the society answer the question, and show each step when it is done.

    With a `run`, its learned weights and its supervisor's policy are used. If the bundled model gets a real question,
    a warning is shown before and after the answer, also after an error.
    """
    from chimera.core.secrets import load_secrets
    from chimera.core.toy import toy_parts, warning
    from chimera.run.policies import live
    from chimera.run.seals import checked
    from chimera.show.card import show
    from evaluation.conduct.live_society import build_library, open_society

    toys = toy_parts(config.used()) if asked.real else []
    secrets = load_secrets(config.secret_names())
    library = build_library(config, secrets, asked.brief if asked.task is None else None)
    learned = list(live(run.events()).values()) if run else []
    if run:
        for policy in learned:
            checked(run, policy.folder)
    try:
        if toys:
            show(console, warning(toys, "below"))
        show(console, _about(asked, config, library.searched, run, learned))
        with open_society(config, library) as society:
            selector = _put_live(run, config, society.servers, learned) if run else None
            asyncio.run(_work(society, asked.brief, config, console, selector))
    finally:
        if toys:
            show(console, warning(toys, "above"))


def _about(asked: Asked, config: "Config", searched: str, run: "Run | None", learned: "Sequence[Policy]") -> "Card":
    """The question, the models that answer it, and the sources that they search."""
    from chimera.show.card import Card

    about = (("models", _players(config.used())), ("searches", searched))
    if asked.task is not None:
        about += (("task", f"{asked.task.id} of {SOURCE_NAMES[asked.task.source]}, answer key: {asked.task.label}"),)
    if run:
        versions = ", ".join(policy.version for policy in learned) or "nothing: its base models answer"
        about += (("learned", f"{versions} (run {run.name})"),)
    return Card(asked.brief.goal, about, "cyan")


def _put_live(run: "Run", config: "Config", servers: "ModelServers", learned: "Sequence[Policy]") -> "Selector":
    """Put the run's learned policies live; returns the selector of hypotheses."""
    from evaluation.conduct.live import Live

    live = Live(run, config.models, servers)
    live.restore(learned)
    return live.selector()


async def _work(
    society: "LiveSociety", brief: Brief, config: "Config", console: "Console", selector: "Selector | None"
) -> None:
    from chimera.show.card import Card, show
    from evaluation.conduct.silent_tools import never_searched

    last = None
    working = console.status("the juniors read") if console.is_terminal else nullcontext()
    async with aclosing(society.answer(brief, config.seed, select=selector)) as steps:
        with working as status:
            async for step in steps:
                for card in step.cards:
                    show(console, card)
                if status is not None:
                    status.update(f"{step.node} is done, the next one works")
                last = step
    if last is not None:
        show(console, last.sources)
        if last.tool_calls == 0 and (silent := never_searched(config)):
            show(console, Card("WARNING: no role searched", (("why", silent),), "red3"))


def _players(models: "Mapping[str, ModelConfig]") -> str:
    """The slots that each model plays, such as 'nano: junior, supervisor, senior; rubric: board, principal, judge'."""
    parts: dict[str, list[str]] = {}
    for key, one in models.items():
        name = {"embedded": one.path, "endpoint": one.model or "endpoint", "rubric": "rubric"}[one.kind]
        parts.setdefault(name, []).append(key)
    return "; ".join(f"{name}: {', '.join(keys)}" for name, keys in parts.items())


if __name__ == "__main__":
    from chimera.core.cli import run_command

    run_command(main)
