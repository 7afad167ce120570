"""The process that stands before the vLLM servers, started by `chimera.serving.process`.

It reads its settings and keys as one JSON object from stdin, starts the servers, and serves until SIGTERM. When one of
the servers ends, it ends too and says which. Servers that it started end with it.
"""

import argparse
import asyncio
import json
import logging
import secrets
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvicorn

from chimera.config.sections.models import ModelConfig, ServingConfig
from chimera.core.errors import ModelError
from chimera.processes.children import stop
from chimera.processes.programs import Program
from chimera.run.jsonl import append_line
from chimera.serving.embedded.checkpoint import locate
from chimera.serving.vllm.engine import start_engine
from chimera.serving.vllm.front import Front, create_front
from chimera.serving.vllm.probe import preload
from chimera.serving.vllm.publish import Loaded, ServedWeights
from chimera.serving.vllm.ready import ServerPlace, wait_for
from chimera.serving.vllm.sharing import share
from chimera.serving.vllm.weights import prepare

GRACE_S = 1
"""Seconds that running requests get to finish when the process is told to stop."""
STOP_S = 6.0
"""Seconds that servers get to end by themselves."""
LOOK_S = 0.5
PUBLISHES = "vllm-publishes.jsonl"
"""Beside the logs: what each publish took, and how far each server's probabilities are from the learner's."""


@dataclass(frozen=True, slots=True)
class Sharing:
    """Slots that share servers, and the servers."""

    slots: tuple[str, ...]
    first: Loaded
    folder: Path
    places: Sequence[ServerPlace]


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
    models = {key: ModelConfig.model_validate(model) for key, model in settings["models"].items()}
    serving = ServingConfig.model_validate(settings["serving"])
    # uvicorn passes the signal on when it has stopped; servers are to be stopped after that.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    if settings["learning"]:
        threading.Thread(target=preload, daemon=True).start()  # While the servers start, which takes longer.
    sockets = Path(tempfile.mkdtemp(prefix="chimera-vllm-"))
    logs, groups = Path(settings["folder"]), list[Sharing]()
    try:
        for slots in share(models, settings["learning"]):
            groups.append(_start(slots, models[slots[0]], serving, sockets, logs, settings["keys"][slots[0]]))
        asyncio.run(_serve(groups, models, serving, settings["api_key"], options.fd, logs))
    finally:
        stop(_programs(groups), seconds=STOP_S)
        shutil.rmtree(sockets, ignore_errors=True)
        for group in groups:
            shutil.rmtree(group.folder, ignore_errors=True)


def _start(
    slots: tuple[str, ...], model: ModelConfig, serving: ServingConfig, sockets: Path, logs: Path, key: str
) -> Sharing:
    slot = slots[0]
    source, folder = Path(locate(model.path)), logs / f"vllm-{slot}"
    first = Loaded(f"{source.name}@0", source, prepare(source, folder / "0"))
    if model.urls:
        return Sharing(
            slots, first, folder, [ServerPlace(f"the vLLM server of {slot} at {url}", url, key) for url in model.urls]
        )
    places: list[ServerPlace] = []
    for number in range(model.replicas):
        name, at = f"vLLM server {number + 1} of {slot}", sockets / f"{slot}-{number}"
        own = secrets.token_urlsafe(24)
        log_file = logs / f"vllm-{slot}-{number + 1}.log"
        program = start_engine(model, serving, number, first.prepared, at, log_file, name, own)
        places.append(ServerPlace(name, "http://127.0.0.1", own, at, program, on_cpu=not model.gpus))
    return Sharing(slots, first, folder, places)


async def _serve(
    groups: Sequence[Sharing],
    models: Mapping[str, ModelConfig],
    serving: ServingConfig,
    key: str,
    descriptor: int,
    logs: Path,
) -> None:
    weights: dict[str, ServedWeights] = {}
    started = time.monotonic()
    for group in groups:
        model = models[group.slots[0]]
        replicas = [wait_for(place, started + model.start_timeout_s) for place in group.places]
        one = ServedWeights(" and ".join(group.slots), replicas, group.first, model.dtype, group.folder)
        if model.urls:
            await one.check()
        weights |= dict.fromkeys(group.slots, one)

    def note(entry: Mapping[str, Any]) -> None:
        append_line(logs / PUBLISHES, dict(entry))

    front = Front(weights, {slot: one.timeout_s for slot, one in models.items()}, serving.context_length, note)
    config = uvicorn.Config(
        create_front(front, key), log_config=None, access_log=False, timeout_graceful_shutdown=GRACE_S, lifespan="off"
    )
    server = uvicorn.Server(config)
    serve = asyncio.create_task(server.serve(sockets=[socket.socket(fileno=descriptor)]))
    programs = _programs(groups)
    try:
        while not serve.done():
            await asyncio.wait({serve}, timeout=LOOK_S)
            if dead := [program for program in programs if not program.alive()]:
                raise ModelError(f"{dead[0].ending()}: {dead[0].last_words()} (see {dead[0].log_file})")
    finally:
        server.should_exit = True
        await serve


def _programs(groups: Sequence[Sharing]) -> list[Program]:
    return [place.program for group in groups for place in group.places if place.program is not None]
