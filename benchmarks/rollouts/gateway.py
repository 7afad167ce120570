"""What a model call costs in each gateway: `python -m benchmarks.rollouts.gateway [--calls N] [--at-once N] [--tiny]`.

The same calls go through both gateways to a server that answers at once, into the same store, one gateway after the
other and then again in the other order, so that a change of the machine's speed does not favour one. Processor time is
counted per process. Every exchange must be in the store, or the benchmark fails.
"""

import argparse
import asyncio
import itertools
import json
import logging
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import uvicorn
from rich.console import Console
from rich.table import Table

from chimera.config.tree import Config
from chimera.core.ports import free_port
from chimera.processes import forks
from chimera.processes.children import stop
from chimera.serving.client import Endpoint
from chimera.serving.tls import context_for
from evaluation.traces.spans import EXCHANGE
from training.lab.gateway.process import Gateway
from training.lab.store import LabStore

# isort: split
from agentlightning.types import EnqueueRolloutRequest  # after training, which makes it leave out LiteLLM

ROLLOUTS = 16
THERE_AND_BACK = ("litellm", "thin", "thin", "litellm")
WORDS = "The rate of events was lower in the treated group than in the control group. " * 12
ASKED: dict[str, Any] = {
    "model": "senior",
    "messages": [
        {"role": "system", "content": "You are the protocol designer. " * 10},
        {"role": "user", "content": json.dumps({"goal": "Does it help?", "results": [{"text": WORDS}]})},
    ],
    "temperature": 1.0,
    "max_tokens": 768,
    "seed": 1,
    "response_format": {"type": "json_schema", "json_schema": {"name": "Protocol", "schema": {"type": "object"}}},
}
ANSWER = {
    "object": "chat.completion",
    "created": 0,
    "model": "canned",
    "weights_version": "canned@1",
    "prompt_token_ids": list(range(400)),
    "choices": [
        {
            "index": 0,
            "message": {"role": "assistant", "content": '{"answer": "yes", "claim": "It is so."}'},
            "finish_reason": "stop",
            "token_ids": list(range(100)),
        }
    ],
    "usage": {"prompt_tokens": 400, "completion_tokens": 100, "total_tokens": 500},
}


def canned_server(port: int, ready: Connection) -> None:
    """The server process behind the gateways: answers at once."""
    numbers = itertools.count()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        while (await receive()).get("more_body"):
            pass
        body = json.dumps({"id": f"canned-{next(numbers)}", **ANSWER}).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    asyncio.run(serve_app(app, port, ready))


async def serve_app(app: Any, port: int, ready: Connection) -> None:
    """Serve an ASGI application on a loopback port, and send something through `ready` once it answers."""
    # On a busy machine a connection is idle for long, and the caller must not find it closed.
    config = uvicorn.Config(app, port=port, lifespan="off", log_config=None, access_log=False, timeout_keep_alive=3600)
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve())
    while not server.started:  # noqa: ASYNC110  uvicorn has no event for it
        await asyncio.sleep(0.01)
    ready.send("ready")
    await serving


@contextmanager
def served(app: Callable[[int, Connection], None], folder: Path) -> Iterator[str]:
    """The address of a server in a process of its own, whose time is not counted."""
    receiver, sender = forks.pipe()
    port = free_port()
    server = forks.Fork("canned server", app, (port, sender), folder / "canned.log")
    server.start()
    asyncio.run(forks.receive(receiver, server, seconds=60))
    try:
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        stop([server])


TICK = 1 / os.sysconf("SC_CLK_TCK")
"""Seconds of the smallest processor time that the system counts."""


def times(part: float, seconds: float, digits: int = 1) -> str:
    """`part / seconds`; less than one tick of processor time may have been counted as none, which gives a bound."""
    return f"{part / seconds:.{digits}f}" if seconds else f"> {part / TICK:.{digits}f}"


@dataclass(slots=True)
class Cost:
    """Calls through one gateway: their wall seconds, and processor seconds of the gateway and of store and caller."""

    calls: int = 0
    wall: float = 0.0
    gateway: float = 0.0
    store_and_caller: float = 0.0

    def row(self) -> list[str]:
        """Calls a second, the most that one processor could take, and milliseconds of processor time a call."""
        each = 1000 / self.calls
        most = times(self.calls, self.gateway, digits=0)
        return [
            f"{self.calls / self.wall:.0f}",
            most,
            f"{each * self.gateway:.2f}",
            f"{each * self.store_and_caller:.2f}",
        ]


