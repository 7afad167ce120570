"""Loads weights into servers by sending them: one group of torch for each publish, by gloo or nccl.

The publisher is rank 0, and each worker of each server is one further rank. The servers are told to receive by
`receive_chimera_weights` (`receiver/chimera_receiver.py`, which they have loaded), while a thread sends (`sending`).
When an end fails, all others notice it, at the latest after `LIMIT_S`.
"""

import asyncio
import json
import secrets
import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import accumulate
from pathlib import Path
from typing import Any

from chimera.config.sections.models import ModelConfig, TransferKind
from chimera.core.errors import ConfigError, ModelError, RunError, boundary
from chimera.core.ports import LOOPBACK, listen
from chimera.serving.vllm.engine import RECEIVER, RECEIVER_CLASS
from chimera.serving.vllm.replicas import Replica
from chimera.serving.vllm.sending import Rendezvous, TensorEntry, manifest, send, sending_device
from chimera.serving.vllm.transfer import FILES, LOAD_S, RPC, Transfer

PLACE, RECEIVE = "chimera_place", "receive_chimera_weights"
"""Methods of the receiver."""
LIMIT_S = 120.0
"""Seconds in which all workers must have come, and in which each piece of at most 64 MiB must have arrived."""
END_S = 30.0
"""Seconds in which servers have to answer when a transfer has failed."""
ASK_S = 300.0
"""Seconds in which a server tells its workers: it may have calls to answer first."""


class Broadcast:
    """Sends weights to all servers.

    Args:
        kind: gloo or nccl.
        setting: The setting that asks for it, as named in errors.
        host: The address of this machine at which workers find the publisher.
        device: Where the publisher holds what it sends.
        limit_s: See `LIMIT_S`.
    """

    def __init__(
        self,
        kind: TransferKind,
        setting: str,
        *,
        host: str = LOOPBACK,
        device: str = "cpu",
        limit_s: float = LIMIT_S,
    ) -> None:
        self._kind: TransferKind = kind
        self._setting, self._host, self._device, self._limit_s = setting, host, device, limit_s

    @property
    def kind(self) -> TransferKind:
        """gloo or nccl."""
        return self._kind

    async def check(self, replicas: Sequence[Replica]) -> None:
        """Make sure that the servers can receive, and that they can be sent to.

        Raises:
            ConfigError: One cannot receive, or no port can be opened.
        """
        try:
            listen(host=self._host).close()
            for replica in replicas:
                await self._workers(replica)
        except (ModelError, RunError) as error:
            raise ConfigError(str(error)) from error

    async def load(self, prepared: Path, replicas: Sequence[Replica]) -> None:
        """Send the weights in `prepared`; returns when all servers have loaded them.

        Raises:
            ModelError: One has not. Nobody knows what the servers have now.
        """
        workers = [await self._workers(replica) for replica in replicas]
        with boundary(ModelError, f"the weights in {prepared} cannot be sent"):
            entries, files = await asyncio.to_thread(manifest, prepared)
        try:
            listener, over = listen(host=self._host), threading.Event()
        except RunError as error:
            raise ModelError(str(error)) from error
        host, port = listener.getsockname()[:2]
        ranks = 1 + sum(workers)
        meeting = Rendezvous(self._kind, host, port, secrets.token_urlsafe(16), ranks, self._limit_s)
        sent = asyncio.to_thread(send, meeting, listener.detach(), entries, files, self._device, over)
        sending = asyncio.create_task(sent)
        telling = [
            asyncio.create_task(self._receive(replica, meeting, first, entries))
            for replica, first in zip(replicas, accumulate(workers, initial=1), strict=False)
        ]
        for task in (sending, *telling):
            task.add_done_callback(_failure)  # One that ends later is awaited by nobody, and asyncio would log it.
        try:
            await self._until_loaded(sending, telling, replicas, over)
        finally:
            over.set()
            for task in telling:
                task.cancel()

    async def _until_loaded(
        self,
        sending: asyncio.Task[None],
        telling: Sequence[asyncio.Task[None]],
        replicas: Sequence[Replica],
        over: threading.Event,
    ) -> None:
        one_failed = asyncio.create_task(asyncio.wait(telling, return_when=asyncio.FIRST_EXCEPTION))
        await asyncio.wait({sending, one_failed}, return_when=asyncio.FIRST_COMPLETED)
        first = next(filter(None, map(_failure, (sending, *telling))), None)
        over.set()
        # All are awaited, so that nothing of it is under way when it is made again.
        _, late = await asyncio.wait({sending, *telling}, timeout=END_S if first else None)
        failures = [first, *map(_failure, (sending, *telling))] if first else [*map(_failure, telling)]
        found = _explaining(list(filter(None, failures)))
        if found is None:
            return
        if isinstance(found, ModelError):
            raise found
        mute = [replica.name for replica, task in zip(replicas, telling, strict=True) if task in late]
        more = f"; no answer from {' and '.join(mute)}" if mute else ""
        raise ModelError(f"sending weights by {self._kind} ended early ({self._setting}): {found}{more}") from found

    async def _receive(self, replica: Replica, meeting: Rendezvous, first: int, entries: Sequence[TensorEntry]) -> None:
        """Have the workers of `replica` receive, from rank `first` on; returns when they have loaded what came.

        Raises:
            ModelError: It gave no answer, or refused the weights.
            TransferLost: The weights did not come.
        """
        from chimera.serving.vllm.receiver.chimera_receiver import TransferLost, TransferSilent

        given = {**asdict(meeting), "first": first, "tensors": entries}
        answer = await replica.ask(RPC, {"method": RECEIVE, "kwargs": given}, limit_s=LOAD_S)
        # Of several workers one that says what it lacks explains why others have lost the connection.
        said = {key: text for result in _results(answer, replica) for key, text in result.items()}
        if "error" in said:
            raise ModelError(f"{replica.name} refused the weights that came by {self._kind}: {said['error']}")
        if "unreached" in said:
            raise ModelError(
                f"{replica.name} does not reach the run at {meeting.host}:{meeting.port} ({said['unreached']}): "
                "cluster.host must be an address of the run's machine that it reaches"
            )
        if "silent" in said:
            raise TransferSilent(f"{replica.name}: {said['silent']}")
        if "lost" in said:
            raise TransferLost(f"{replica.name}: {said['lost']}")

    async def _workers(self, replica: Replica) -> int:
        """The number of workers of a server.

        Raises:
            ModelError: It cannot receive.
        """
        from chimera.serving.vllm.receiver.chimera_receiver import FORMAT

        answer = await replica.send(RPC, {"method": PLACE}, limit_s=ASK_S)
        if answer.status != 200:
            raise ModelError(
                f"{replica.name} cannot take weights by {self._kind} (it answered {answer.status} to {RPC}: "
                f"{answer.refusal(200)}): start it with VLLM_SERVER_DEV_MODE=1, PYTHONPATH={RECEIVER} and "
                f"--worker-extension-cls {RECEIVER_CLASS}, or set {self._setting}=files"
            )
        try:
            places = _results(json.loads(answer.content), replica)
        except ValueError as error:
            raise ModelError(f"{replica.name} answered {RPC} with what is no JSON") from error
        if any(place.get("format") != FORMAT for place in places):
            raise ModelError(f"{replica.name} has a receiver of another version: give it the run's own {RECEIVER}")
        if sorted(place["rank"] for place in places) != list(range(places[0]["ranks"])):
            raise ModelError(
                f"{replica.name} tells {len(places)} of its {places[0]['ranks']} workers, as data-parallel servers do: "
                f"use several servers in place of it, or set {self._setting}=files"
            )
        if self._kind == "nccl" and places[0]["device"] != "cuda":
            raise ModelError(
                f"{replica.name} computes on {places[0]['device']}, not on a GPU: set {self._setting}=gloo"
            )
        return len(places)


