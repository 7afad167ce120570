"""Rollouts in actors of a Ray cluster: a job goes in, record and trace come back, and this process alone writes.

What actors are told, keys of models and tools too, travels through Ray. A node needs this version of Chimera in the
Python that its Ray runs in, and sees `runs_dir` at the same path once a policy of a run is a folder.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from agents.context import Tools
from chimera.config.tree import Config
from chimera.core.errors import ConfigError, RunError
from chimera.serving.client import HttpModel
from evaluation.rollout.worker import Job, Result, SocietyWorker
from training.scale.cluster import Membership, first_line, join

START_S = 120.0
"""How long actors may take to start: Python loads the society's libraries in each."""
RESTARTS = 10
"""How often Ray starts an actor again, on any node; what it worked on is then made again."""


class RolloutActor:
    """What runs on a node: societies that share their tools and connections, one for each rollout at a time."""

    def __init__(self, config: Config, toolbox: Callable[[], Tools]) -> None:
        self._config = config
        self._toolbox, self._tools = toolbox, None
        self._model = HttpModel({}, max_retries=config.rollouts.retries, pause_s=config.rollouts.pause_s)
        self._idle: list[SocietyWorker] = []

    async def ready(self) -> None:
        """Return when rollouts can begin; raises ConfigError if a tool cannot be used."""
        self._open()

    async def rollout(self, job: Job) -> Result:
        """See `Worker.rollout`."""
        worker = self._idle.pop() if self._idle else SocietyWorker(self._config, self._model, self._open())
        try:
            return await worker.rollout(job)
        finally:
            self._idle.append(worker)

    def _open(self) -> Tools:
        if self._tools is None:
            self._tools = self._toolbox()
        return self._tools


class RayWorker:
    """An `evaluation.rollout.worker.Worker` in an actor."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor

    async def rollout(self, job: Job) -> Result:
        """See `Worker.rollout`.

        Raises:
            RunError: Its actor was lost more than `RESTARTS` times, or the cluster is.
        """
        import ray
        from ray.exceptions import RayError, RayTaskError

        answer = self._actor.rollout.remote(job)
        try:
            return await answer
        except asyncio.CancelledError:
            ray.cancel(answer)
            raise
        except RayTaskError as error:
            raise error.cause from None
        except RayError as error:
            raise RunError(
                f"a rollout's actor on the Ray cluster was lost ({first_line(error)}): look at its nodes, and continue "
                "with --resume"
            ) from error


@asynccontextmanager
async def open_actors(
    config: Config, toolbox: Callable[[], Tools]
) -> AsyncIterator[tuple[list[RayWorker], Membership]]:
    """Join the cluster and start the actors, which end with the block: workers, and the cluster that they are in.

    There are `rollouts.concurrency` workers, spread evenly over the actors.

    Args:
        toolbox: Makes the tools, in each actor; what it holds is sent to each node once.

    Raises:
        ConfigError: The token file or a tool's setting cannot be used, or the cluster has no room.
        RunError: The cluster cannot be joined, or an actor does not start.
    """
    membership = await asyncio.to_thread(join, config.cluster)
    try:
        import ray

        shared = ray.put(toolbox)  # Held here as long as the actors live: one that is started again needs it.
        yield await _start(config, shared), membership
    finally:
        await asyncio.to_thread(membership.leave)


async def _start(config: Config, toolbox: Any) -> list[RayWorker]:
    import ray
    from ray.exceptions import RayActorError, RayTaskError

    rollouts, cpus = config.rollouts, config.cluster.cpus_per_actor
    count = min(rollouts.actors, rollouts.concurrency)
    remote: Any = ray.remote
    actor = remote(
        num_cpus=cpus,
        max_concurrency=rollouts.concurrency + 1,
        max_restarts=RESTARTS,
        max_task_retries=-1,  # A node that is gone counts as alive for a while, and each try in it would be counted.
        scheduling_strategy="SPREAD",
    )(RolloutActor)
    actors = [actor.remote(config, toolbox) for _ in range(count)]
    started = [actor.ready.remote() for actor in actors]
    try:
        ready, missing = await asyncio.to_thread(ray.wait, started, num_returns=count, timeout=START_S)
        await asyncio.gather(*ready)
    except RayTaskError as error:
        raise error.cause from None
    except RayActorError as error:
        raise RunError(f"an actor for rollouts does not start on the Ray cluster: {first_line(error)}") from error
    if missing:
        raise ConfigError(
            f"rollouts.actors={rollouts.actors}: the Ray cluster has started {len(ready)} of {count} actors with "
            f"{cpus:g} CPUs each in {START_S:g} s: add nodes, or lower rollouts.actors or cluster.cpus_per_actor"
        )
    return [RayWorker(actors[number % count]) for number in range(rollouts.concurrency)]
