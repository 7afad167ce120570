"""What `cluster.tls` costs: `python -m benchmarks.rollouts.tls [--rollouts N] [--runners N] [--rounds N] [--tiny]`.

The same calls go through a gateway into the store, and the same rollouts are made by runner processes, with HTTP and
with HTTPS by turns, there and back, so that a change of the machine's speed does not favour one. The model answers at
once. Processor time is counted per process. The files are made with openssl, which must be installed.
"""

import argparse
import asyncio
import logging
import math
import shlex
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.rollouts import gateway, orchestration
from benchmarks.rollouts.ceiling import GatewayCost, gateways
from benchmarks.rollouts.gateway import served, times
from benchmarks.rollouts.runners import Found, measure, visited
from chimera.config.sections.cluster import TlsConfig
from chimera.processes import forks

AT_ONCE = 24
COMMANDS = (
    "req -x509 -newkey rsa:3072 -nodes -days 1 -subj /CN=authority -addext keyUsage=critical,keyCertSign "
    "-keyout authority.key -out authority.pem",
    "req -x509 -newkey rsa:3072 -nodes -days 1 -subj /CN=127.0.0.1 -addext subjectAltName=IP:127.0.0.1 "
    "-addext basicConstraints=critical,CA:FALSE -CA authority.pem -CAkey authority.key -keyout tls.key -out tls.pem",
)
"""Those of docs/cluster.md, for 127.0.0.1."""


def made_files(folder: Path) -> TlsConfig:
    """An authority, and a certificate that it has signed, in `folder`."""
    for command in COMMANDS:
        subprocess.run(["openssl", *shlex.split(command)], cwd=folder, check=True, capture_output=True)
    return TlsConfig(certificate=folder / "tls.pem", key=folder / "tls.key", authority=folder / "authority.pem")


def row(name: str, plain: Sequence[float], secure: Sequence[float]) -> list[str]:
    """Means, their ratio, and the ratios of the pairs of turns that followed each other."""
    means = [math.fsum(found) / len(found) for found in (plain, secure)]
    pairs = sorted(two / one for one, two in zip(plain, secure, strict=True) if one)
    among = f"{pairs[0]:.2f} to {pairs[-1]:.2f}" if pairs else ""
    return [name, *(f"{one:.2f}" for one in means), f"{times(means[1], means[0], digits=2)} x", among]


GATEWAY: dict[str, Callable[[GatewayCost], float]] = {
    "calls/s": lambda one: one.calls_s,
    "ms of gateway a call": lambda one: one.gateway_ms,
    "ms of store a call": lambda one: one.store_ms,
}
ROLLOUTS: dict[str, Callable[[Found], float]] = {
    "rollouts/s": lambda one: one.rollouts / one.wall_s,
    "ms of main process a rollout": lambda one: one.main_ms,
    "ms of gateway a rollout": lambda one: one.gateway_ms,
    "ms of runner a rollout": lambda one: one.runner_ms,
    "MiB of a runner": lambda one: one.pss_ended,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=1500, help="calls in each turn")
    parser.add_argument("--rollouts", type=int, default=150, help="rollouts in each turn")
    parser.add_argument("--runners", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=2, help="of four turns each")
    parser.add_argument("--tiny", action="store_true", help="shows that it runs, not what it costs")
    arguments = parser.parse_args()
    order = [False, True, True, False] * arguments.rounds
    if arguments.tiny:
        arguments.calls, arguments.rollouts, arguments.runners, order = 8, 2, 1, [False, True]
    forks.prepare()
    logging.disable(logging.WARNING)
    calls: dict[bool, list[GatewayCost]] = {False: [], True: []}
    rollouts: dict[bool, list[Found]] = {False: [], True: []}
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        files = {False: TlsConfig(), True: made_files(folder)}
        with served(gateway.canned_server, folder) as url:
            at_once = min(AT_ONCE, arguments.calls)
            for on in order:
                calls[on].append(asyncio.run(gateways(1, url, folder, arguments.calls, at_once, files[on])))
        with served(orchestration.canned_server, folder) as url:
            for number, on in enumerate(order):
                turn = folder / str(number)
                turn.mkdir()
                config = visited(url, turn, files[on])
                rollouts[on].append(asyncio.run(measure(config, turn, arguments.runners, arguments.rollouts)))
    table = Table(title=f"{len(order)} turns of {arguments.calls} calls, and of {arguments.rollouts} rollouts")
    for column in ("", "HTTP", "HTTPS", "HTTPS / HTTP", "of single pairs"):
        table.add_column(column, justify="left" if not column else "right")
    for name, cost in GATEWAY.items():
        table.add_row(*row(name, *(list(map(cost, calls[on])) for on in (False, True))))
    for name, value in ROLLOUTS.items():
        table.add_row(*row(name, *(list(map(value, rollouts[on])) for on in (False, True))))
    Console(width=120).print(table)
    forks.finish()


if __name__ == "__main__":
    main()