def transfer_of(model: ModelConfig, slot: str, host: str) -> Transfer:
    """How the servers of a slot get weights.

    Args:
        model: The slot's settings.
        slot: Its name.
        host: `cluster.host`, which servers that the run did not start may have to reach.

    Raises:
        ConfigError: This process has no GPU to send from.
    """
    if model.transfer == "files":
        return FILES
    setting, taken = f"models.{slot}.transfer", {gpu for place in model.gpus for gpu in place.split(",")}
    device = sending_device(model.transfer, setting, taken)
    return Broadcast(model.transfer, setting, host=host if model.urls else LOOPBACK, device=device)


def _results(answer: Any, replica: Replica) -> list[Mapping[str, Any]]:
    """What each worker of a server has returned."""
    found = answer.get("results") if isinstance(answer, dict) else None
    if not isinstance(found, list) or not found or not all(isinstance(one, dict) for one in found):
        raise ModelError(f"{replica.name} answered {RPC} with what its receiver never says: {str(answer)[:200]}")
    return found


def _explaining(failures: Sequence[BaseException]) -> BaseException | None:
    """The failure that explains the others: who refuses or gives up closes the connections of all."""
    from chimera.serving.vllm.receiver.chimera_receiver import TransferSilent

    faults = [error for error in failures if isinstance(error, ModelError)]
    silent = [error for error in failures if isinstance(error, TransferSilent)]
    return next(iter((*faults, *silent, *failures)), None)


def _failure(task: asyncio.Task[None]) -> BaseException | None:
    return task.exception() if task.done() and not task.cancelled() else None
