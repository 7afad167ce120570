"""What the HTTP applications of both model servers have in common: the run's key, errors in OpenAI's form, bodies."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from pydantic_core import from_json
from starlette.exceptions import HTTPException

from chimera.serving.auth import Authentication
from chimera.serving.embedded.protocol import ApiError, BadRequest, NotFound


def application(
    title: str, key: str, lifespan: Callable[[FastAPI], AbstractAsyncContextManager[None]] | None = None
) -> FastAPI:
    """An application without routes, protected by `key`; it answers every error in OpenAI's form."""
    app = FastAPI(title=title, lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None)
    app.add_middleware(Authentication, key=key)

    @app.exception_handler(ApiError)
    async def api_error(request: Request, error: ApiError) -> JSONResponse:
        return JSONResponse(error.body(), status_code=error.status)

    @app.exception_handler(HTTPException)
    async def http(request: Request, error: HTTPException) -> JSONResponse:
        return JSONResponse(NotFound(f"{request.method} {request.url.path}: {error.detail}").body(), error.status_code)

    @app.exception_handler(Exception)
    async def unexpected(request: Request, error: Exception) -> JSONResponse:
        return JSONResponse(ApiError(f"{type(error).__name__}: {error}").body(), status_code=500)

    return app


async def json_object(request: Request) -> dict[str, Any]:
    """The body of a request.

    Raises:
        BadRequest: It is no JSON object.
    """
    try:
        # Python's json reads half a surrogate pair, which no tokenizer takes, and fails on deep nesting.
        body = from_json(await request.body(), allow_inf_nan=False)
    except ValueError as error:
        raise BadRequest(f"the body is not valid JSON (UTF-8, nested less than 200 deep): {error}") from error
    if not isinstance(body, dict):
        raise BadRequest(f"the body must be a JSON object, not {type(body).__name__}")
    return body


async def until_disconnected(request: Request, work: Awaitable[Response]) -> Response:
    """The result of `work`, which is cancelled when the caller closes its connection; the body must have been read."""

    async def disconnected() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    answering, leaving = asyncio.ensure_future(work), asyncio.ensure_future(disconnected())
    try:
        await asyncio.wait([answering, leaving], return_when=asyncio.FIRST_COMPLETED)
        return answering.result() if answering.done() else Response(status_code=499)
    finally:
        leaving.cancel()
        answering.cancel()
