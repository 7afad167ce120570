"""How many GPUs one run's gateway and store can feed: `python -m benchmarks.rollouts.ceiling [--rollouts N] [--tiny]`.

First the gateway, by its number of processes, before a model server that answers at once. Then the store: all rollouts
are queued, and a crowd of runners takes them, makes one model call each (an echo society) and reports an outcome, by
the requests that a real runner makes. The run's main process collects and records them as in training. Processor time
is counted per process, so that it holds on a busy machine too. The last lines show the arithmetic of what follows.
"""

import argparse
import asyncio
import json
import logging
import math
import os
import tempfile
import time
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import aiohttp
import psutil
from rich.console import Console
from rich.table import Table

from benchmarks.rollouts.gateway import ASKED, all_stored, call_many, canned_server, served, spent, times
from benchmarks.rollouts.lab import open_lab
from chimera.config.sections.cluster import TlsConfig
from chimera.config.sections.models import SLOTS
from chimera.config.tree import Config
from chimera.core.ports import free_port
from chimera.data.tasks import load
from chimera.processes import forks
from chimera.processes.children import stop
from chimera.serving.client import Endpoint
from evaluation.records.rollouts import Outcome, RolloutInput
from evaluation.traces.spans import OBJECT, OBJECT_JSON, OPERATION, RESPONSE_IDS
from training.lab.gateway.process import Gateway
from training.lab.runners.runner import worker_name
from training.lab.runners.visitors import visit
from training.lab.store import KeyedStoreClient, LabStore

# isort: split
from agentlightning.types import EnqueueRolloutRequest  # after training, which makes it leave out LiteLLM
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

CALLS_A_ROLLOUT = 16.4
"""Model calls of a rollout of the whole society, mean of 192."""
CROWDS = 2
"""Processes that the crowd of runners is divided among."""


@dataclass(frozen=True, slots=True)
class GatewayCost:
    """Calls through so many gateway processes: a second, and milliseconds of processor time each."""

    processes: int
    calls_s: float
    gateway_ms: float
    store_ms: float


@dataclass(frozen=True, slots=True)
class StoreCost:
    """Echo rollouts: a second, milliseconds of processor time each, and mebibytes of the main process."""

    rollouts_s: float
    main_ms: float
    enqueue_s: float
    first: float
    queued: float
    ended: float


def callers(
    url: str,
    key: str,
    authority: str | None,
    attempts: list[tuple[str, str]],
    calls: int,
    at_once: int,
    done: Connection,
) -> None:
    """A process that makes calls; sends the seconds that they took, without the first ones."""
    asyncio.run(call_many(url, key, attempts, at_once, at_once, authority))
    done.send("warm")
    started = time.perf_counter()
    asyncio.run(call_many(url, key, attempts, calls, at_once, authority))
    done.send(time.perf_counter() - started)


async def gateways(
    processes: int, backend: str, folder: Path, calls: int, at_once: int, tls: TlsConfig | None = None
) -> GatewayCost:
    """Calls from another process, so that this one has the store alone; `tls` is of the gateways and the store."""
    tls = tls or TlsConfig()
    store = LabStore(lambda _: None, tls=tls)
    store.employ("benchmark")
    await store.start()
    await store.enqueue_many_rollouts([EnqueueRolloutRequest(input={}, mode="train") for _ in range(at_once)])
    taken = [await store.dequeue_rollout("benchmark") for _ in range(at_once)]
    attempts = [(one.rollout_id, one.attempt.attempt_id) for one in taken if one is not None]
    config = Config.model_validate({"gateway": {"processes": processes}, "cluster": {"tls": tls}})
    endpoints = {"senior": Endpoint(backend, "canned", "no-key")}
    gateway = Gateway(config, endpoints, store.endpoint, store.key, folder / "gateway.log", print, print)
    await gateway.start()
    receiver, sender = forks.pipe()
    args = (gateway.url, gateway.key, tls.authority_path, attempts, calls, at_once, sender)
    caller = forks.Fork("callers", callers, args, folder / "callers.log")
    caller.start()
    try:
        await forks.receive(receiver, caller, seconds=3600)
        before = spent(gateway.pids), spent([os.getpid()])
        wall = await forks.receive(receiver, caller, seconds=3600)
        used = [
            1000 * (spent(pids) - start) / calls
            for pids, start in zip((gateway.pids, [os.getpid()]), before, strict=True)
        ]
        await all_stored(store, attempts, calls + at_once)
        return GatewayCost(processes, calls / wall, *used)
    finally:
        caller.join()
        gateway.stop()
        await store.close()


def crowd(store_url: str, key_file: str, runners: int, joined: Connection) -> None:
    """A process with many runners of the echo society, until the run has ended."""
    logging.disable(logging.CRITICAL)
    asyncio.run(work_together(store_url, Path(key_file), runners, joined))


