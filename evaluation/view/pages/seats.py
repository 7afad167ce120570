"""The pages of the principal investigator's seat."""

from urllib.parse import parse_qs

from fastapi import APIRouter, Request
from pydantic import ValidationError
from starlette.concurrency import run_in_threadpool
from starlette.responses import HTMLResponse, RedirectResponse, Response

from agents.person import PersonVerdict
from chimera.core.errors import ConfigError
from chimera.core.types import DECISIONS
from chimera.show.next import runs_option
from evaluation.view.pages.desk import SEAT, ViewDesk, seat_address

LONGEST = 1 << 16
"""Most bytes of a form."""


def routes(desk: ViewDesk) -> APIRouter:
    """The pages about kept questions."""
    router = APIRouter()

    @router.get("/seat")
    def questions() -> HTMLResponse:
        stamp = desk.stamp(SEAT)
        return desk.page("seat.html.j2", stamp=stamp, questions=desk.seat.questions(), folder=desk.folder.path)

    @router.get("/seat/{name}")
    def question(name: str) -> HTMLResponse:
        command = f"python -m chimera ask --continue {name}{runs_option(desk.folder.path)}"
        return desk.page(
            "question.html.j2", stamp=desk.stamp(SEAT), one=desk.seat.read(name), decisions=DECISIONS, command=command
        )

    @router.post("/seat/{name}")
    async def verdict(name: str, request: Request) -> Response:
        person_verdict = verdict_of(await _form(request))
        await run_in_threadpool(desk.seat.say, name, person_verdict)
        return RedirectResponse(seat_address(name), status_code=303)

    return router


def verdict_of(form: dict[str, str]) -> PersonVerdict:
    """The verdict that a form gives. An edit's fields count for an edit only.

    Raises:
        ConfigError: It is not complete.
    """
    fields: dict[str, str | None] = {"action": form.get("action"), "reason": form.get("reason", "").strip()}
    if fields["action"] == "edit":
        fields |= {"decision": form.get("decision") or None, "answer": form.get("answer", "").strip() or None}
    try:
        return PersonVerdict.model_validate(fields)
    except ValidationError as error:
        raise ConfigError(
            f"this verdict cannot be given: {error.errors()[0]['msg'].removeprefix('Value error, ')}"
        ) from None


async def _form(request: Request) -> dict[str, str]:
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > LONGEST:
            raise ConfigError(f"the form holds more than {LONGEST} bytes: shorten the reason")
    try:
        return {name: values[-1] for name, values in parse_qs(body.decode()).items()}
    except ValueError as error:
        raise ConfigError(f"the form cannot be read: {error}") from None
