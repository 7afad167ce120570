"""The commands to type next, which a command ends with."""

import shlex
from collections.abc import Sequence
from pathlib import Path

DEFAULT_RUNS = Path("runs")


def after_training(name: str, runs_dir: Path, trust: str = "") -> list[str]:
    """`trust` are the options of `chimera.config.trust.options_to_use`."""
    return [
        f"python -m chimera.eval --run {shlex.quote(name)}{trust}{runs_option(runs_dir)}",
        f"python -m chimera.view{runs_option(runs_dir)}",
    ]


def after_interruption(name: str, runs_dir: Path, needed: Sequence[str]) -> list[str]:
    """How a run goes on; `needed` are further arguments, quoted."""
    arguments = "".join(f" {argument}" for argument in needed)
    return [f"python -m chimera.train --resume --name {shlex.quote(name)}{runs_option(runs_dir)}{arguments}"]


def after_evaluation(name: str, report: Path, runs_dir: Path) -> list[str]:
    return [
        f"python -m chimera.trace {shlex.quote(name)}{runs_option(runs_dir)}",
        f"python -m chimera.eval --verify {shlex.quote(str(report))}",
    ]


def print_next(commands: Sequence[str]) -> None:
    print("next: " + "\n      ".join(commands), flush=True)


def runs_option(runs_dir: Path) -> str:
    return "" if runs_dir == DEFAULT_RUNS else f" runs_dir={shlex.quote(str(runs_dir))}"