async def work_together(store_url: str, key_file: Path, runners: int, joined: Connection) -> None:
    """Each runner asks for its number, as one that somebody starts by hand, and then works."""
    told = [visit(store_url, key_file) for _ in range(runners)]
    joined.send("joined")
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        work = (
            echo_runner(worker_name(one["number"]), store_url, store_key, str(one["gateway"]), gateway_key, session)
            for one, store_key, gateway_key in told
        )
        await asyncio.gather(*work, return_exceptions=True)


async def echo_runner(
    worker: str, store_url: str, store_key: str, gateway: str, gateway_key: str, session: aiohttp.ClientSession
) -> None:
    """One runner: the requests of agentlightning's, with a society that makes one call."""
    store = KeyedStoreClient(store_url, store_key)
    headers = {"authorization": f"Bearer {store_key}", "content-type": "application/x-protobuf"}
    try:
        while True:
            given = await store.dequeue_rollout(worker)
            if given is None:
                continue
            rollout, attempt = given.rollout_id, given.attempt.attempt_id
            assert given.resources_id is not None
            await store.get_resources_by_id(given.resources_id)
            url = f"{gateway}/rollout/{rollout}/attempt/{attempt}/v1/chat/completions"
            async with session.post(url, json=ASKED, headers={"authorization": f"Bearer {gateway_key}"}) as answer:
                said = await answer.json()
                assert answer.status == 200, said
            spans = reported(rollout, attempt, said["id"])
            async with session.post(f"{store_url}/v1/traces", data=spans, headers=headers) as answer:
                assert answer.status == 200, await answer.text()
            await store.update_attempt(rollout, attempt, status="succeeded")
    finally:
        await store.close()


def reported(rollout_id: str, attempt_id: str, response_id: str) -> bytes:
    """What a runner sends when a rollout has ended: the visit of its one role, and its outcome."""
    request = ExportTraceServiceRequest()
    part = request.resource_spans.add()
    for name, value in (("rollout_id", rollout_id), ("attempt_id", attempt_id)):
        part.resource.attributes.add(key=f"agentlightning.{name}").value.string_value = value
    outcome = json.dumps(Outcome(None, {}, 1.0, {}, {}, {}, {}, {}, {}, [], 0.1).dump())
    visit_of = {"role": "ProtocolDesigner", "model": "senior", "visit": "1"}
    told: tuple[tuple[str, dict[str, str]], ...] = (
        (OPERATION, visit_of),
        (OBJECT, {"agentlightning.object.type": "dict", OBJECT_JSON: outcome}),
    )
    for name, attributes in told:
        span = part.scope_spans.add().spans.add(name=name)
        span.trace_id, span.span_id = os.urandom(16), os.urandom(8)
        span.start_time_unix_nano = span.end_time_unix_nano = time.time_ns()
        for key, value in attributes.items():
            span.attributes.add(key=key).value.string_value = value
        if name == OPERATION:
            span.attributes.add(key=f"{RESPONSE_IDS}.0").value.string_value = response_id
    return request.SerializeToString()


async def store_and_main(config: Config, folder: Path, queued: int, measured: int, runners: int) -> StoreCost:
    """The run's main process with all rollouts queued, until the crowd has ended some of them."""
    dataset = load(config.data)
    async with open_lab(config, dataset, folder) as (_, lab):
        lab.pool.stop()  # The crowd works, not the run's own runner.
        crowds = [await join(lab.store.endpoint, config, folder, number, runners) for number in range(CROWDS)]
        inputs = [RolloutInput.of(dataset.train[0], "gather", number, 0) for number in range(queued)]
        memory = [resident()]
        before, started = spent([os.getpid()]), time.perf_counter()
        async with aclosing(lab.rollouts(inputs)) as episodes:
            first = asyncio.ensure_future(anext(episodes))
            while not (await lab.store.statistics()).get("total_rollouts"):  # noqa: ASYNC110  nothing announces it
                await asyncio.sleep(0.01)
            enqueue_s = time.perf_counter() - started
            memory.append(resident())
            failed = [(await first).record.error]
            while len(failed) < measured:
                failed.append((await anext(episodes)).record.error)
            wall, used = time.perf_counter() - started, spent([os.getpid()]) - before
            memory.append(resident())
            stop(crowds)
        assert not any(failed), next(filter(None, failed))
        return StoreCost(measured / wall, 1000 * used / measured, enqueue_s, *memory)


async def join(store_url: str, config: Config, folder: Path, number: int, runners: int) -> forks.Fork:
    """One process of the crowd, whose runners have their numbers."""
    receiver, sender = forks.pipe()
    args = (store_url, str(config.cluster.key_file), math.ceil(runners / CROWDS), sender)
    started = forks.Fork(f"crowd {number}", crowd, args, folder / f"crowd-{number}.log")
    started.start()
    await forks.receive(receiver, started, seconds=3600)
    return started


