"""`python -m chimera.ask "question"`: the society answers one question of yours, step by step, with its sources."""

import argparse
import asyncio
import json
import os
import signal
import sys
from contextlib import aclosing, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chimera.config.arguments import add_config_arguments, config_from
from chimera.core.cli import add_trust_argument, parse_arguments
from chimera.core.errors import ConfigError, RunError
from chimera.core.types import DECISIONS, SOURCE_NAMES, Brief, Decision, ResearchTask

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping, Sequence

    from rich.console import Console

    from agents.person import PersonVerdict
    from chimera.config.sections.models import ModelConfig
    from chimera.config.tree import Config
    from chimera.run.directory import Run
    from chimera.run.policies import Policy
    from chimera.serving.process import ModelServers
    from chimera.show.card import Card
    from evaluation.conduct.asked import AskOutcome
    from evaluation.conduct.kept import Kept
    from evaluation.conduct.live_society import LiveSociety

WITHHELD, WAITS = 7, 8
"""Exit codes: no source supports an answer; the decision waits for a person."""
READS = (
    "seed",
    "runs_dir",
    "data",
    "models",
    "roles",
    "serving",
    "society",
    "tools",
    "evaluation",
    "rollouts.timeout_s",
)
SOURCES = "--context FILE with an abstract, data.path=hub (PubMedQA) or tools.literature=pubmed"


def main(argv: list[str]) -> int | None:
    arguments = parse_arguments(_parser(), argv)
    if (arguments.task or arguments.go_on) is not None and arguments.question is not None:
        # argparse takes the first setting for the question, because the question is left out here.
        arguments.overrides.insert(0, arguments.question)
    if (out := arguments.out) is not None and (out.is_dir() or not os.access(out.parent, os.W_OK)):
        raise ConfigError(f"--out {out} cannot be written: name a file in a folder that exists and is yours")
    if arguments.task is not None and arguments.context is not None:
        raise ConfigError("--context is for a question of yours: --task brings its own abstract")
    verdict = [name for name in ("verdict", "decision", "answer", "reason") if getattr(arguments, name) is not None]
    if verdict and (arguments.go_on is None or arguments.verdict is None):
        needed = "--continue NAME, the question that waits" if arguments.go_on is None else "--verdict edit or reject"
        raise ConfigError(f"--{verdict[0]} has no effect alone: give {needed} too")
    if arguments.go_on is not None:
        return _go_on(arguments)
    run = _trained(arguments)
    config = config_from(arguments, own_question=arguments.task is None, recorded=run is not None, reads=READS)
    if run is not None:
        from chimera.config.trust import check_trusted
        from chimera.run.inputs import check_inputs

        check_trusted(config, run.config_file, "answers", arguments.trust, arguments.overrides)
        check_inputs(run.events(), run.config, config)
        config = config.model_copy(update={"runs_dir": run.path.parent})  # It may have been moved.
    question = _own_question(arguments, config) if arguments.task is None else _task(arguments.task, config)
    if arguments.confirm:
        confirm: tuple[Decision, ...] = ("GO", *(name for name in config.society.confirm if name != "GO"))
        config = config.model_copy(update={"society": config.society.model_copy(update={"confirm": confirm})})
    return answer(question, config, _console(arguments), run, out=_out(arguments))


def _go_on(arguments: argparse.Namespace) -> int:
    """Continue a question that is kept, with the person's verdict if it waits for one."""
    from chimera.config.trust import check_trusted
    from chimera.run.directory import Run
    from chimera.run.inputs import check_inputs
    from evaluation.conduct.kept import OWN_QUESTION, Kept

    if extra := [name for name in ("context", "task", "run") if getattr(arguments, name) is not None]:
        raise ConfigError(f"--continue {arguments.go_on} brings its own question and run: leave --{extra[0]} out")
    runs_dir = config_from(arguments, own_question=True, reads=("runs_dir",)).runs_dir
    saved = Kept.open(runs_dir, arguments.go_on)
    check_trusted(saved.config, saved.path, "answers", arguments.trust)
    run = Run.open(saved.run, runs_dir) if saved.run else None
    if run is not None:
        check_inputs(run.events(), run.config, saved.config)
    question = Asked(saved.brief) if saved.brief.id == OWN_QUESTION else _task(saved.brief.id, saved.config)
    verdict = _said(arguments)
    return answer(question, saved.config, _console(arguments), run, saved=saved, verdict=verdict, out=_out(arguments))


def _said(arguments: argparse.Namespace) -> "PersonVerdict | None":
    """The verdict on the command line; raises ConfigError if it is not complete."""
    from pydantic import ValidationError

    from agents.person import PersonVerdict

    if arguments.verdict is None:
        return None
    fields = {"action": arguments.verdict, "decision": arguments.decision, "answer": arguments.answer}
    try:
        return PersonVerdict(**fields, reason=arguments.reason or "")
    except ValidationError as error:
        raise ConfigError(
            f"--verdict {arguments.verdict}: {error.errors()[0]['msg'].removeprefix('Value error, ')}"
        ) from None


def _console(arguments: argparse.Namespace) -> "Console":
    """Where people read: stderr if stdout is JSON for a program."""
    from rich.console import Console

    return Console(highlight=False, stderr=arguments.json)


def _out(arguments: argparse.Namespace) -> "Callable[[Mapping[str, Any]], None]":
    """Writes the result as JSON where the arguments ask for it."""

    def write(result: "Mapping[str, Any]") -> None:
        text = json.dumps(result, ensure_ascii=False, indent=2)
        if arguments.json:
            print(text)
        if arguments.out is not None:
            try:
                arguments.out.write_text(text + "\n", encoding="utf-8")
            except OSError as error:
                raise RunError(f"--out {arguments.out} cannot be written: {error}") from error

    return write


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
    parser.add_argument("--json", action="store_true", help="print the result as JSON; cards go to stderr")
    parser.add_argument("--out", type=Path, metavar="FILE", help="also write the result as JSON into this file")
    seat = parser.add_argument_group(
        "a person in the principal investigator's seat",
        "The work is kept, so that it can be continued after the process has ended in any way.",
    )
    seat.add_argument(
        "--confirm",
        action="store_true",
        help="GO takes effect only when you have confirmed it; other decisions by society.confirm=[GO,NO-GO]",
    )
    seat.add_argument("--continue", dest="go_on", metavar="NAME", help="continue a question that is kept")
    seat.add_argument("--verdict", choices=("approve", "edit", "reject"), help="your verdict, instead of being asked")
    seat.add_argument("--decision", choices=DECISIONS, help="edit: the decision instead")
    seat.add_argument("--answer", help="edit: the answer instead")
    seat.add_argument("--reason", help="edit, reject: why")
    add_trust_argument(parser)
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
    """The user's question; checks that there are sources to answer it from."""
    from chimera.core.abstracts import read_abstract
    from evaluation.conduct.kept import OWN_QUESTION

    question = " ".join((arguments.question or "").split())
    if not question:
        raise ConfigError('the question is empty: python -m chimera.ask "Does aspirin prevent stroke?"')
    _check_readable(config, has_context=arguments.context is not None)
    context = read_abstract(arguments.context) if arguments.context else ()
    return Asked(Brief(OWN_QUESTION, question, context))


def _check_readable(config: "Config", *, has_context: bool) -> None:
    """Refuse a question for which the society could read no source."""
    from chimera.config.sections.tools import LOCAL

    society, tools = config.society, config.tools
    if society.evidence == "given" and not has_context:
        raise ConfigError("society.evidence=given puts your abstract into the prompts: give one with --context FILE")
    if society.evidence == "retrieved" and society.max_tool_calls == 0:
        raise ConfigError(
            "society.max_tool_calls=0: no role may search, so none could read a source; "
            "set society.evidence=given and give --context FILE, or allow a tool call"
        )
    live = not {tools.literature, tools.trials} <= LOCAL
    if config.data.path == "generated" and not (live or has_context or config.roles.foreign()):
        raise ConfigError(
            "there is nothing to answer your question from, because generated tasks are invented studies: "
            f"give {SOURCES}; --task generated-0-5 shows the society at work on an invented study"
        )


def _task(name: str, config: "Config") -> Asked:
    """The task `name` of the data; raises ConfigError if there is none."""
    from chimera.data.tasks import load

    data = load(config.data)
    config.society.graph.check_answers(data.labels)
    tasks = {task.id: task for task in data.tasks}
    if name not in tasks:
        raise ConfigError(f"--task={name} is not in the data; there are {', '.join(list(tasks)[:3])}, ...")
    return Asked(tasks[name].brief(), tasks[name])


