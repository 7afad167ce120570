"""The HTTP application of the embedded models: its routes."""

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse

from chimera.serving.application import application, json_object, until_disconnected
from chimera.serving.embedded.protocol import ApiError, BadRequest, ChatRequest, parse_request, unknown_model

if TYPE_CHECKING:
    from chimera.serving.embedded.service import Service
    from chimera.serving.embedded.spread import SpreadService

logger = logging.getLogger(__name__)


def create_app(service: "Service | SpreadService", api_key: str) -> FastAPI:
    """The application, protected by `api_key`; it closes `service` when it shuts down."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        await service.aclose()

    app = application("Chimera model server", api_key, lifespan)

    @app.get("/health")
    async def health() -> dict[str, Any]:
        models = {entry["id"]: entry["weights_version"] for entry in service.describe()}
        return {"status": "ok", "models": models, "counters": await asyncio.to_thread(service.counters)}

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": service.describe()}

    @app.get("/v1/models/{name:path}")
    async def model(name: str) -> dict[str, Any]:
        entries = {entry["id"]: entry for entry in service.describe()}
        if name not in entries:
            raise unknown_model(name, entries)
        return entries[name]

    @app.post("/v1/chat/completions")
    async def chat(request: Request) -> Response:
        parsed = parse_request(await json_object(request))
        return await until_disconnected(request, answer(parsed))

    async def answer(parsed: ChatRequest) -> Response:
        if not parsed.stream:
            return JSONResponse(await service.complete(parsed))
        chunks = service.stream(parsed)
        first = await anext(chunks)  # An error before it is a plain HTTP error.
        return StreamingResponse(events(first, chunks), media_type="text/event-stream")

    @app.post("/admin/weights")
    async def weights(request: Request) -> dict[str, Any]:
        match await json_object(request):
            case {"model": str(key), "folder": str(folder), **rest} if set(rest) <= {"version"}:
                version = await asyncio.to_thread(service.load_weights, key, Path(folder), rest.get("version"))
                return {"model": key, "weights_version": version}
        raise BadRequest('the body must be {"model": key, "folder": path} with an optional "version"')

    @app.post("/admin/candidates")
    async def add_candidate(request: Request) -> dict[str, Any]:
        match await json_object(request):
            case {"model": str(key), "folder": str(folder), "version": str(version), **rest} if not rest:
                return {"model": await asyncio.to_thread(service.add_candidate, key, Path(folder), version)}
        raise BadRequest('the body must be {"model": key, "folder": path, "version": name}')

    @app.delete("/admin/candidates")
    async def remove_candidate(request: Request) -> dict[str, Any]:
        match await json_object(request):
            case {"model": str(name), **rest} if not rest:
                await asyncio.to_thread(service.remove_candidate, name)
                return {"model": name}
        raise BadRequest('the body must be {"model": name}')

    return app


async def events(first: Mapping[str, Any], chunks: AsyncGenerator[dict[str, Any], None]) -> AsyncIterator[str]:
    """A stream's server-sent events. `chunks` is closed with it; an error is its last event."""
    async with aclosing(chunks):
        try:
            yield _event(first)
            async for chunk in chunks:
                yield _event(chunk)
            yield "data: [DONE]\n\n"
        except ApiError as error:
            yield _event(error.body())
        except Exception as error:
            logger.exception("a stream failed")
            yield _event(ApiError(f"{type(error).__name__}: {error}").body())


def _event(value: Mapping[str, Any]) -> str:
    return f"data: {json.dumps(value, ensure_ascii=False, separators=(',', ':'))}\n\n"
