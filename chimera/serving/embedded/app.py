"""The HTTP application: routes, the run's key, and errors in OpenAI's form."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Protocol

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from chimera.serving.door import Door
from chimera.serving.embedded.protocol import ApiError, BadRequest, ChatRequest, NotFound, parse_request


class Served(Protocol):
    """The models of a server: `Service`, or `SpreadService`, whose models decode in several processes."""

    def describe(self) -> list[dict[str, Any]]: ...

    def counters(self) -> dict[str, int]: ...

    def load_weights(self, key: str, folder: Path, version: str | None = None) -> str: ...

    def add_candidate(self, key: str, folder: Path, version: str) -> str: ...

    def remove_candidate(self, name: str) -> None: ...

    async def complete(self, request: ChatRequest) -> dict[str, Any]: ...

    async def aclose(self) -> None: ...


def create_app(service: Served, api_key: str) -> FastAPI:
    """The application, protected by a `Door`; it closes `service` when it shuts down."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        await service.aclose()

    app = FastAPI(title="Chimera model server", lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None)

    app.add_middleware(Door, key=api_key)

    @app.exception_handler(ApiError)
    async def known(request: Request, error: ApiError) -> JSONResponse:
        return JSONResponse(error.body(), status_code=error.status)

    @app.exception_handler(HTTPException)
    async def http(request: Request, error: HTTPException) -> JSONResponse:
        return JSONResponse(NotFound(f"{request.method} {request.url.path}: {error.detail}").body(), error.status_code)

    @app.exception_handler(Exception)
    async def unexpected(request: Request, error: Exception) -> JSONResponse:
        return JSONResponse(ApiError(f"{type(error).__name__}: {error}").body(), status_code=500)

    @app.get("/health")
    async def health() -> dict[str, Any]:
        models = {entry["id"]: entry["weights_version"] for entry in service.describe()}
        return {"status": "ok", "models": models, "counters": await asyncio.to_thread(service.counters)}

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": service.describe()}

    @app.post("/v1/chat/completions")
    async def chat(request: Request) -> JSONResponse:
        asked = parse_request(await _body(request))
        answering = asyncio.ensure_future(service.complete(asked))
        leaving = asyncio.ensure_future(_disconnected(request))
        try:
            await asyncio.wait([answering, leaving], return_when=asyncio.FIRST_COMPLETED)
            if not answering.done():
                return JSONResponse({}, status_code=499)
            return JSONResponse(answering.result())
        finally:
            leaving.cancel()
            answering.cancel()

    @app.post("/admin/weights")
    async def weights(request: Request) -> dict[str, Any]:
        body = await _body(request)
        match body:
            case {"model": str(key), "folder": str(folder), **rest} if set(rest) <= {"version"}:
                version = rest.get("version")
            case _:
                raise BadRequest('the body must be {"model": key, "folder": path} with an optional "version"')
        return {
            "model": key,
            "weights_version": await asyncio.to_thread(service.load_weights, key, Path(folder), version),
        }

    @app.post("/admin/candidates")
    async def add_candidate(request: Request) -> dict[str, Any]:
        match await _body(request):
            case {"model": str(key), "folder": str(folder), "version": str(version), **rest} if not rest:
                return {"model": await asyncio.to_thread(service.add_candidate, key, Path(folder), version)}
        raise BadRequest('the body must be {"model": key, "folder": path, "version": name}')

    @app.delete("/admin/candidates")
    async def remove_candidate(request: Request) -> dict[str, Any]:
        match await _body(request):
            case {"model": str(name), **rest} if not rest:
                await asyncio.to_thread(service.remove_candidate, name)
                return {"model": name}
        raise BadRequest('the body must be {"model": name}')

    return app


async def _body(request: Request) -> Any:
    try:
        return await request.json()
    except ValueError as error:
        raise BadRequest(f"the body is not valid JSON: {error}") from error


async def _disconnected(request: Request) -> None:
    """Return when the client has closed its connection; the body must have been read before."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
