"""How the ranks of a team are started: as processes of this machine here, as actors of Ray in `ray/ranks.py`."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from chimera.processes.child_environment import child_environment
from chimera.processes.children import Command
from training.engines.verl_runtime import loopback


@dataclass(frozen=True, slots=True)
class Meeting:
    """Where the ranks of a team meet.

    Attributes:
        ranks: Number of ranks.
        address: Where the main process listens, HOST:PORT.
        key: What a rank must show there.
        host: Where the ranks' store listens.
        port: As above.
        logs: Folder of the ranks' logs.
        name: The team's, for messages and names of logs.
    """

    ranks: int
    address: str
    key: str
    host: str
    port: int
    logs: Path
    name: str


class RankProcess(Protocol):
    """A rank as its launcher knows it, such as a `chimera.processes.children.Child`."""

    log_file: Path

    @property
    def pid(self) -> int:
        """Id of its process where it runs."""
        ...

    def alive(self) -> bool:
        """True until it has ended."""
        ...

    def killed(self) -> bool:
        """True if it ended from outside, and not by itself."""
        ...

    def ending(self) -> str:
        """A phrase that says how it ended."""
        ...

    def last_words(self) -> str:
        """What it said last."""
        ...

    def kill(self) -> None:
        """End it at once."""
        ...

    def join(self, seconds: float | None = None) -> None:
        """Wait until it has ended."""
        ...


Launch = Callable[[Meeting], Sequence[RankProcess]]
"""Starts the ranks; returns those that it can watch, in the order of ranks."""


def launch_here(meeting: Meeting) -> Sequence[Command]:
    """Start all ranks on this machine. They share its cores."""
    cores = max(1, len(os.sched_getaffinity(0)) // meeting.ranks)
    children = []
    for rank in range(meeting.ranks):
        environment = {
            "OMP_NUM_THREADS": str(cores),
            # Threads that spin while they wait occupy cores that other processes of the run need.
            "OMP_WAIT_POLICY": "PASSIVE",
            "HF_HUB_OFFLINE": "1",
            **child_environment(),
            **place(meeting, rank),
        }
        child = Command(
            f"rank {rank} of {meeting.ranks}",
            "training.cluster.rank",
            [meeting.address],
            meeting.logs / f"{meeting.name}-rank-{rank}.log",
            environment,
        )
        child.tell(f"{meeting.key}\n")
        children.append(child)
    return children


def place(meeting: Meeting, rank: int) -> dict[str, str]:
    """The environment variables that give a rank of this machine its place, as torchrun sets them."""
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(meeting.ranks),
        "LOCAL_WORLD_SIZE": str(meeting.ranks),
        "MASTER_ADDR": meeting.host,
        "MASTER_PORT": str(meeting.port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "GLOO_SOCKET_IFNAME": loopback(),
    }
