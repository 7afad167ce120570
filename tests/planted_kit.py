"""The planted server (`chimera.planted`) on loopback, for whole runs."""

import threading
from contextlib import contextmanager

import uvicorn

from chimera.core.machine import listen_at
from chimera.planted import Planted, make_app


@contextmanager
def planted_server(**options):
    """The address of a running server; `options` are those of `Planted`."""
    with listen_at(0) as listener:
        server = uvicorn.Server(uvicorn.Config(make_app(Planted(**options)), log_level="warning", lifespan="off"))
        thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
        finally:
            server.force_exit = server.should_exit = True
            thread.join()
