"""Serves the viewer on this machine until it is interrupted."""

import logging
import secrets
from collections.abc import Callable
from pathlib import Path

import uvicorn

from chimera.core.machine import listen_at
from chimera.core.secrets import protect_logging, register_secret
from evaluation.view.app import make_app
from evaluation.view.guard import KEY

HOST = "127.0.0.1"
GRACE_S = 1
"""Seconds that open pages get to end their streams."""


def serve_view(runs_dir: Path, port: int, tell: Callable[[str], None]) -> None:
    """Serve the runs in `runs_dir` until Ctrl-C.

    Args:
        port: The port; 0: any free one.
        tell: Called with the address, its key included, when it answers.

    Raises:
        ConfigError: The port cannot be had.
    """
    with listen_at(port) as listener:
        port, key = listener.getsockname()[1], secrets.token_urlsafe(24)
        register_secret("VIEW_KEY", key)
        server: uvicorn.Server | None = None
        app = make_app(runs_dir, key=key, port=port, closing=lambda: server is not None and server.should_exit)
        config = uvicorn.Config(
            app, log_level="warning", access_log=False, server_header=False, timeout_graceful_shutdown=GRACE_S
        )
        protect_logging(logging.getLogger("uvicorn"))
        server = uvicorn.Server(config)
        tell(f"http://{HOST}:{port}/?{KEY}={key}")
        server.run(sockets=[listener])
