"""The viewer's web application. It only reads run directories; a person's verdict is given to the `ask` command."""

import asyncio
import mimetypes
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from os.path import isfile
from pathlib import Path

from fastapi import FastAPI, Request
from fastapi.sse import EventSourceResponse, ServerSentEvent
from starlette.responses import FileResponse, HTMLResponse, Response

from chimera.core.errors import ChimeraError, ConfigError, RunError
from chimera.core.secrets import redact
from chimera.show import html
from evaluation.view.guard import Guard
from evaluation.view.pages import rollouts, runs, seats
from evaluation.view.pages.desk import ASSETS, ViewDesk
from evaluation.view.reading.watched import inside

STATIC = {
    "page.css": (html.ASSETS, "text/css"),
    "view.css": (ASSETS, "text/css"),
    "view.js": (ASSETS, "text/javascript"),
    "icon.svg": (ASSETS, "image/svg+xml"),
}
"""Folder and type of each file that pages need."""
LOOK_S = 1.0
"""Seconds between looks at the files of a page that is open."""
REPORT_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src 'self' data:; form-action 'none'; base-uri 'none'; "
    "frame-ancestors 'none'; sandbox allow-same-origin allow-downloads"
)
"""Content-Security-Policy of a report's pages: they bring their own styles; scripts and forms do nothing here."""
TYPES = (".html", ".svg", ".png", ".json", ".csv", ".txt", ".md", ".pdf")
"""Files of a report that are shown."""


def make_app(runs_dir: Path, *, key: str, port: int, closing: Callable[[], bool] = lambda: False) -> Guard:
    """The application with its guard.

    Args:
        closing: True when the server is about to stop, which ends streams of events.
    """
    desk = ViewDesk.over(runs_dir)

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        reading = asyncio.create_task(asyncio.to_thread(desk.folder.read_newest))
        yield
        await asyncio.to_thread(desk.seat.close)
        await reading

    app = FastAPI(title="Chimera", docs_url=None, redoc_url=None, openapi_url=None, lifespan=lifespan)
    app.include_router(runs.routes(desk))
    app.include_router(rollouts.routes(desk))
    app.include_router(seats.routes(desk))

    @app.get("/events", response_class=EventSourceResponse)
    async def events(run: str = "") -> AsyncIterator[ServerSentEvent]:
        """Tells an open page when its files have changed: its stamp (see `ViewDesk.stamp`)."""
        before = None
        with suppress(RunError):  # The run was removed, or never was.
            while not closing():
                stamp = await asyncio.to_thread(desk.stamp, run)
                if stamp != before:
                    yield ServerSentEvent(event="stamp", raw_data=stamp)
                before = stamp
                await asyncio.sleep(LOOK_S)

    @app.get("/static/{name}")
    def static(name: str) -> Response:
        if name not in STATIC:
            raise RunError(f"there is no file {name!r} here")
        folder, kind = STATIC[name]
        return FileResponse(folder / name, media_type=kind)

    @app.get("/runs/{name}/report/{path:path}")
    def report(name: str, path: str) -> Response:
        folder = desk.folder.open(name).run.path / "report"
        file = folder / (path or "index.html")
        # Unlike `Path.is_file` it takes any path, such as one with a NUL.
        if not (isfile(file) and inside(file, folder) and inside(folder, desk.folder.path) and file.suffix in TYPES):
            raise RunError(f"the report of run {name!r} has no file {path!r}: python -m chimera.eval --run {name}")
        headers = {"Content-Security-Policy": REPORT_POLICY}
        return FileResponse(file, media_type=mimetypes.guess_type(file.name)[0], headers=headers)

    @app.exception_handler(ChimeraError)
    async def known_error(_request: Request, error: Exception) -> HTMLResponse:
        return desk.failed(redact(f"{error}"), status=400 if isinstance(error, ConfigError) else 404)

    @app.exception_handler(Exception)
    async def unexpected(_request: Request, error: Exception) -> HTMLResponse:
        # The server's log has the traceback. Files of a run may hold anything: whoever made them was another version.
        message = redact(f"{type(error).__name__}: {error}")
        sentence = f"the files behind this page hold something that this version of Chimera does not expect ({message})"
        return desk.failed(sentence, status=500)

    @app.exception_handler(404)
    async def unknown(request: Request, _error: Exception) -> HTMLResponse:
        return desk.failed(f"there is no page {request.url.path}", status=404)

    app.state.desk = desk
    return Guard(app, key=key, port=port)
