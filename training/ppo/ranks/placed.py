"""Ranks as actors that Ray spreads over the nodes of its cluster.

A node needs this version of Chimera in the Python that its Ray runs in, and sees the run's folder at the same path.
"""

import os
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from chimera.config.sections.cluster import ClusterConfig, is_loopback
from chimera.core.errors import ChimeraError, ConfigError, RunError
from training.ppo.ranks.rank import Rank
from training.ppo.ranks.ranks import RankLost
from training.scale.cluster import first_line, join
from training.scale.meeting import Meeting, loopback

PLACE_S = 120.0
"""How long to wait for room."""
BLAME_S = 60.0
"""How long to wait, once one rank has failed, for one that is gone: Ray counts its node as alive for half a minute."""


class NodeRank:
    """What runs on a node: a rank that listens at its node's own address only."""

    def start(self, place: Mapping[str, str], folder: Path) -> tuple[int, str]:
        """Join the other ranks; returns the process id and the node's address.

        Raises:
            RunError: This node does not see the run's folder.
        """
        import ray

        node = ray.util.get_node_ip_address()
        if not folder.is_dir():
            raise RunError(f"node {node} does not see {folder}: runs_dir must be on a file system that all nodes share")
        os.environ |= {"OMP_WAIT_POLICY": "PASSIVE", "HF_HUB_OFFLINE": "1"}
        if interface := _interface(node):
            for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
                os.environ.setdefault(name, interface)
        self._rank = Rank(place)
        return os.getpid(), node

    def call(self, method: str, *arguments: Any) -> Any:
        """Call a method of the rank."""
        return getattr(self._rank, method)(*arguments)


class PlacedRanks:
    """A `training.ppo.ranks.ranks.Ranks`. Making one joins the cluster and starts the actors.

    Args:
        cluster: Which cluster, and what to reserve.
        ranks: Number of ranks.
        folder: The run's.

    Raises:
        ConfigError: The token file cannot be used, or the cluster has no room.
        RunError: The cluster cannot be joined, or a rank cannot start.
    """

    def __init__(self, cluster: ClusterConfig, ranks: int, folder: Path) -> None:
        self._actors: list[Any] = []
        self._group: Any = None
        self.nodes: list[tuple[int, str]] = []
        """Process id and node's address of each rank."""
        with ExitStack() as opening:
            opening.callback(join(cluster).leave)
            meeting = Meeting(ranks, cluster.host)
            opening.callback(meeting.close)
            opening.callback(self._free)
            self._start(cluster, meeting, ranks, folder.absolute())
            self._closing = opening.pop_all()

    def call(self, method: str, *arguments: Any) -> Any:
        """See `Ranks.call`."""
        import ray

        shared = [ray.put(argument) for argument in arguments]
        return self._answers([actor.call.remote(method, *shared) for actor in self._actors])[0]

    def close(self) -> None:
        """See `Ranks.close`."""
        self._closing.close()

    def _start(self, cluster: ClusterConfig, meeting: Meeting, ranks: int, folder: Path) -> None:
        import ray
        from ray.util.placement_group import placement_group
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        cpus, gpus = cluster.cpus_per_rank, cluster.gpus_per_rank
        self._group = placement_group([{"CPU": cpus} | ({"GPU": gpus} if gpus else {})] * ranks, "SPREAD")
        if not self._group.wait(PLACE_S):
            raise ConfigError(
                f"the Ray cluster has no room for {ranks} ranks with {cpus:g} CPUs and {gpus:g} GPUs each: add nodes, "
                "or lower the phase's ranks, cluster.cpus_per_rank or cluster.gpus_per_rank"
            )
        remote: Any = ray.remote
        for rank in range(ranks):
            where = PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=rank)
            node_rank = remote(num_cpus=cpus, num_gpus=gpus, max_restarts=0, scheduling_strategy=where)(NodeRank)
            self._actors.append(node_rank.remote())
        # Ray shows each rank its own GPUs only, so it is the first there.
        places = [meeting.place(rank, 0, 1) for rank in range(ranks)]
        started = [actor.start.remote(place, folder) for actor, place in zip(self._actors, places, strict=True)]
        self.nodes = self._answers(started)

    def _free(self) -> None:
        """End the actors, and give back what was reserved."""
        import ray
        from ray.util.placement_group import remove_placement_group

        for actor in self._actors:
            ray.kill(actor)
        if self._group is not None:
            remove_placement_group(self._group)

    def _answers(self, references: list[Any]) -> list[Any]:
        """The answers by rank. The first error is raised at once: others may wait for that rank for ever."""
        import ray
        from ray.exceptions import RayError

        waiting = list(references)
        try:
            while waiting:
                ready, waiting = ray.wait(waiting, num_returns=1)
                ray.get(ready)
            return ray.get(references)
        except RayError as error:
            if isinstance(cause := getattr(error, "cause", None), ChimeraError):
                raise cause from None
            raise self._lost(references, error) from error

    def _lost(self, references: list[Any], error: BaseException) -> RankLost:
        """Names a rank that is gone rather than one that failed for want of it."""
        import ray
        from ray.exceptions import RayActorError, RayError

        for answer in ray.wait(references, num_returns=len(references), timeout=BLAME_S)[0]:
            try:
                ray.get(answer)
            except RayActorError as gone:
                return RankLost(f"{self._named(references.index(answer))} was lost: {first_line(gone)}")
            except RayError:
                continue
        return RankLost(f"a rank failed: {first_line(error)}")

    def _named(self, rank: int) -> str:
        """A rank's number, and where it ran if that is known."""
        where = " (process {} on node {})".format(*self.nodes[rank]) if self.nodes else ""
        return f"rank {rank} of {len(self._actors)}{where}"


def _interface(address: str) -> str | None:
    """The name of the network interface with this address, so that ranks do not listen on every one."""
    import psutil

    for name, addresses in psutil.net_if_addrs().items():
        if any(entry.address == address for entry in addresses):
            return name
    return loopback() if is_loopback(address) else None  # Such as 127.0.0.2.
