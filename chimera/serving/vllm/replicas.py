"""The replicas of one set of weights: waits until each answers, and says which of them a call goes to."""

import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chimera.core.errors import ModelError
from chimera.processes.programs import Program
from chimera.serving.connections import BadAnswerError, Connections, HttpAnswer, NoAnswerError

END_S, LOOK_S = 10.0, 0.05
"""A server whose engine has died answers 500 for some seconds (vLLM looks every 5 s) before it ends."""
SHOWN = 300
"""Most characters of a server's refusal in an error."""
SERVED = "weights"
"""The name of the model within vLLM, whatever the slot."""
START_LOOK_S, ANSWER_S, INFO_S = 0.3, 10.0, 300.0
"""While a server starts. It may take long to describe itself: vLLM looks through its whole system for that."""
LOG_LINES = 8


@dataclass(slots=True, eq=False)
class Replica:
    """One vLLM server.

    Attributes:
        name: As named in errors.
        url: Its address, without /v1. With a Unix socket the host name means nothing.
        key: Its key.
        socket: Its Unix socket; None for an address of a network.
        program: Its process, if the run started it.
        on_cpu: True if it computes on a processor.
        model: The model's name there.
        busy: Answers that it is writing.
    """

    name: str
    url: str
    key: str = field(repr=False)
    socket: Path | None = None
    program: Program | None = field(default=None, repr=False)
    on_cpu: bool = True
    model: str = SERVED
    busy: int = 0
    connections: Connections = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.connections = Connections(str(self.socket) if self.socket else None)

    def ended(self) -> bool:
        """True if its process has ended."""
        return self.program is not None and not self.program.alive()

    async def ends(self) -> bool:
        """True if its process has ended or is about to."""
        for _ in range(int(END_S / LOOK_S) if self.program is not None else 0):
            if self.ended():
                return True
            await asyncio.sleep(LOOK_S)
        return False

    async def send(self, path: str, body: Mapping[str, Any] | None, *, limit_s: float) -> HttpAnswer:
        """Post `body` and return the server's answer, whatever its status.

        Raises:
            ModelError: No whole answer came.
        """
        encoded = b"" if body is None else json.dumps(body).encode()
        try:
            return await self.connections.send(f"{self.url}{path}", self.key, encoded, limit_s=limit_s)
        except TimeoutError as error:
            raise ModelError(f"{self.name} did not answer {path} within {limit_s:g} s", retriable=True) from error
        except BadAnswerError as error:
            raise ModelError(f"{self.name} {error}", retriable=True) from error
        except NoAnswerError as error:
            raise ModelError(f"{self.name} cannot be reached ({error})", retriable=True) from error

    async def tell(self, path: str, body: Mapping[str, Any] | None = None, *, limit_s: float) -> bytes:
        """Post `body` and return the content of the answer.

        Raises:
            ModelError: The server refused it.
        """
        answer = await self.send(path, body, limit_s=limit_s)
        if answer.status != 200:
            raise ModelError(f"{self.name} answered {answer.status} to {path}: {answer.refusal(SHOWN)}")
        return answer.content

    async def ask(self, path: str, body: Mapping[str, Any] | None = None, *, limit_s: float) -> Any:
        """Post `body` and return the parsed answer; None if it is empty.

        Raises:
            ModelError: The server refused it or gave no JSON.
        """
        content = await self.tell(path, body, limit_s=limit_s)
        try:
            return json.loads(content) if content else None
        except ValueError as error:
            raise ModelError(f"{self.name} answered {path} with what is no JSON") from error


async def ask_all(
    replicas: Sequence[Replica], path: str, body: Mapping[str, Any] | None = None, *, limit_s: float
) -> None:
    """Post `body` to all of them at a time; returns when all have answered.

    Raises:
        ModelError: One refused it or gave no JSON.
    """
    asking = [replica.ask(path, body, limit_s=limit_s) for replica in replicas]
    # All are awaited, so that nothing of a publish that fails is under way when it is made again.
    for done in await asyncio.gather(*asking, return_exceptions=True):
        if isinstance(done, BaseException):
            raise done


def least_busy(replicas: Sequence[Replica]) -> Replica:
    """The replica with the fewest answers under way; of several the first."""
    return min(replicas, key=lambda replica: replica.busy)


async def wait_for(replica: Replica, deadline: float) -> None:
    """Wait until the server answers; learn the model and the device of one at an address of a network.

    Args:
        replica: The server.
        deadline: Of `time.monotonic`.

    Raises:
        ModelError: It ended, did not answer in time, or is no vLLM server.
    """
    import httpx

    program = replica.program
    transport = httpx.AsyncHTTPTransport(uds=str(replica.socket) if replica.socket else None)
    headers = {"Authorization": f"Bearer {replica.key}"} if replica.key else {}
    async with httpx.AsyncClient(
        base_url=replica.url, transport=transport, headers=headers, timeout=ANSWER_S
    ) as client:
        while True:
            try:
                (await client.get("/health")).raise_for_status()
                break
            except httpx.HTTPError as error:
                reason = f"{type(error).__name__}: {error}"
            if program is not None and not program.alive():
                raise ModelError(f"{program.ending()} while starting: {_log(program)}")
            if time.monotonic() > deadline:
                more = _log(program) if program else f"{reason}; is it running?"
                raise ModelError(f"{replica.name} did not answer in time (models.*.start_timeout_s): {more}")
            await asyncio.sleep(START_LOOK_S)
        if replica.socket is not None:
            return
        try:
            listed = (await client.get("/v1/models")).raise_for_status().json()["data"]
            # Without VLLM_SERVER_DEV_MODE there is no such route; such a server takes no new weights either.
            info = await client.get("/server_info", params={"config_format": "json"}, timeout=INFO_S)
            device = info.json()["vllm_config"].get("device_config") if info.status_code == 200 else None
            replica.model, replica.on_cpu = listed[0]["id"], "cpu" in json.dumps(device)
        except (httpx.HTTPError, ValueError, LookupError, TypeError) as error:
            raise ModelError(
                f"{replica.name} does not tell its models and device ({type(error).__name__}: {error}): is it a vLLM "
                "server, and its key right?"
            ) from error


def _log(program: Program) -> str:
    return f"{program.last_words(LOG_LINES)} (see {program.log_file})"
