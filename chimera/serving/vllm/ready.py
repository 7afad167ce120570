"""Waits until a vLLM server answers, and asks it what it is."""

import asyncio
import json
import time
from dataclasses import dataclass
from pathlib import Path

import httpx

from chimera.core.errors import ModelError
from chimera.processes.programs import Program
from chimera.serving.connections import Connections
from chimera.serving.vllm.engine import SERVED
from chimera.serving.vllm.replicas import Replica

LOOK_S = 0.3
ANSWER_S = 10.0
INFO_S = 300.0
"""Seconds in which a server may describe itself: vLLM looks through its whole system for that."""
LOG_LINES = 8


@dataclass(frozen=True, slots=True)
class ServerPlace:
    """Where a server answers.

    Attributes:
        name: As named in errors.
        url: Its address, without /v1.
        key: Its key.
        socket: Its Unix socket; None for an address of a network.
        program: Its process; None if the run did not start it.
        on_cpu: True for one that the run started on the processor.
    """

    name: str
    url: str
    key: str
    socket: Path | None = None
    program: Program | None = None
    on_cpu: bool = True


async def wait_for(place: ServerPlace, deadline: float) -> Replica:
    """The server at `place` as soon as it answers.

    Args:
        place: The server.
        deadline: Of `time.monotonic`.

    Raises:
        ModelError: It ended, did not answer in time, or is no vLLM server.
    """
    transport = httpx.AsyncHTTPTransport(uds=str(place.socket) if place.socket else None)
    headers = {"Authorization": f"Bearer {place.key}"} if place.key else {}
    async with httpx.AsyncClient(transport=transport, headers=headers, timeout=ANSWER_S) as client:
        while True:
            try:
                (await client.get(f"{place.url}/health")).raise_for_status()
                break
            except httpx.HTTPError as error:
                reason = f"{type(error).__name__}: {error}"
            if place.program is not None and not place.program.alive():
                raise ModelError(f"{place.program.ending()} while starting: {_log(place.program)}")
            if time.monotonic() > deadline:
                more = _log(place.program) if place.program else f"{reason}; is it running?"
                raise ModelError(f"{place.name} did not answer in time (models.*.start_timeout_s): {more}")
            await asyncio.sleep(LOOK_S)
        if place.program is not None and place.socket is not None:
            connections = Connections(str(place.socket))
            return Replica(place.name, place.url, place.key, connections, SERVED, place.on_cpu, program=place.program)
        try:
            listed = (await client.get(f"{place.url}/v1/models")).raise_for_status().json()["data"]
            # Without VLLM_SERVER_DEV_MODE there is no such route; such a server takes no new weights either.
            info = await client.get(f"{place.url}/server_info", params={"config_format": "json"}, timeout=INFO_S)
            device = info.json()["vllm_config"].get("device_config") if info.status_code == 200 else None
            return Replica(
                place.name, place.url, place.key, Connections(), listed[0]["id"], "cpu" in json.dumps(device)
            )
        except (httpx.HTTPError, ValueError, LookupError, TypeError) as error:
            raise ModelError(
                f"{place.name} does not tell its models and device ({type(error).__name__}: {error}): is it a vLLM "
                "server, and its key right?"
            ) from error


def _log(program: Program) -> str:
    return f"{program.last_words(LOG_LINES)} (see {program.log_file})"
