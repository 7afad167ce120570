"""Fields of requests that a server does not take: they are found in its refusals, and not sent to it again."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from chimera.core.errors import ModelError

REFUSALS = (400, 422)
"""Statuses of servers that refuse a request's fields."""
BUSY = (408, 409)
"""Statuses below 500, beside 429, after which the same request may succeed."""
LIMIT, NEW_LIMIT = "max_tokens", "max_completion_tokens"
CONSEQUENCES = {
    "seed": "equal requests may be answered differently",
    "temperature": "the server's own is used",
    "top_p": "the server's own is used",
    "reasoning_effort": "the server's own is used",
    "response_format": "the form of answers is only asked for in the prompt",
    LIMIT: f"{NEW_LIMIT} is sent in its place",
}
"""Fields that a request may lack, and what their absence means."""
_KEEP = ("model", "messages", "tools", NEW_LIMIT, "role", "content", "tool_calls", "id", "type", "function")
_NOT_TAKEN = re.compile(
    r"unsupported|not support|n.t support|unrecogni[sz]ed|unknown|unexpected|not permitted|not allowed|extra_forbidden"
    r"|only the default|cannot both|unavailable",
    re.IGNORECASE,
)
_SHOWN = 160
_WORDS = ("error", "message", "detail", "msg", "errors")
"""Where servers write what is wrong: OpenAI's form, FastAPI's, and others."""


class RefusedRequest(ModelError):
    """A server refused a request for what it holds.

    Attributes:
        said: All that the server said, with the codes beside it, which may say more plainly what is wrong.
        field: The field that it names as the fault, if it names one in the way of OpenAI ("param").
    """

    def __init__(self, message: str, body: object) -> None:
        super().__init__(message)
        fields = body if isinstance(body, Mapping) else {}
        self.said = " ".join([message, *(str(fields[name]) for name in ("code", "type") if fields.get(name))])
        self.field = fields.get("param")


def words(body: object, depth: int = 8) -> str:
    """A server's own words in the body of an error, in whatever form it sends them; empty if there are none."""
    if depth == 0 or isinstance(body, str):
        return body if isinstance(body, str) else ""
    if isinstance(body, list):
        return "; ".join(filter(None, (words(part, depth - 1) for part in body)))
    if not isinstance(body, Mapping):
        return ""
    place = f"{'.'.join(map(str, body['loc']))}: " if isinstance(body.get("loc"), list) else ""
    message = next(filter(None, (words(body.get(name), depth - 1) for name in _WORDS)), "")
    raw = body["metadata"].get("raw") if isinstance(body.get("metadata"), Mapping) else None  # OpenRouter's
    return message and place + message + (f": {raw}" if isinstance(raw, str) else "")


class RefusedFields:
    """The fields that servers have refused, by model and address."""

    def __init__(self) -> None:
        self._of_place: dict[str, set[str]] = {}

    def at(self, place: str) -> frozenset[str]:
        """The names of the fields that the server at `place` has refused."""
        return frozenset(self._of_place.get(place, ()))

    def without(self, place: str, request: Mapping[str, Any]) -> dict[str, Any]:
        """`request` without the fields that the server at `place` does not take."""
        sent = dict(request)
        for name in self._of_place.get(place, ()):
            if name == LIMIT and LIMIT in sent:
                sent.setdefault(NEW_LIMIT, sent[LIMIT])
            sent.pop(name, None)
        return sent

    def learn(self, place: str, sent: Iterable[str], message: str, field: object = None) -> str | None:
        """Find the field that a refusal is about; it is left out from now on.

        Args:
            place: The server.
            sent: The names of the fields of the request and of its messages.
            field: The field that it names, if it does so apart from its message.

        Returns:
            A sentence for the user, which begins with a verb; None if the refusal is about something else.
        """
        passed = self.at(place).union(_KEEP)
        name = next((name for name in sent if name not in passed and _is_about(name, message, field)), None)
        if name is None:
            return None
        self._of_place.setdefault(place, set()).add(name)
        means = CONSEQUENCES.get(name, "it has no effect")
        shown = " ".join(message.split())
        shown = shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}..."
        return f"({place}) does not take {name!r}, which is no longer sent: {means} ({shown})"


def _is_about(name: str, message: str, field: object) -> bool:
    """True if a refusal says that the server does not take the field `name`."""
    if name == LIMIT:  # An answer needs a limit, and a prompt that is too long is often told with its name.
        return NEW_LIMIT in message and bool(_NOT_TAKEN.search(message))
    spelled = re.escape(name).replace("_", "[_ ]")
    named = field == name or (len(name) > 1 and bool(re.search(rf"(?<![\w-]){spelled}(?![\w-])", message)))
    return named and bool(_NOT_TAKEN.search(message))
