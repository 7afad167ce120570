"""A team whose ranks Ray places on the nodes of its cluster: as many as there is room for."""

from collections.abc import Sequence
from pathlib import Path

from chimera.config.sections.cluster import ClusterConfig
from training.cluster.launching import Meeting
from training.cluster.ray.process import Actor, RayProcess
from training.cluster.team import Team


def team_on_ray(cluster: ClusterConfig, ranks: int, logs: Path, name: str) -> Team:
    """Start at most `ranks` ranks; see `Team`.

    Raises:
        ConfigError: The token file cannot be used.
        RankLost: A rank ended before it was ready.
        RunError: The cluster cannot be joined, or has no room.
    """
    process = RayProcess(cluster, logs / f"{name}-ray.log")
    need = {"CPU": cluster.cpus_per_rank, "GPU": cluster.gpus_per_rank}

    def launch(meeting: Meeting) -> "Sequence[RayRank]":
        started = []
        for rank in range(meeting.ranks):
            log = logs / f"{name}-rank-{rank}.log"
            given = {
                "environment": _place(meeting, rank),
                "address": meeting.address,
                "key": meeting.key,
                "log": str(log.absolute()),
            }
            actor = process.start(f"rank {rank} of {meeting.ranks}", "rank", given, need, bundle=rank)
            started.append(RayRank(process, actor, log))
        return started

    try:
        return Team(process.place(ranks, need), logs, name, launch, host=cluster.host)
    except BaseException:
        process.close()
        raise


class RayRank:
    """A `training.cluster.launching.RankProcess` on a node."""

    def __init__(self, process: RayProcess, actor: Actor, log_file: Path) -> None:
        self._process = process
        self._actor = actor
        self.log_file = log_file

    @property
    def pid(self) -> int:
        """The id of its process on its node; 0 until it runs."""
        self._process.hear()
        return self._actor.pid or 0

    def alive(self) -> bool:
        """True until Ray says that it has ended.

        Raises:
            RunError: The cluster is lost.
        """
        self._process.hear()
        return self._actor.ended is None

    def killed(self) -> bool:
        """True if it was killed, or its node is gone."""
        return self._actor.lost

    def ending(self) -> str:
        """A phrase for messages that says where and how it ended."""
        return self._actor.ending()

    def last_words(self) -> str:
        """Nothing more: the reason is in `ending`."""
        return "no more is known"

    def kill(self) -> None:
        """End it, and with it all ranks of the team."""
        self._process.close()

    def join(self, seconds: float | None = None) -> None:
        """Nothing to wait for: Ray frees what the team had reserved."""


def _place(meeting: Meeting, rank: int) -> dict[str, str]:
    """The variables that give a rank its place. Ray shows each rank its own GPUs only, so it is the first there."""
    return {
        "RANK": str(rank),
        "LOCAL_RANK": "0",
        "WORLD_SIZE": str(meeting.ranks),
        "LOCAL_WORLD_SIZE": "1",
        "MASTER_ADDR": meeting.host,
        "MASTER_PORT": str(meeting.port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }
