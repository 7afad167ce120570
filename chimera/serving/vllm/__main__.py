"""The process that stands before the vLLM servers, started by `chimera.serving.process`.

It reads its settings and keys as one JSON object from stdin, starts the servers, and serves until SIGTERM. A server
that ends is started again, `MAX_RESTARTS` times; then it ends too and says which. Its servers end with it. Each line of
its stdout is a sentence for the user; everything else goes to stderr, which is its log.
"""

import argparse
import asyncio
import json
import logging
import os
import secrets
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvicorn

from chimera.config.sections.models import ModelConfig, ServingConfig
from chimera.core.errors import ModelError
from chimera.processes.children import stop
from chimera.run.jsonl import append_line
from chimera.serving.embedded.checkpoint import locate
from chimera.serving.sharing import share
from chimera.serving.vllm.engine import start_engine
from chimera.serving.vllm.front import Front, create_front
from chimera.serving.vllm.publish import Loaded, ServedWeights
from chimera.serving.vllm.replicas import Replica, wait_for
from chimera.serving.vllm.weights import prepare

GRACE_S = 1
"""Seconds that running requests get to finish when the process is told to stop."""
STOP_S = 6.0
"""Seconds that servers get to end by themselves."""
LOOK_S = 0.5
MAX_RESTARTS = 3
"""Of all servers of a run together."""
PUBLISHES = "vllm-publishes.jsonl"
"""Beside the logs: what each publish and restart took, and how far each server is from the learner's probabilities."""


@dataclass(frozen=True, slots=True)
class Sharing:
    """Slots that share servers, and the servers; `start` starts the server of a number with prepared weights."""

    slots: tuple[str, ...]
    model: ModelConfig
    first: Loaded
    folder: Path
    start: Callable[[int, Path], Replica]
    replicas: list[Replica]


def main(argv: list[str]) -> None:
    """Serve until told to stop.

    Raises:
        ChimeraError: A server cannot be started or used, or has ended.
    """
    parser = argparse.ArgumentParser(prog="chimera.serving.vllm", description=__doc__)
    parser.add_argument("--fd", type=int, required=True, help="the listening socket, inherited from the parent")
    options = parser.parse_args(argv)
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    settings = json.load(sys.stdin)
    tell = _only_sentences_on_stdout()
    models = {key: ModelConfig.model_validate(model) for key, model in settings["models"].items()}
    serving = ServingConfig.model_validate(settings["serving"])
    # uvicorn passes the signal on when it has stopped; servers are to be stopped after that.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    sockets = Path(tempfile.mkdtemp(prefix="chimera-vllm-"))
    logs, groups = Path(settings["log_file"]).parent, list[Sharing]()
    try:
        for slots in share(models, settings["learning"]):
            model = models[slots[0]]
            if slots[0] not in settings["learning"]:
                # Its weights stay as they are.
                model = model.model_copy(update={"adapter_rank": 0})
            groups.append(_start(slots, model, serving, sockets, logs, settings["keys"][slots[0]]))
        asyncio.run(_serve(groups, models, serving, settings["api_key"], options.fd, logs, tell))
    finally:
        replicas = (replica for group in groups for replica in group.replicas)
        stop([replica.program for replica in replicas if replica.program is not None], seconds=STOP_S)
        shutil.rmtree(sockets, ignore_errors=True)
        for group in groups:
            shutil.rmtree(group.folder, ignore_errors=True)


