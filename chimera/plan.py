"""`python -m chimera.plan`: what a configuration needs of memory and disk, before it is run."""

import argparse
import json
import re
from dataclasses import asdict
from typing import TYPE_CHECKING

from chimera.config.arguments import add_config_arguments, config_from
from chimera.core.cli import parse_arguments, run_command
from chimera.core.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console

    from training.planning import Machine, Room

GB, MB = 2**30, 2**20
MACHINE = re.compile(r"(?:(\d{1,4})x(\d{1,6}(?:\.\d{1,3})?)GB,)?(\d{1,6}(?:\.\d{1,3})?)GB")


def main(argv: list[str]) -> int | None:
    """Run the command; exit code 1 if a phase does not fit on the machine."""
    parser = argparse.ArgumentParser(prog="python -m chimera.plan", description=__doc__)
    parser.add_argument(
        "--machine",
        metavar="8x80GB,1024GB",
        help="compare with this machine (GPUs x memory of each, main memory; 64GB has no GPU), not with the one here",
    )
    parser.add_argument("--json", action="store_true", help="print everything as JSON, in bytes")
    add_config_arguments(parser)
    arguments = parse_arguments(parser, argv)
    named = read_machine(arguments.machine) if arguments.machine is not None else None
    from training.configuration import load_config

    config = config_from(arguments, load=load_config)

    from training.planning import Machine, plan_run

    machine = Machine(*named) if named else Machine.here(config.runs_dir)
    rooms = plan_run(config, machine)
    if arguments.json:
        print(json.dumps({"machine": asdict(machine), "phases": [asdict(room) for room in rooms]}, indent=2))
    else:
        _show(rooms, machine, "the machine that --machine names" if named else "this machine")
    return 1 if any(room.faults for room in rooms) else 0


def read_machine(text: str) -> tuple[int, tuple[int, ...]]:
    """Bytes of main memory, and of each GPU.

    Raises:
        ConfigError: It is not written like 8x80GB,1024GB or 64GB.
    """
    match = MACHINE.fullmatch(text)
    if match is None:
        raise ConfigError(
            f"--machine {text!r} is no machine: give GPUs x memory of each and the main memory, such as "
            "8x80GB,1024GB, or 64GB for a machine without a GPU"
        )
    count, each, memory = (float(number or 0) for number in match.groups())
    return int(memory * GB), (int(each * GB),) * int(count)


def _show(rooms: "list[Room]", machine: "Machine", name: str) -> None:
    from rich.console import Console

    console = Console(highlight=False)
    sizes = sorted(set(machine.gpus))
    gpus = " and ".join(f"{machine.gpus.count(size)} x {size / GB:.0f} GB" for size in sizes)
    here = [f"{machine.memory / GB:.1f} GB of memory", f"GPUs with {gpus}" if gpus else "no GPU"]
    here += [f"{machine.disk / GB:.0f} GB of disk"] if machine.disk is not None else []
    console.print(f"free on {name}: {', '.join(here)}", soft_wrap=True)
    if not rooms:
        console.print("no phase trains weights that are here")
    for room in rooms:
        _show_phase(room, console)


def _show_phase(room: "Room", console: "Console") -> None:
    from rich.table import Table

    table = Table(title=room.phase, title_justify="left")
    table.add_column("process")
    for name in ("number", "MB each"):
        table.add_column(name, justify="right")
    table.add_column("of it, MB")
    for need in room.needs:
        parts = ", ".join(f"{name} {size / MB:,.0f}" for name, size in need.parts.items())
        table.add_row(need.who, str(need.count), f"{need.each / MB:,.0f}", parts)
    console.print(table)
    console.print(f"on disk at most {room.disk / MB:,.0f} MB")
    for fault in room.faults:
        console.print(f"[bold red]does not fit[/]: it needs {fault}", soft_wrap=True)
    if room.changes:
        changes = " ".join(f"'{change}'" if " " in change else change for change in room.changes)
        console.print(f"it fits with {changes}", markup=False, soft_wrap=True)
    elif room.faults:
        console.print("no settings are known with which it fits: take a smaller model or a larger machine")
    else:
        console.print("[green]fits[/]")


if __name__ == "__main__":
    run_command(main)
