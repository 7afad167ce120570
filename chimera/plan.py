"""`python -m chimera.plan`: what a configuration needs of memory, disk and time, before it is run."""

import argparse
import json
from dataclasses import asdict
from typing import TYPE_CHECKING

from chimera.core.cli import add_config_arguments, config_from, parse_arguments, run_command

if TYPE_CHECKING:
    from rich.console import Console

    from training.planning.machine import Machine
    from training.planning.plan import PhaseRoom


def main(argv: list[str]) -> int | None:
    """Run the command; exit code 1 if a phase does not fit on this machine."""
    parser = argparse.ArgumentParser(prog="python -m chimera.plan", description=__doc__)
    parser.add_argument("--prompt-tokens", type=int, default=600, help="tokens of a typical prompt (600)")
    parser.add_argument("--response-tokens", type=int, default=120, help="tokens of a typical answer (120)")
    parser.add_argument("--json", action="store_true", help="print everything as JSON, in bytes and seconds")
    add_config_arguments(parser)
    arguments = parse_arguments(parser, argv)
    config = config_from(arguments)

    from training.planning.machine import this_machine
    from training.planning.plan import Lengths, plan_run

    machine = this_machine(config.runs_dir)
    rooms = plan_run(config, machine, Lengths(arguments.prompt_tokens, arguments.response_tokens))
    if arguments.json:
        print(json.dumps({"machine": asdict(machine), "phases": [asdict(room) for room in rooms]}, indent=2))
    else:
        _show(rooms, machine)
    return 1 if any(room.faults for room in rooms) else 0


def _show(rooms: "list[PhaseRoom]", machine: "Machine") -> None:
    from rich.console import Console

    console = Console(highlight=False)
    gpus = ", ".join(f"{name} with {size / 2**30:.0f} GB free" for name, size in machine.gpus) or "no GPU"
    console.print(
        f"this machine: {machine.cores} cores, {machine.memory / 2**30:.1f} GB of memory and "
        f"{machine.disk / 2**30:.0f} GB of disk free, {gpus}"
    )
    if not rooms:
        console.print("no phase trains weights that are here")
    for room in rooms:
        _show_phase(room, console)


def _show_phase(room: "PhaseRoom", console: "Console") -> None:
    from rich.table import Table

    table = Table(title=room.phase, title_justify="left")
    table.add_column("process")
    for name in ("number", "MB each"):
        table.add_column(name, justify="right")
    table.add_column("of it, MB")
    for need in room.needs:
        parts = ", ".join(f"{name} {size / 2**20:,.0f}" for name, size in need.parts.items())
        table.add_row(need.who, str(need.count), f"{need.each / 2**20:,.0f}", parts)
    console.print(table)
    console.print(f"on disk at most {room.disk / 2**20:,.0f} MB")
    if (pace := room.pace) is not None:
        console.print(
            f"{pace.steps} steps of {pace.calls} calls; as fast as this machine computes now, each takes at least "
            f"{pace.sample_s:.1f} s to sample and {pace.update_s:.1f} s to update; the update keeps up with "
            f"{pace.needed:,.0f} sampled tokens a second, and the server gives at most {pace.expected:,.0f}"
        )
    for fault in room.faults:
        console.print(f"[bold red]does not fit[/]: it needs {fault}")
    if room.changes:
        console.print(f"it fits with {' '.join(room.changes)}", markup=False)
    elif room.faults:
        console.print("no settings are known with which it fits: take a smaller model or a larger machine")
    else:
        console.print("[green]fits[/]")


if __name__ == "__main__":
    run_command(main)