def _start(
    slots: tuple[str, ...], model: ModelConfig, serving: ServingConfig, sockets: Path, logs: Path, key: str
) -> Sharing:
    slot, log = slots[0], logs / f"vllm-{slots[0]}"
    source = Path(locate(model.path))
    first = Loaded(f"{source.name}@0", source, prepare(source, log / "0"))

    def start(number: int, prepared: Path) -> Replica:
        name, at = f"vLLM server {number + 1} of {slot}", sockets / f"{slot}-{number}"
        at.unlink(missing_ok=True)
        api_key = secrets.token_urlsafe(24)
        program = start_engine(model, serving, number, prepared, at, Path(f"{log}-{number + 1}.log"), name, api_key)
        return Replica(name, "http://127.0.0.1", api_key, at, program, on_cpu=not model.gpus)

    replicas = [Replica(f"the vLLM server of {slot} at {url}", url, key) for url in model.urls]
    replicas = replicas or [start(number, first.prepared) for number in range(model.replicas)]
    return Sharing(slots, model, first, log, start, replicas)


async def _serve(
    groups: Sequence[Sharing],
    models: Mapping[str, ModelConfig],
    serving: ServingConfig,
    key: str,
    descriptor: int,
    logs: Path,
    tell: Callable[[str], None],
) -> None:
    weights: dict[str, ServedWeights] = {}
    started = time.monotonic()
    for group in groups:
        for replica in group.replicas:
            await wait_for(replica, started + group.model.start_timeout_s)
        served = ServedWeights(
            " and ".join(group.slots),
            group.replicas,
            group.first,
            group.model.dtype,
            group.folder,
            adapters=group.model.adapter_rank > 0,
        )
        if group.model.urls:
            await served.check()
        weights |= dict.fromkeys(group.slots, served)

    def note(entry: Mapping[str, Any]) -> None:
        append_line(logs / PUBLISHES, dict(entry))

    front = Front(weights, models, serving.context_length, note)
    config = uvicorn.Config(
        create_front(front, key), log_config=None, access_log=False, timeout_graceful_shutdown=GRACE_S, lifespan="off"
    )
    server = uvicorn.Server(config)
    serve = asyncio.create_task(server.serve(sockets=[socket.socket(fileno=descriptor)]))
    keep = asyncio.create_task(_keep(groups, weights, note, tell))
    try:
        await asyncio.wait({serve, keep}, return_when=asyncio.FIRST_COMPLETED)
        if keep.done():
            keep.result()
    finally:
        keep.cancel()
        server.should_exit = True
        await serve


async def _keep(
    groups: Sequence[Sharing],
    weights: Mapping[str, ServedWeights],
    note: Callable[[Mapping[str, Any]], None],
    tell: Callable[[str], None],
) -> None:
    """Start servers again that end, with the weights that are live; they get calls when they have proven them.

    Raises:
        ModelError: There were too many restarts, or one does not start.
    """
    restarts = 0
    while True:
        await asyncio.sleep(LOOK_S)
        for group, number in [(each, number) for each in groups for number in range(len(each.replicas))]:
            slot, program = group.slots[0], group.replicas[number].program
            # While its servers sleep, their GPUs' memory is the learner's.
            if program is None or program.alive() or weights[slot].asleep:
                continue
            restarts += 1
            ending = program.ending() if program.killed() else f"{program.ending()}: {program.last_words()}"
            if restarts > MAX_RESTARTS:
                raise ModelError(f"{ending}, after {MAX_RESTARTS} restarts (see {program.log_file})")
            tell(f"{ending}; restart {restarts} of {MAX_RESTARTS} (see {program.log_file})")
            program.clear()
            began = time.monotonic()
            version, prepared = weights[slot].version, weights[slot].live.prepared
            group.replicas[number] = replica = group.start(number, prepared)
            await wait_for(replica, began + group.model.start_timeout_s)
            apart = await weights[slot].replace(number, replica)
            seconds = {"restart": round(time.monotonic() - began, 3)}
            note({"slot": slot, "version": version, "restarted": ending, "seconds": seconds, "apart": [apart]})


def _only_sentences_on_stdout() -> Callable[[str], None]:
    """A function that writes a line to stdout; what libraries print goes to stderr from now on."""
    descriptor = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    def tell(sentence: str) -> None:
        os.write(descriptor, f"{sentence}\n".encode())

    return tell
