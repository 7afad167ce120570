"""Runners as actors on any node of a Ray cluster."""

import asyncio
import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from chimera.config.sections.cluster import ClusterConfig
from chimera.core.errors import RunError
from training.cluster.ray.process import Actor, RayProcess
from training.lab.runners.launching import OnEnd
from training.lab.runners.runner import RunnerSpec
from training.lab.runners.visitors import plain_spec


class RayRunners:
    """A `training.lab.runners.launching.RunnerLauncher` on a cluster. Runners for which there is no room wait for it.

    What a runner is told is JSON, without keys of tools: those are taken from the environment of its node.

    Args:
        cluster: Which cluster.
        spec: Specification of each runner.
        logs: Folder of their log files, which a node writes if it sees that folder.
        on_failure: Called with the error when the cluster is lost.

    Raises:
        ConfigError: The token file cannot be used.
    """

    def __init__(
        self, cluster: ClusterConfig, spec: RunnerSpec, logs: Path, on_failure: Callable[[RunError], None]
    ) -> None:
        self._need = {"CPU": cluster.cpus_per_runner}
        self._doors = asdict(spec.doors)
        self._logs = logs.absolute()
        self._on_failure = on_failure
        self._told: dict[str, OnEnd] = {}
        self._process = RayProcess(cluster, logs / "runners-ray.log")
        self._process.share(json.dumps(plain_spec(spec)))
        asyncio.get_running_loop().add_reader(self._process.fileno(), self._hear)

    def start(self, number: int, on_end: OnEnd) -> "RayRunner":
        """Start one, as soon as there is room; see `RunnerLauncher.start`."""
        given = {"doors": self._doors, "number": number, "log": str(self._logs / f"runner-{number}.log")}
        actor = self._process.start(f"runner {number}", "runner", given, self._need)
        self._told[actor.name] = on_end
        return RayRunner(self._process, actor)

    def stop(self) -> None:
        """End all runners, and leave the cluster."""
        self._told = {}
        asyncio.get_running_loop().remove_reader(self._process.fileno())
        self._process.close()

    def _hear(self) -> None:
        try:
            ended = self._process.hear()
        except RunError as error:
            asyncio.get_running_loop().remove_reader(self._process.fileno())
            self._on_failure(error)
            return
        for actor in ended:
            if on_end := self._told.pop(actor.name, None):
                on_end(f"{actor.ending()} (see {self._logs})", not actor.lost)


class RayRunner:
    """One runner; see `training.lab.runners.launching.StartedRunner`."""

    def __init__(self, process: RayProcess, actor: Actor) -> None:
        self._process = process
        self._actor = actor

    @property
    def pid(self) -> int | None:
        """Its process id on its node; None until it runs."""
        return self._actor.pid

    def kill(self) -> None:
        """End it at once."""
        self._process.kill(self._actor)