def _trained(arguments: argparse.Namespace) -> "Run | None":
    """The run that `--run` names; its settings replace those of a file."""
    if arguments.run is None:
        return None
    if arguments.config is not None:
        raise ConfigError(f"--run={arguments.run} brings its own settings: leave --config out")
    from chimera.run.directory import Run

    run = Run.open(arguments.run, config_from(arguments, own_question=True).runs_dir)
    arguments.config = run.config_file
    return run


def answer(
    question: Asked,
    config: "Config",
    console: "Console",
    run: "Run | None" = None,
    *,
    saved: "Kept | None" = None,
    verdict: "PersonVerdict | None" = None,
    out: "Callable[[Mapping[str, Any]], None] | None" = None,
) -> int:
    """Start the models, let the society answer the question, and show each step when it is done.

    With a `run`, its learned weights and its supervisor's policy are used. If the bundled model gets a real question,
    a warning is shown before and after the answer, also after an error.

    Returns:
        0, or `WITHHELD` if no source supports an answer, or `WAITS` if a person has to confirm the decision.
    """
    from chimera.config.sections.bundled import toy_parts
    from chimera.core.secrets import load_secrets
    from chimera.run.policies import learned_slots, live
    from chimera.run.seals import checked
    from chimera.show.card import show
    from evaluation.conduct.asked import AskOutcome, answer_state
    from evaluation.conduct.kept import Kept
    from evaluation.conduct.live_society import build_library, open_society

    toys = toy_parts(config.used()) if question.real else []
    secrets = load_secrets(config.secret_names())
    library = build_library(config, secrets, question.brief if question.task is None else None)
    learned = list(live(run.events()).values()) if run else []
    if run:
        for policy in learned:
            checked(run, policy.folder)
    if config.society.confirm and saved is None:
        saved = Kept.create(config, question.brief, run.name if run else None)
    try:
        if toys:
            show(console, _warning(toys, "below"))
        show(console, _about(question, config, library.searched, run, learned))
        with open_society(config, library, learning=learned_slots(run.events()) if run else set()) as society:
            policies = _put_live(run, config, society.servers, learned) if run else {}
            earlier = answer_state(saved, asyncio.run(saved.state()), saved.sources()) if saved else {}
            outcome = AskOutcome(question.brief.goal, real=question.real, toys=toys, earlier=earlier)
            work = _Work(society, question.brief, config, console, policies, saved, outcome)
            _run(work.to_the_end(verdict))
        _close(outcome, question, config, console, saved)
    finally:
        if toys:
            show(console, _warning(toys, "above"))
    if out is not None:
        out(outcome.result(saved.name if saved else None))
    return WAITS if outcome.waits else WITHHELD if outcome.withheld else 0


def _run(work: "Coroutine[Any, Any, None]") -> None:
    """Run `work` until it ends or Ctrl-C is pressed.

    The handler that `asyncio.run` sets does not wake a loop that is just about to wait. A loop's own handler does.
    """

    async def watched() -> None:
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, task.cancel)
        await work

    try:
        asyncio.run(watched())
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


def _warning(parts: list[str], where: str) -> "Card":
    """That the bundled model is a toy. `where` is "below" before the society's work and "above" after it."""
    from chimera.show.card import Card

    lines = (
        ("it plays", ", ".join(parts)),
        ("so", f"it does not understand medicine. Do not act on anything {where}: ask a doctor"),
        ("instead", "name a real model: models.junior.path=FOLDER, or --config configs/endpoint.yaml"),
    )
    return Card("WARNING: the bundled model is a toy that knows invented studies only", lines, "red3")


def _about(question: Asked, config: "Config", searched: str, run: "Run | None", learned: "Sequence[Policy]") -> "Card":
    """The question, the models that answer it, and the sources that they search."""
    from chimera.show.ask import option_lines
    from chimera.show.card import Card

    about = (*option_lines(question.brief.options), ("models", _players(config.used())), ("searches", searched))
    if question.task is not None:
        about += (
            ("task", f"{question.task.id} of {SOURCE_NAMES[question.task.source]}, answer key: {question.task.label}"),
        )
    if run:
        versions = ", ".join(policy.version for policy in learned) or "nothing: its base models answer"
        about += (("learned", f"{versions} (run {run.name})"), ("measured", _measured(run)))
    return Card(question.brief.goal, about, "cyan")


