"""What runner processes take and do: `python -m benchmarks.rollouts.runners [--runners N] [--rollouts N] [--tiny]`.

Each runner is the command that people start by hand (`python -m chimera.runner`), a process of its own with its own
imports. They are started a few at a time, all join one run's store, and play the whole society with a model that
answers at once. No rollout may be lost, made twice or fail, or the benchmark fails.
"""

import argparse
import asyncio
import logging
import os
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil
from rich.console import Console
from rich.table import Table

from benchmarks.rollouts.gateway import served, spent
from benchmarks.rollouts.lab import open_lab
from benchmarks.rollouts.orchestration import canned_server
from chimera.config.sections.cluster import TlsConfig
from chimera.config.sections.models import SLOTS
from chimera.config.tree import Config
from chimera.core.ports import free_port
from chimera.data.tasks import load
from chimera.processes import forks
from chimera.processes.children import stop
from chimera.processes.programs import Program
from evaluation.records.rollouts import RolloutInput, RolloutRecord

STARTING = 4
"""Runners that import their libraries at the same time."""
JOINED = "works for the run"
"""A runner's words once it has its number."""


@dataclass(frozen=True, slots=True)
class Found:
    """What was measured: seconds, mebibytes of each runner, and milliseconds of processor time for each rollout."""

    runners: int
    rollouts: int
    start_s: float
    wall_s: float
    pss_joined: float
    pss_ended: float
    main_ms: float
    gateway_ms: float
    runner_ms: float
    idlest: int
    busiest: int

    def row(self) -> list[str]:
        """Table cells."""
        each = (self.main_ms, self.gateway_ms, self.runner_ms)
        return [
            str(self.runners),
            f"{self.start_s:.0f}",
            f"{self.pss_joined:.0f}",
            f"{self.pss_ended:.0f}",
            f"{self.rollouts / self.wall_s:.2f}",
            *(f"{one:.0f}" for one in each),
            f"{self.idlest} to {self.busiest}",
        ]


def proportional(pids: Iterable[int]) -> float:
    """Mebibytes that these processes hold; memory that processes share is divided among them (PSS)."""
    found = (Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="utf-8") for pid in pids)
    return sum(int(match[1]) for text in found if (match := re.search(r"^Pss: +(\d+) kB$", text, re.MULTILINE))) / 1024


async def start(number: int, config: Config, folder: Path) -> list[Program]:
    """Runners that all have joined the run."""
    cluster = config.cluster
    url = f"{cluster.tls.scheme}://{cluster.host}:{cluster.store_port}"
    command = [sys.executable, "-m", "chimera.runner", "--store", url, "--key-file", str(cluster.key_file)]
    if cluster.tls.authority_path is not None:
        command += ["--authority", cluster.tls.authority_path]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    started: list[Program] = []

    def waiting() -> list[Program]:
        for one in started:
            assert one.alive(), one.last_words()
        return [one for one in started if JOINED not in one.log_file.read_text(encoding="utf-8")]

    while len(started) < number or waiting():
        if len(started) < number and len(waiting()) < STARTING:
            name = f"runner {len(started)}"
            started.append(Program(name, command, folder / f"{name}.log", environment))
        else:
            await asyncio.sleep(0.1)
    return started


async def measure(config: Config, folder: Path, runners: int, rollouts: int) -> Found:
    """A run whose rollouts all are made by visitors."""
    dataset = load(config.data)
    async with open_lab(config, dataset, folder) as (run, lab):
        lab.pool.stop()  # Visitors work, not the run's own runner.
        began = time.perf_counter()
        visitors = await start(runners, config, folder)
        start_s = time.perf_counter() - began
        groups = [os.getpid()], lab.gateway.pids, [one.pid for one in visitors]
        try:
            joined = proportional(groups[2])
            inputs = [
                RolloutInput.of(dataset.train[number % len(dataset.train)], "gather", number // len(dataset.train), 0)
                for number in range(rollouts)
            ]
            before, began = [spent(pids) for pids in groups], time.perf_counter()
            given = [episode.record async for episode in lab.rollouts(inputs)]
            wall = time.perf_counter() - began
            used = [spent(pids) - first for pids, first in zip(groups, before, strict=True)]
            ended = proportional(groups[2])
            check(given, [RolloutRecord.load(one) for one in run.rollouts("gather")], rollouts)
        finally:
            stop(visitors, seconds=10)
        took = Counter(record.worker for record in given)
        main_ms, gateway_ms, runner_ms = (1000 * one / rollouts for one in used)
        return Found(
            runners=runners,
            rollouts=rollouts,
            start_s=start_s,
            wall_s=wall,
            pss_joined=joined / runners,
            pss_ended=ended / runners,
            main_ms=main_ms,
            gateway_ms=gateway_ms,
            runner_ms=runner_ms,
            idlest=min(took.values()) if len(took) == runners else 0,
            busiest=max(took.values()),
        )


def check(given: Sequence[RolloutRecord], written: Sequence[RolloutRecord], rollouts: int) -> None:
    """Every rollout was made once, by its first attempt, with all its calls in its trace."""
    for records in (given, written):
        assert len({(record.task_id, record.repeat) for record in records}) == len(records) == rollouts
    failed = [record.error for record in given if record.status != "succeeded"]
    assert not failed, f"{len(failed)} failed, such as: {failed[0]}"
    again = [record.attempt for record in given if record.attempt != 1]
    assert not again, f"{len(again)} rollouts took more than one attempt"
    assert not sum(record.untraced_calls for record in given)


def visited(url: str, folder: Path, tls: TlsConfig | None = None) -> Config:
    """A run that waits for visitors, with a model that answers at `url`."""
    model = {"kind": "endpoint", "base_url": url, "model": "canned", "structured": "always", "timeout_s": 600}
    doors = {"key_file": folder / "key", "store_port": free_port(), "gateway_port": free_port()}
    return Config.model_validate(
        {
            "runs_dir": folder,
            "models": dict.fromkeys(SLOTS, model),
            "society": {"node_timeout_s": 3600},
            "rollouts": {"runners": 1, "timeout_s": 3600, "exploration": 0.0},
            "cluster": {**doors, "tls": tls or TlsConfig()},
        }
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runners", type=int, default=20)
    parser.add_argument("--rollouts", type=int, default=400)
    parser.add_argument("--tiny", action="store_true", help="2 runners: shows that it runs, not what it costs")
    arguments = parser.parse_args()
    if arguments.tiny:
        arguments.runners, arguments.rollouts = 2, 4
    forks.prepare()
    logging.disable(logging.WARNING)
    with tempfile.TemporaryDirectory() as made, served(canned_server, Path(made)) as url:
        folder = Path(made)
        found = asyncio.run(measure(visited(url, folder), folder, arguments.runners, arguments.rollouts))
    table = Table(title=f"{found.rollouts} rollouts of 14 calls and a judge, each made once")
    columns = ("runners", "s to start", "MiB joined", "MiB ended", "rollouts/s")
    for column in (*columns, "main CPU ms", "gateway CPU ms", "runner CPU ms", "rollouts a runner"):
        table.add_column(column, justify="right")
    table.add_row(*found.row())
    Console(width=150).print(table)
    available = psutil.virtual_memory().available / 2**20
    print(f"room for {(available - 4096) / found.pss_ended:.0f} more runners beside 4 GiB that stay free")
    forks.finish()


if __name__ == "__main__":
    main()