def resident() -> float:
    """Mebibytes of this process that are in memory."""
    return psutil.Process().memory_info().rss / 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=2000, help="model calls for each number of gateway processes")
    parser.add_argument("--rollouts", type=int, default=10_000, help="echo rollouts that are queued")
    parser.add_argument("--measured", type=int, default=2_000, help="of these, how many are awaited")
    parser.add_argument("--runners", type=int, default=100, help="runners of the crowd")
    parser.add_argument("--gpu-tokens", type=float, default=2500, help="tokens that one GPU generates a second")
    parser.add_argument("--answer-tokens", type=float, default=100, help="tokens of an answer")
    parser.add_argument("--tiny", action="store_true", help="shows that it runs, not what it costs")
    arguments = parser.parse_args()
    processes: tuple[int, ...] = (1, 2, 4)
    if arguments.tiny:
        arguments.calls, arguments.rollouts, arguments.measured, arguments.runners, processes = 8, 6, 3, 2, (2,)
    forks.prepare()
    logging.disable(logging.WARNING)
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        with served(canned_server, folder) as url:
            at_once = min(64, arguments.calls)
            costs = [asyncio.run(gateways(count, url, folder, arguments.calls, at_once)) for count in processes]
            config = echo_config(url, folder)
            sizes = arguments.rollouts, min(arguments.measured, arguments.rollouts), arguments.runners
            store = asyncio.run(store_and_main(config, folder, *sizes))
    console = Console(width=120)
    console.print(gateway_table(costs, arguments.calls))
    console.print(store_table(store, *sizes))
    for line in conclusions(costs, store, arguments.gpu_tokens, arguments.answer_tokens):
        console.print(line, highlight=False, soft_wrap=True)
    forks.finish()


def echo_config(url: str, folder: Path) -> Config:
    """A run whose runners are visitors."""
    model = {"kind": "endpoint", "base_url": url, "model": "canned", "structured": "always"}
    return Config.model_validate(
        {
            "runs_dir": folder,
            "models": dict.fromkeys(SLOTS, model),
            "rollouts": {"runners": 1},
            "cluster": {"key_file": folder / "key", "store_port": free_port(), "gateway_port": free_port()},
        }
    )


def gateway_table(costs: Sequence[GatewayCost], calls: int) -> Table:
    """One row for each number of processes."""
    table = Table(title=f"gateway: {calls} calls each; every exchange is in the store")
    for column in ("processes", "calls/s", "gateway CPU ms a call", "store CPU ms a call", "calls/s, a core each"):
        table.add_column(column, justify="right")
    for one in costs:
        most = times(1000 * one.processes, one.gateway_ms, digits=0)
        table.add_row(str(one.processes), f"{one.calls_s:.0f}", f"{one.gateway_ms:.2f}", f"{one.store_ms:.2f}", most)
    return table


def store_table(cost: StoreCost, queued: int, measured: int, runners: int) -> Table:
    """What the main process does and holds."""
    table = Table(title=f"store: {queued} echo rollouts queued, the first {measured} of them by {runners} runners")
    for column in ("rollouts/s", "main CPU ms a rollout", "s to queue", "MiB before", "MiB queued", "MiB ended"):
        table.add_column(column, justify="right")
    memory = (f"{size:.0f}" for size in (cost.first, cost.queued, cost.ended))
    table.add_row(f"{cost.rollouts_s:.1f}", f"{cost.main_ms:.1f}", f"{cost.enqueue_s:.1f}", *memory)
    return table


def conclusions(costs: Sequence[GatewayCost], store: StoreCost, gpu_tokens: float, answer_tokens: float) -> list[str]:
    """How many GPUs are fed, in sentences that show the arithmetic. A core each for the store and each gateway."""
    both = [one.gateway_ms for one in costs], [one.store_ms for one in costs]
    gateway_ms, store_ms = (max(1e-3, math.fsum(found) / len(costs)) for found in both)
    rollout_ms = store.main_ms + (CALLS_A_ROLLOUT - 1) * store_ms
    of_store = 1000 / rollout_ms * CALLS_A_ROLLOUT
    of_gateway = 1000 / gateway_ms
    of_gpu = gpu_tokens / answer_tokens
    return [
        f"a GPU: {gpu_tokens:g} tokens/s / {answer_tokens:g} tokens an answer = {of_gpu:.0f} calls/s (assumed, not "
        "measured: --gpu-tokens, --answer-tokens)",
        f"a gateway process: 1000 / {gateway_ms:.2f} ms = {of_gateway:.0f} calls/s, {of_gateway / of_gpu:.0f} GPUs",
        f"store and main process: a rollout of {CALLS_A_ROLLOUT} calls takes {store.main_ms:.1f} + "
        f"{CALLS_A_ROLLOUT - 1:.1f} x {store_ms:.2f} = {rollout_ms:.1f} ms, so {1000 / rollout_ms:.0f} rollouts/s = "
        f"{of_store:.0f} calls/s, {of_store / of_gpu:.0f} GPUs",
        f"gateway processes that keep up with the store: {of_store:.0f} / {of_gateway:.0f} = "
        f"{math.ceil(of_store / of_gateway)}",
    ]


if __name__ == "__main__":
    main()