async def call_many(
    url: str, key: str, attempts: list[tuple[str, str]], calls: int, at_once: int, authority: str | None = None
) -> None:
    """`calls` calls, `at_once` at a time, spread over the attempts; `authority` vouches for a gateway with TLS."""
    numbers = itertools.count()
    headers = {"authorization": f"Bearer {key}"}
    connector = aiohttp.TCPConnector(limit=0, ssl=context_for(url, authority) or True)
    async with aiohttp.ClientSession(connector=connector, headers=headers) as session:

        async def caller() -> None:
            while (number := next(numbers)) < calls:
                rollout_id, attempt_id = attempts[number % len(attempts)]
                place = f"{url}/rollout/{rollout_id}/attempt/{attempt_id}/v1/chat/completions"
                async with session.post(place, json=ASKED) as answer:
                    body = await answer.read()
                    assert answer.status == 200, body[:300]

        await asyncio.gather(*(caller() for _ in range(at_once)))


async def measure(engine: str, backend: str, store: LabStore, folder: Path, calls: int, at_once: int) -> Cost:
    """Start the gateway, warm it up, and count."""
    config = Config.model_validate({"gateway": {"engine": engine}})
    endpoints = {"senior": Endpoint(backend, "canned", "no-key")}
    await store.enqueue_many_rollouts([EnqueueRolloutRequest(input={}, mode="train") for _ in range(ROLLOUTS)])
    taken = [await store.dequeue_rollout("benchmark") for _ in range(ROLLOUTS)]
    attempts = [(one.rollout_id, one.attempt.attempt_id) for one in taken if one is not None]
    gateway = Gateway(config, endpoints, store.endpoint, store.key, folder / f"{engine}.log", print, print)
    await gateway.start()
    try:
        warm = min(calls, 50)
        await call_many(gateway.url, gateway.key, attempts, warm, at_once)
        processes = gateway.pids, [os.getpid()]
        before = [spent(pids) for pids in processes]
        started = time.perf_counter()
        await call_many(gateway.url, gateway.key, attempts, calls, at_once)
        wall = time.perf_counter() - started
        await all_stored(store, attempts, warm + calls)
        used = [spent(pids) - start for pids, start in zip(processes, before, strict=True)]
        return Cost(calls, wall, *used)
    finally:
        gateway.stop()


async def all_stored(store: LabStore, attempts: list[tuple[str, str]], expected: int) -> None:
    """Return when every exchange is in the store; LiteLLM's come a little after the answers."""
    deadline = time.monotonic() + 30.0
    while True:
        spans = [span for rollout_id, _ in attempts for span in (await store.query_spans(rollout_id)).items]
        found = sum(span.name == EXCHANGE for span in spans)
        if found == expected:
            return
        assert time.monotonic() < deadline, f"{found} of {expected} exchanges are in the store"
        await asyncio.sleep(0.2)


def spent(pids: Iterable[int]) -> float:
    """Processor seconds of these processes so far."""
    return sum(used.user + used.system for pid in pids for used in [psutil.Process(pid).cpu_times()])


async def compare(calls: int, at_once: int, backend: str, folder: Path, order: Sequence[str]) -> dict[str, Cost]:
    store = LabStore(lambda _: None)
    store.employ("benchmark")
    await store.start()
    total = {"litellm": Cost(), "thin": Cost()}
    try:
        for engine in order:
            cost = await measure(engine, backend, store, folder, calls, at_once)
            sum_ = total[engine]
            sum_.calls, sum_.wall = sum_.calls + cost.calls, sum_.wall + cost.wall
            sum_.gateway += cost.gateway
            sum_.store_and_caller += cost.store_and_caller
    finally:
        await store.close()
    return total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=500, help="calls in each of two rounds a gateway")
    parser.add_argument("--at-once", type=int, default=24, help="as many as eight rollouts make at most")
    parser.add_argument("--tiny", action="store_true", help="10 calls, one way: shows that it runs, not what it costs")
    arguments = parser.parse_args()
    order = THERE_AND_BACK
    if arguments.tiny:
        arguments.calls, arguments.at_once, order = 10, 4, THERE_AND_BACK[:2]
    forks.prepare()
    logging.disable(logging.WARNING)
    with tempfile.TemporaryDirectory() as folder, served(canned_server, Path(folder)) as backend:
        total = asyncio.run(compare(arguments.calls, arguments.at_once, backend, Path(folder), order))
    table = Table(title=f"{total['thin'].calls} calls, {arguments.at_once} at once; every exchange is in the store")
    for column in ("gateway", "calls/s", "calls/s at most", "CPU ms a call", "CPU ms of store and caller"):
        table.add_column(column, justify="left" if column == "gateway" else "right")
    for engine, cost in total.items():
        table.add_row(engine, *cost.row())
    thin, litellm = total["thin"], total["litellm"]
    table.add_row(
        "litellm / thin",
        "",
        "",
        times(litellm.gateway, thin.gateway),
        times(litellm.store_and_caller, thin.store_and_caller),
    )
    Console(width=120).print(table)
    forks.finish()


if __name__ == "__main__":
    main()
