"""`python -m chimera doctor`: try every model, tool and resource of a configuration, and say what each phase can do."""

import argparse
import asyncio
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from chimera.config.arguments import add_config_arguments, config_from
from chimera.core.cli import parse_arguments, run_command

if TYPE_CHECKING:
    from agents.tools.toolbox import Toolbox
    from chimera.config.tree import Config
    from chimera.data.tasks import Dataset
    from chimera.serving.client import Endpoint
    from evaluation.probes.probed import Probed

    Tell = Callable[[Probed], None]

MARKS = {"ok": "[green]ok[/]", "note": "[dim]note[/]", "warning": "[yellow]warning[/]", "fault": "[bold red]FAULT[/]"}

WIDTHS = 7, 28
"""Columns of a line: the level, then what was tried."""


def main(argv: list[str]) -> int | None:
    """Run the command; exit code 1 if the configured run cannot work."""
    parser = argparse.ArgumentParser(prog="python -m chimera doctor", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")
    add_config_arguments(parser)
    arguments = parse_arguments(parser, argv)
    from training.configuration import load_config

    config = config_from(arguments, load=load_config)
    results: list[Probed] = []

    def tell(result: "Probed") -> None:
        results.append(result)
        if not arguments.json:
            _show(result)

    examine(config, tell)
    if arguments.json:
        print(json.dumps([asdict(result) for result in results], indent=2))
    faults = [f"{result.area} ({result.what})" for result in results if result.level == "fault"]
    if not arguments.json:
        warnings = sum(result.level == "warning" for result in results)
        print(
            f"the configured run cannot work: {', '.join(faults)}"
            if faults
            else f"the configured run can work; warnings: {warnings}"
        )
    return 1 if faults else 0


def examine(config: "Config", tell: "Tell") -> None:
    """Try everything that a run with `config` would use; `tell` gets each result at once.

    Raises:
        ConfigError: A setting is wrong, such as a model's folder.
    """
    from chimera.config.sections.bundled import unread
    from chimera.core.errors import DataError
    from chimera.core.secrets import load_secrets
    from chimera.data.tasks import load
    from evaluation.probes.machine import machine_findings
    from evaluation.probes.probed import Level, Probed

    secrets = load_secrets([*config.secret_names(), "WANDB_API_KEY"])
    for result in machine_findings(config, secrets):
        tell(result)
    try:
        dataset = load(config.data)
    except DataError as error:
        tell(Probed("data", config.data.path, Level.FAULT, f"{error} (so nothing else is tried)"))
        return
    tell(Probed("data", config.data.path, Level.OK, dataset.describe()))
    if note := dataset.search_note():
        tell(Probed("data", "search", Level.NOTE, note))
    if toy := unread(config.used(), dataset.source):
        tell(Probed("models", "bundled model", Level.WARNING, toy))
    for result in _phases(config, dataset):
        tell(result)
    _models(config, dataset, secrets, tell)


def _phases(config: "Config", dataset: "Dataset") -> "Iterator[Probed]":
    """Whether each phase can run with these models and tasks."""
    from agents.person import check_unattended
    from chimera.core.errors import ConfigError
    from evaluation.probes.probed import Level, Probed
    from training.phases import make_phases

    try:
        check_unattended(config.society)
    except ConfigError as error:
        yield Probed("pipeline", "a person's seat", Level.FAULT, str(error))
    able: list[str] = []
    for name, settings in config.pipeline.items():
        try:
            (phase,) = make_phases([name], config, dataset)
        except ConfigError as error:
            yield Probed("pipeline", name, Level.FAULT, f"{error}")
            continue
        roles = ", ".join(phase.plan.roles)
        text = f"{settings.algorithm} can train {roles}" if roles else f"{settings.algorithm} can run"
        able.append(name)
        yield Probed("pipeline", name, Level.OK, text)
    if able and len(able) < len(config.pipeline):
        yield Probed("pipeline", "the rest", Level.OK, f"python -m chimera.train --phases {','.join(able)} can run")


def _models(config: "Config", dataset: "Dataset", secrets: Mapping[str, str], tell: "Tell") -> None:
    """What each tool and each server does, and whether the society works with them."""
    import tempfile

    from agents.tools.toolbox import build_toolbox
    from chimera.core.errors import ChimeraError
    from chimera.serving.process import check_models, serve
    from evaluation.probes.probed import Level, Probed

    with tempfile.TemporaryDirectory() as folder:
        try:
            tools = build_toolbox(
                config.tools, dataset.documents(), secrets, roles=config.roles, conclusions=dataset.conclusions()
            )
            log_file = Path(folder) / "models.log"
            check_models(config.served(), secrets, learning=config.learning())
            with serve(
                config.served(), config.serving, secrets, log_file=log_file, learning=config.learning()
            ) as servers:
                asyncio.run(_ask(config, dataset, servers.endpoints, tools, tell))
        except ChimeraError as error:
            tell(Probed("models", "start", Level.FAULT, str(error)))


async def _ask(
    config: "Config", dataset: "Dataset", endpoints: "Mapping[str, Endpoint]", tools: "Toolbox", tell: "Tell"
) -> None:
    from chimera.serving.client import HttpModel
    from evaluation.probes.models import ModelProbe
    from evaluation.probes.probed import Level
    from evaluation.probes.rollout import rollout_finding
    from evaluation.probes.tools import tool_findings

    task = dataset.train[0]
    results = await tool_findings(config, tools, task.brief())
    for result in results:
        tell(result)
    slots = [slot for slot in config.used() if config.models[slot].kind != "rubric"]
    while slots:
        slot = slots.pop(0)
        probe = ModelProbe(config, slot, endpoints[slot], tools, task.goal)
        of_slot = await probe.findings()
        if probe.unreachable:  # Named once, for all slots that ask it.
            also = [other for other in slots if _address(endpoints[other]) == _address(endpoints[slot])]
            slots = [other for other in slots if other not in also]
            of_slot = [_for_all(result, also) for result in of_slot]
        for result in of_slot:
            tell(result)
        results += of_slot
    if any(result.level is Level.FAULT for result in results):
        return
    model = HttpModel(endpoints)
    try:
        tell(await rollout_finding(config, model, tools, task.brief()))
    finally:
        await model.aclose()


def _address(endpoint: "Endpoint") -> tuple[str, str | None]:
    return endpoint.base_url, endpoint.provider


def _for_all(finding: "Probed", slots: Sequence[str]) -> "Probed":
    """The finding on a server that further slots ask, too."""
    others = ", ".join(f"models.{slot}" for slot in slots)
    return replace(finding, text=f"{finding.text} ({others} would ask it too)") if others else finding


def _show(finding: "Probed") -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table
    from rich.text import Text

    console, mark = Console(highlight=False), Text.from_markup(MARKS[finding.level])
    if not console.is_terminal:  # One line each, for grep.
        print(f"{mark.plain:<{WIDTHS[0]}}  {finding.area}: {finding.what}  {finding.text}", flush=True)
        return
    line = Table.grid(padding=(0, 1))
    for width in (WIDTHS[0], WIDTHS[1]):
        line.add_column(width=width)
    line.add_column(ratio=1)
    line.add_row(mark, f"{escape(finding.area)}: {escape(finding.what)}", escape(finding.text))
    console.print(line)


if __name__ == "__main__":
    run_command(main)
