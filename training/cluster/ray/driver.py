"""The process that speaks with Ray: it joins the cluster, starts actors on its nodes, and says when they end.

    main process <── orders and reports, by a socket (JSON) ──> this process <── Ray ──> actors (`work.py`)

Ray ends a process that has lost its cluster's head, and it is a thread pool and a second log beside; so it is kept out
of the main process. When this process ends, however it ends, Ray ends its actors and frees what they reserved.
"""

import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import ray
from ray.exceptions import ActorUnavailableError, RayActorError, RayError, RaySystemError, RayTaskError
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from chimera.core.errors import RunError
from training.cluster.ray.start import Orders
from training.cluster.ray.work import NodeWork
from training.cluster.wire import Channel
from training.scale.cluster import first_line

PLACE_S = 45.0
"""How long to wait for room before one rank fewer is asked for: longer than Ray counts a node that is gone as alive."""
LOOK_S = 1.0
"""How often it is looked whether nodes have come or gone."""
HEAD_S = 15.0
"""How long the head may be away. Ray itself waits for a minute and then ends the process without a sentence."""
CONNECT_S = 5.0
LOST = (RayActorError, ActorUnavailableError, RaySystemError)
"""What Ray says of an actor that ended because its process or node did."""


class Driver:
    """Carries out the main process's orders.

    Args:
        channel: The connection to it.
        orders: What it wants.
    """

    def __init__(self, channel: Channel, orders: Orders) -> None:
        self._channel = channel
        self._orders = orders
        self._sending = threading.Lock()
        self._actors: dict[str, Any] = {}
        self._shared: Any = None
        self._group: PlacementGroup | None = None

    def obey(self) -> None:
        """Carry out orders until the main process closes the connection.

        Raises:
            RunError: The cluster cannot be joined, or has no room.
        """
        while (order := self._orders.get()) is not None:
            given = {name: value for name, value in order.items() if name != "do"}
            match order["do"]:
                case "join":
                    self._join(**given)
                case "place":
                    self._place(**given)
                case "share":
                    self._shared = ray.put(given["text"])
                case "start":
                    self._start(**given)
                case "kill":
                    if actor := self._actors.get(given["name"]):
                        ray.kill(actor)
                case unknown:
                    raise ValueError(f"unknown order {unknown!r}")
        ray.shutdown()

    def _say(self, event: str, **fields: Any) -> None:
        with self._sending:
            self._channel.send({"event": event, **fields})

    def _join(self, address: str) -> None:
        if address != "auto":
            _watch(address)
        try:
            ray.init(address=address, log_to_driver=False, configure_logging=False)
        except (OSError, ValueError, RuntimeError, RayError) as error:
            raise RunError(
                f"the Ray cluster at cluster.address={address} cannot be joined ({first_line(error)}): start a "
                "node of it on this machine (ray start), and see cluster.token_file"
            ) from error
        if address == "auto":
            _watch(ray.get_runtime_context().gcs_address)

    def _place(self, ranks: int, need: Mapping[str, float]) -> None:
        """Reserve room for ranks, spread over nodes: for as many as there is room for, at least one."""
        deadline, wanted = time.monotonic() + PLACE_S, ranks
        while True:
            room = _room(need)
            wanted = min(ranks, wanted, room) or 1
            group = placement_group([dict(need)] * wanted, strategy="SPREAD")
            while room and time.monotonic() < deadline:
                if group.wait(LOOK_S):
                    self._group = group
                    self._say("placed", ranks=wanted)
                    return
                if (room := _room(need)) < wanted:
                    break
            remove_placement_group(group)
            if time.monotonic() < deadline:
                time.sleep(LOOK_S if room == 0 else 0)
            elif wanted > 1 and room:
                deadline, wanted = time.monotonic() + PLACE_S, wanted - 1
            else:
                raise RunError(
                    f"the Ray cluster has no room for a rank with {_phrase(need)} (free: "
                    f"{_phrase(ray.available_resources())}): add nodes, or lower cluster.cpus_per_rank or "
                    "cluster.gpus_per_rank"
                )

    def _start(self, name: str, kind: str, given: Mapping[str, Any], need: Mapping[str, float], bundle: int) -> None:
        """Start one actor: in the reserved room, or, with a negative `bundle`, anywhere."""
        where: Any = "SPREAD"
        if bundle >= 0 and self._group is not None:
            where = PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=bundle)
        cpus, gpus = need.get("CPU", 0), need.get("GPU", 0)
        made: Any = ray.remote(
            num_cpus=cpus, num_gpus=gpus, max_restarts=0, max_task_retries=0, scheduling_strategy=where
        )(NodeWork)
        actor = self._actors[name] = made.remote()

        def started(found: Any) -> None:
            if found.exception() is None:
                pid, node = found.result()
                self._say("started", name=name, pid=pid, node=node)

        def ended(found: Any) -> None:
            self._actors.pop(name, None)
            error = found.exception()
            text = found.result() if error is None else first_line(error)
            lost = isinstance(error, LOST) and not isinstance(error, RayTaskError)
            self._say("ended", name=name, lost=lost, text=text)

        actor.where.remote().future().add_done_callback(_quietly(started))
        actor.work.remote(kind, dict(given), self._shared).future().add_done_callback(_quietly(ended))


def _quietly(report: Callable[[Any], None]) -> Callable[[Any], None]:
    """`report`, which does nothing once the main process has closed the connection."""

    def call(found: Any) -> None:
        with suppress(OSError):  # This process is ending too.
            report(found)

    return call


def _room(need: Mapping[str, float]) -> int:
    """How many ranks the nodes that Ray counts as alive could hold if nothing else ran there."""
    return sum(
        min((int(node["Resources"].get(name, 0) / count) for name, count in need.items()), default=0)
        for node in ray.nodes()
        if node["Alive"]
    )


def _phrase(resources: Mapping[str, float]) -> str:
    return ", ".join(f"{resources.get(name, 0):g} {name}s" for name in ("CPU", "GPU") if name in resources) or "nothing"


def _watch(head: str) -> None:
    """From now on, end this process with a sentence when the head does not answer."""
    threading.Thread(target=_end_without, args=(head,), name="head-watch", daemon=True).start()


def _end_without(head: str) -> None:
    host, _, port = head.rpartition(":")
    seen = time.monotonic()
    while True:
        try:
            socket.create_connection((host, int(port)), CONNECT_S).close()
            seen = time.monotonic()
        except OSError as error:
            if time.monotonic() - seen > HEAD_S:
                how = error.strerror or error
                print(f"error: the head of the Ray cluster at {head} does not answer ({how})", file=sys.stderr)
                sys.stderr.flush()
                os._exit(1)
        time.sleep(LOOK_S)
