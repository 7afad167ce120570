"""What tools read and return, documents and passages, and the cleaning of their texts."""

import hashlib
import re
import unicodedata
from dataclasses import dataclass
from typing import Annotated

from pydantic import StringConstraints

from chimera.core.errors import ChimeraError

MAX_QUERY = 400
"""Longest query, in characters. Tavily refuses longer ones; every PubMedQA question is much shorter."""

MAX_SOURCE = 20_000
"""Most characters of one live result that are read; services may send whole pages."""

MAX_ID = 200
"""Most characters of an id: web search results have their address as id."""

_TAKEN_BACK = re.compile(r"\W*(?:RETRACTED|WITHDRAWN|EXPRESSION OF CONCERN)(?: [A-Z]+)?\s*[:\])]", re.IGNORECASE)

Query = Annotated[str, StringConstraints(strict=True, strip_whitespace=True, min_length=1, max_length=MAX_QUERY)]
"""What a model may pass to a tool."""


class ToolError(ChimeraError):
    """A tool failed; the toolbox turns this error into a tool result that says so."""


@dataclass(frozen=True, slots=True)
class Passage:
    """One search result.

    `linked` holds other identifiers of the work (PMIDs, DOIs, citations of a trial's publications). It is used only to
    recognise the article behind a question and is never shown to a model.

    `caution` says why it is no evidence, such as "retracted"; empty if it may be quoted. With no text, it is the whole
    message: what a tool returned that cannot be read.
    """

    id: str
    title: str
    text: str
    url: str | None = None
    linked: tuple[str, ...] = ()
    caution: str = ""


def content_id(name: str, text: str) -> str:
    """The id of a text that `name` returned without one: other texts have other ids, the same text has the same."""
    return f"{name}-{hashlib.sha256(text.encode(errors='replace')).hexdigest()[:8]}"


def caution_of(title: str) -> str:
    """Why a work is no evidence by its title, which publishers change when they take it back; empty if it is one."""
    match = _TAKEN_BACK.match(title)
    return match[0].strip(" :[]()").lower() if match else ""


def clean(text: str, longest: int | None = MAX_SOURCE) -> str:
    """Make `text` safe as data: at most `longest` characters, no control characters, no lone surrogates.

    Line breaks become spaces; printable text passes unchanged, which keeps quotes verbatim. `agents.visit.prompting`
    escapes the control tokens of chat templates.
    """
    return "".join(map(_printable, text[:longest])).strip()


def _printable(character: str) -> str:
    """Spaces for line breaks and control characters; nothing for surrogates and invisible format characters."""
    if character.isprintable():
        return character
    return " " if unicodedata.category(character) in ("Cc", "Zl", "Zp") else character if character.isspace() else ""