def _measured(run: "Run") -> str:
    """How often the society that is live was right, by the run's report."""
    from chimera.run.policies import live
    from chimera.run.seals import read_report

    right, report = None, read_report(run) or {}
    if report:
        versions = {policy.version for policy in live(run.events()).values()}
        for stage in report["plan"]["stages"]:
            if stage["kind"] == "sequence" and {policy["version"] for policy in stage["policies"]} == versions:
                right = report["stages"][stage["name"]].get("alignment")
    if right is None:
        return f"nothing says how often it is right: python -m chimera.eval --run {run.name}"
    interval = "" if right["low"] is None else f" ({100 * right['low']:.1f} to {100 * right['high']:.1f})"
    return f"{100 * right['mean']:.1f} % right{interval} of {right['n']} tasks, {report['plan']['data']}"


def _put_live(
    run: "Run", config: "Config", servers: "ModelServers", learned: "Sequence[Policy]"
) -> "Mapping[str, Any]":
    """Put the run's learned policies live; returns the selector of hypotheses, and what is for the whole society."""
    from evaluation.rollout.live import Live

    live = Live(run, config.models, servers)
    live.restore(learned)
    return {"select": live.selector(), "learned": live.society()}


@dataclass(frozen=True, slots=True)
class _Work:
    """The work on one question, up to its end or until it waits for a person who is not here."""

    society: "LiveSociety"
    brief: Brief
    config: "Config"
    console: "Console"
    policies: "Mapping[str, Any]"
    kept: "Kept | None"
    outcome: "AskOutcome"

    async def to_the_end(self, verdict: "PersonVerdict | None") -> None:
        """Work; put a decision that has to be confirmed to the person at the terminal, if there is one."""
        if self.kept is not None and verdict is not None:
            self.kept.prefer(await self.kept.waiting(verdict), verdict)
        await self._go_on(verdict)
        if self.outcome.waits and self.kept is not None and sys.stdin.isatty() and self.console.is_terminal:
            from evaluation.conduct.person import ask_person

            await self.to_the_end(await asyncio.to_thread(ask_person, self.console, await self.kept.state()))

    async def _go_on(self, verdict: "PersonVerdict | None") -> None:
        from chimera.show.card import show

        working = self.console.status("the juniors read") if self.console.is_terminal else nullcontext()
        answer = self.society.answer(
            self.brief, self.config.seed, kept_question=self.kept, verdict=verdict, **self.policies
        )
        async with aclosing(answer) as steps:
            with working as status:
                async for step in steps:
                    for card in step.cards:
                        show(self.console, card)
                    if status is not None:
                        status.update(f"{step.node} is done, the next one works")
                    self.outcome.add(step)


def _close(outcome: "AskOutcome", question: Asked, config: "Config", console: "Console", saved: "Kept | None") -> None:
    """What is shown below the last step."""
    from chimera.config.trust import options_to_use
    from chimera.show.card import Card, show
    from chimera.show.next import runs_option
    from evaluation.conduct.asked import NOTICE
    from evaluation.rollout.silent_tools import never_searched

    last = outcome.last
    if last is not None:
        show(console, last.sources)
        if last.tool_calls == 0 and not last.read and (silent := never_searched(config)):
            show(console, Card("WARNING: no role searched", (("why", silent),), "red3"))
    if outcome.waits and saved is not None:
        where = runs_option(saved.path.parent.parent)
        command = f"python -m chimera ask --continue {saved.name}{options_to_use(config)}{where}"
        lines = (
            ("approve", f"{command} --verdict approve"),
            ("change", f'{command} --verdict edit --decision NO-GO --reason "..."'),
            ("reject", f'{command} --verdict reject --reason "..."'),
        )
        show(console, Card("The decision waits for you", lines, "yellow"))
    if question.real and not outcome.toys:  # The warning about toys says so itself.
        show(console, Card("Not medical advice", (("note", NOTICE.partition(": ")[2]),), "yellow"))


def _players(models: "Mapping[str, ModelConfig]") -> str:
    """The slots that each model plays, such as 'nano: junior, supervisor, senior; rubric: board, principal, judge'."""
    parts: dict[str, list[str]] = {}
    for key, model in models.items():
        name = {
            "embedded": model.path,
            "vllm": f"{model.path} on vLLM",
            "endpoint": model.model or "endpoint",
            "rubric": "rubric",
        }[model.kind]
        parts.setdefault(name, []).append(key)
    return "; ".join(f"{name}: {', '.join(keys)}" for name, keys in parts.items())


if __name__ == "__main__":
    from chimera.core.cli import run_command

    run_command(main)
