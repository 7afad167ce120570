"""The main process's side of the process that speaks with Ray (`driver.py`)."""

import selectors
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chimera.config.sections.cluster import ClusterConfig
from chimera.core.errors import RunError
from chimera.processes.child_environment import child_environment
from chimera.processes.children import Command
from training.cluster.wire import Channel
from training.scale.cluster import token_variables

CLOSE_S = 5.0
"""How long the process may take to leave the cluster. It is killed then, and Ray notices that."""


@dataclass(slots=True)
class Actor:
    """What is known of an actor.

    Attributes:
        name: Its name in messages.
        pid: The id of its process on its node; None until it runs.
        node: The address of its node.
        ended: Why it ended; None while it has not.
        lost: True if it did not end by itself: its process was killed, or its node is gone.
    """

    name: str
    pid: int | None = None
    node: str | None = None
    ended: str | None = None
    lost: bool = False

    def ending(self) -> str:
        """A phrase for messages that says where and how it ended."""
        where = f" (process {self.pid} on node {self.node})" if self.pid else ""
        return f"{self.name}{where} {'was lost' if self.lost else 'ended'}: {self.ended}"


class RayProcess:
    """A member of the cluster, with actors that end with it. Joining takes seconds, during which orders wait.

    Args:
        cluster: Which cluster, and its token.
        log_file: For the output of Ray and of the process.

    Raises:
        ConfigError: The token file cannot be used.
    """

    def __init__(self, cluster: ClusterConfig, log_file: Path) -> None:
        environment = {
            **child_environment("RAY_*"),
            **token_variables(cluster.token_file),
            "RAY_USAGE_STATS_ENABLED": "0",
        }
        ours, theirs = socket.socketpair()
        with theirs:
            self._child = Command(
                "the process that speaks with Ray",
                "training.cluster.ray.start",
                [str(theirs.fileno())],
                log_file,
                environment,
                pass_fds=(theirs.fileno(),),
            )
        self._channel = Channel(ours)
        self._log_file = log_file
        self._closed = False
        self._actors: dict[str, Actor] = {}
        self._placed: int | None = None
        self._tell({"do": "join", "address": cluster.address})

    def fileno(self) -> int:
        """Readable when `hear` has something to do."""
        return self._channel.fileno()

    def place(self, ranks: int, need: Mapping[str, float]) -> int:
        """Reserve room for ranks; returns for how many there is room.

        Args:
            ranks: How many are wanted.
            need: CPU and GPU of each.

        Raises:
            RunError: There is room for none, or the cluster is lost.
        """
        self._tell({"do": "place", "ranks": ranks, "need": _positive(need)})
        while self._placed is None:
            self.hear(wait=True)
        return self._placed

    def share(self, text: str) -> None:
        """Give `text` to all actors that are started from now on.

        Raises:
            RunError: The cluster is lost.
        """
        self._tell({"do": "share", "text": text})

    def start(
        self, name: str, kind: str, given: Mapping[str, Any], need: Mapping[str, float], *, bundle: int = -1
    ) -> Actor:
        """Start an actor in the room that was placed, or anywhere as soon as there is room; see `NodeWork.work`.

        Raises:
            RunError: The cluster is lost.
        """
        self._tell(
            {"do": "start", "name": name, "kind": kind, "given": given, "need": _positive(need), "bundle": bundle}
        )
        return self._actors.setdefault(name, Actor(name))

    def kill(self, actor: Actor) -> None:
        """End an actor at once.

        Raises:
            RunError: The cluster is lost.
        """
        self._tell({"do": "kill", "name": actor.name})

    def hear(self, *, wait: bool = False) -> list[Actor]:
        """Read the reports that have arrived; returns the actors that have ended by them.

        Args:
            wait: True to wait for one.

        Raises:
            RunError: The cluster is lost.
        """
        ended: list[Actor] = []
        with selectors.DefaultSelector() as ready:
            ready.register(self._channel, selectors.EVENT_READ)
            while ready.select(None if wait and not ended else 0):
                wait = False
                try:
                    report, _ = self._channel.receive()
                except (OSError, ValueError) as error:
                    raise self._lost() from error
                actor = self._actors.get(report.get("name", ""))
                match report["event"]:
                    case "placed":
                        self._placed = report["ranks"]
                    case "started" if actor:
                        actor.pid, actor.node = report["pid"], report["node"]
                    case "ended" if actor:
                        actor.ended, actor.lost = report["text"], report["lost"]
                        ended.append(actor)
                    case _:
                        pass
        return ended

    def close(self) -> None:
        """Leave the cluster, which ends the actors. Closing twice does nothing."""
        if not self._closed:
            self._closed = True
            self._channel.close()
            self._child.join(CLOSE_S)
            self._child.kill()
            self._child.join()

    def _tell(self, order: Mapping[str, Any]) -> None:
        try:
            self._channel.send(order)
        except OSError as error:
            raise self._lost() from error

    def _lost(self) -> RunError:
        self._child.join(CLOSE_S)
        said = self._child.last_words(1)
        how = said if self._child.exit_code == 1 else f"{self._child.ending()}: {said}"
        return RunError(f"{how} (see {self._log_file}); when the cluster is up, continue with --resume")


def _positive(need: Mapping[str, float]) -> dict[str, float]:
    return {name: count for name, count in need.items() if count > 0}
