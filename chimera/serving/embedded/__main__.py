"""The server process, started by `chimera.serving.process`; `python -m chimera serve` is the server for users.

It reads its settings and key as one JSON object from stdin and serves until SIGTERM.
"""

import argparse
import gc
import json
import logging
import os
import socket
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import uvicorn
from psutil import virtual_memory

from chimera.config.sections.models import ModelConfig, ServingConfig
from chimera.serving.devices import decoding_processes
from chimera.serving.embedded.app import create_app
from chimera.serving.embedded.checkpoint import count_weights, locate
from chimera.serving.embedded.service import Service
from chimera.serving.embedded.spread import SpreadService

GRACE_S = 5
"""Seconds that running requests get to finish when the server is told to stop."""


def main(argv: list[str]) -> None:
    """Serve until told to stop; raises ChimeraError if a model cannot be served."""
    parser = argparse.ArgumentParser(prog="chimera.serving", description=__doc__)
    parser.add_argument("--fd", type=int, required=True, help="the listening socket, inherited from the parent")
    options = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    settings = json.load(sys.stdin)
    models = {key: ModelConfig.model_validate(model) for key, model in settings["models"].items()}
    serving = ServingConfig.model_validate(settings["serving"])
    # uvicorn 0.54's `fd` treats the socket as a Unix socket and leaves TCP_NODELAY off: 40 ms for every answer.
    listener = socket.socket(fileno=options.fd)
    run_server(listener, settings["api_key"], models, serving, Path(settings["log_file"]))


def run_server(
    listener: socket.socket,
    key: str,
    models: Mapping[str, ModelConfig],
    serving: ServingConfig,
    log_file: Path,
    ready: Callable[[], None] = lambda: None,
) -> None:
    """Serve `models` at `listener` until told to stop; `ready` is called when they are loaded."""
    gc.disable()  # The collector would take a quarter of the imports' time.
    service = _service(models, serving, log_file)
    gc.freeze()
    gc.enable()
    ready()
    config = uvicorn.Config(
        create_app(service, key), log_config=None, access_log=False, timeout_graceful_shutdown=GRACE_S
    )
    uvicorn.Server(config).run(sockets=[listener])


def _service(models: Mapping[str, ModelConfig], serving: ServingConfig, log_file: Path) -> Service | SpreadService:
    folders = {locate(model.path) for model in models.values() if model.kind == "embedded"}
    if not folders:
        return Service(models, serving)
    weights = [count_weights(Path(folder)) for folder in folders]
    processes = decoding_processes(serving, weights, len(os.sched_getaffinity(0)), virtual_memory().total)
    return Service(models, serving) if processes == 1 else SpreadService(models, serving, processes, log_file)


if __name__ == "__main__":
    sys.exit("error: this is a run's own server process: python -m chimera serve starts a server for you")
