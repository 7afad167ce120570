"""Ranks as processes of this machine. They share its cores; with GPUs each has one."""

import os
import pickle
import socket
import time
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from chimera.core.errors import ChimeraError
from chimera.processes.child_environment import child_environment
from chimera.processes.children import Command
from training.ppo.ranks.ranks import RankLost
from training.scale.meeting import Meeting, loopback

BLAME_S = 10.0
"""How long to wait, once one rank is gone, for one that was killed: others end because it did."""
LOOK_S = 0.05
END_S = 30.0
"""How long to wait for a killed rank to disappear. Usual: at once, seconds on a very busy machine."""


class LocalRanks:
    """A `training.ppo.ranks.ranks.Ranks`. Making one starts the processes, which takes the seconds of VeRL's import.

    Args:
        ranks: Number of ranks.
        logs: Folder of their logs.
        name: Begins the logs' names.

    Raises:
        RunError: No port can be opened.
    """

    def __init__(self, ranks: int, logs: Path, name: str) -> None:
        self._meeting = Meeting(ranks)
        self._children: list[Command] = []
        self._orders: list[Connection] = []
        try:
            self._start(ranks, logs, name)
        except BaseException:
            self.close()
            raise

    def _start(self, ranks: int, logs: Path, name: str) -> None:
        cores = max(1, len(os.sched_getaffinity(0)) // ranks)
        for rank in range(ranks):
            environment = {
                "OMP_NUM_THREADS": str(cores),
                # Threads that spin while they wait occupy cores that other processes of the run need.
                "OMP_WAIT_POLICY": "PASSIVE",
                "HF_HUB_OFFLINE": "1",
                **child_environment(),
                "GLOO_SOCKET_IFNAME": loopback(),
            }
            ours, theirs = socket.socketpair()
            with theirs:
                child = Command(
                    f"rank {rank} of {ranks}",
                    "training.ppo.ranks.rank",
                    [str(theirs.fileno())],
                    logs / f"{name}-rank-{rank}.log",
                    environment,
                    pass_fds=(theirs.fileno(),),
                )
            self._children.append(child)
            self._orders.append(Connection(ours.detach()))
            self._send(rank, self._meeting.place(rank, rank, ranks))

    @property
    def pids(self) -> list[int]:
        """Process ids of the ranks, by rank."""
        return [child.pid for child in self._children]

    def call(self, method: str, *arguments: Any) -> Any:
        """See `Ranks.call`."""
        for rank in range(len(self._orders)):
            self._send(rank, (method, arguments))
        answers: dict[int, Any] = {}
        while missing := [orders for rank, orders in enumerate(self._orders) if rank not in answers]:
            for ready in wait(missing):
                assert isinstance(ready, Connection)
                rank = self._orders.index(ready)
                try:
                    answers[rank] = pickle.loads(ready.recv_bytes())
                except (EOFError, OSError) as error:
                    raise self._lost(rank) from error
        for rank in sorted(answers):
            if isinstance(answers[rank], ChimeraError):
                raise answers[rank]
        return answers[0]

    def close(self) -> None:
        """See `Ranks.close`."""
        for orders in self._orders:
            orders.close()
        for child in self._children:
            child.kill()
        for child in self._children:
            child.join(END_S)
        self._meeting.close()

    def _send(self, rank: int, message: Any) -> None:
        try:
            self._orders[rank].send_bytes(pickle.dumps(message))
        except OSError as error:
            raise self._lost(rank) from error

    def _lost(self, rank: int) -> RankLost:
        """Names a rank that was killed rather than one that ended for want of it."""
        deadline = time.monotonic() + BLAME_S
        while time.monotonic() < deadline and not any(child.killed() for child in self._children):
            if not any(child.alive() for child in self._children):
                break
            time.sleep(LOOK_S)
        child = next((child for child in self._children if child.killed()), self._children[rank])
        how = child.ending() if child.killed() else f"{child.ending()}: {child.last_words()} (see {child.log_file})"
        return RankLost(how)
