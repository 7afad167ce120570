"""The spans of a rollout's trace, on disk and as they are made.

Training writes Agent Lightning's spans. What is here reads them without that library, and makes spans that it and
training's adapter read alike; the names are those of agentlightning 0.3.0 (`agentlightning.semconv`).
"""

import gzip
import hashlib
import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Protocol

from chimera.core.errors import RunError
from chimera.core.plain_json import parse_json
from chimera.core.secrets import redact_tree

EXCHANGE = "raw_gen_ai_request"
"""The gateway's span that holds request and response as the model's server saw them."""
OPERATION = "agentlightning.operation"
"""Our span of one visit of a role."""
OBJECT = "agentlightning.object"
"""Our span with the outcome of an attempt."""

RESPONSE_IDS = "agentlightning.operation.output.response_ids"
RAW = "llm.hosted_vllm."
"""What the names of an exchange's attributes begin with."""

OBJECT_JSON = "agentlightning.object.json"
_KEPT_SPANS = (EXCHANGE, "litellm_request")
_KEPT_ATTRIBUTES = ("agentlightning.", "exception.", "gen_ai.", "llm.", "role", "model", "visit", "attempt")


class SpanLike(Protocol):
    """What is read of a span: ours has it, and Agent Lightning's too."""

    @property
    def rollout_id(self) -> str:
        """The rollout."""
        ...

    @property
    def attempt_id(self) -> str:
        """Its attempt."""
        ...

    @property
    def sequence_id(self) -> int:
        """The number in the rollout."""
        ...

    @property
    def span_id(self) -> str:
        """The id."""
        ...

    @property
    def name(self) -> str:
        """The kind."""
        ...

    @property
    def attributes(self) -> Mapping[str, Any]:
        """What it says."""
        ...


@dataclass(frozen=True, slots=True)
class Span:
    """One span of a trace file. Times are seconds since 1970; ids are OpenTelemetry's, in hexadecimal digits."""

    rollout_id: str
    attempt_id: str
    sequence_id: int
    trace_id: str
    span_id: str
    parent_id: str | None
    name: str
    attributes: Mapping[str, Any]
    start_time: float | None
    end_time: float | None


# --- files


def read(path: Path) -> list[Span]:
    """The spans of a trace file.

    Raises:
        RunError: The file is missing or broken.
    """
    names = [field.name for field in fields(Span)]
    rows = read_rows(path)
    try:
        return [Span(**{name: row[name] for name in names}) for row in rows]
    except (KeyError, TypeError) as error:
        raise RunError(f"trace {path} cannot be read: a line is no span ({error})") from error


def write(spans: Iterable[Span], path: Path) -> None:
    """Write spans as gzipped JSON lines, whole or not at all; secrets are replaced."""
    nothing = {"status": {"status_code": "UNSET", "description": None}, "events": [], "links": []}
    write_rows(({**asdict(span), **nothing} for span in spans), path)


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The lines of a trace file.

    Raises:
        RunError: The file is missing or broken.
    """
    try:
        with gzip.open(path, "rt", encoding="utf-8") as file:
            return [parse_json(line) for line in file]
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise RunError(f"trace {path} cannot be read: {error}") from error


def write_rows(rows: Iterable[dict[str, Any]], path: Path) -> None:
    """Write spans as plain data, as gzipped JSON lines, whole or not at all.

    LiteLLM's bookkeeping spans and the request headers that it copies are left out; secrets are replaced.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}")
    # Models can answer half a surrogate pair, which UTF-8 has no bytes for; its escape is the same text in JSON.
    with gzip.open(draft, "wt", encoding="utf-8", errors="backslashreplace", compresslevel=3) as file:
        for row in rows:
            if is_kept(row["name"]):
                kept = {key: value for key, value in row["attributes"].items() if key.startswith(_KEPT_ATTRIBUTES)}
                file.write(json.dumps(redact_tree({**row, "attributes": kept}), ensure_ascii=False) + "\n")
    draft.replace(path)


def is_kept(name: str) -> bool:
    """Whether spans of this name are written."""
    return name.startswith("agentlightning.") or name in _KEPT_SPANS


# --- making spans


@dataclass(frozen=True, slots=True)
class Position:
    """Where a span belongs: its attempt of a rollout, its number in the rollout, its times in seconds since 1970."""

    rollout_id: str
    attempt_id: str
    sequence_id: int
    start_time: float
    end_time: float


def operation_span(at: Position, name: str, attributes: Mapping[str, Any], response_ids: Sequence[str]) -> Span:
    """One visit of a role, as `agents.record.Operation` is told of it, with the ids of the responses it got."""
    output = {RESPONSE_IDS: list(response_ids)} if response_ids else {}
    return _span(at, OPERATION, {**attributes, f"{OPERATION}.name": name, **output})


def exchange_span(at: Position, request: Mapping[str, Any], response: Mapping[str, Any]) -> Span:
    """One exchange: the JSON objects of an OpenAI chat completion."""
    return _span(at, EXCHANGE, exchange_attributes(request, response))


def exchange_attributes(request: Mapping[str, Any], response: Mapping[str, Any]) -> dict[str, str | int | float]:
    """What the span of an exchange says, encoded as LiteLLM does it.

    Nested values become Python literals. Where both have a key, such as `model`, the response's counts.
    """
    both = {key: value for key, value in {**request, **response}.items() if value is not None}
    return {f"{RAW}{key}": _literal(value) for key, value in both.items()}


def outcome_span(at: Position, outcome: Mapping[str, Any]) -> Span:
    """What is reported of an attempt (`evaluation.records.rollouts.Outcome.dump`)."""
    return _span(at, OBJECT, {"agentlightning.object.type": "dict", OBJECT_JSON: json.dumps(outcome)})


def _span(at: Position, name: str, attributes: Mapping[str, Any]) -> Span:
    whole = f"{at.rollout_id}/{at.attempt_id}"
    trace_id, span_id = (hashlib.sha256(text.encode()).hexdigest() for text in (whole, f"{whole}/{at.sequence_id}"))
    place = at.rollout_id, at.attempt_id, at.sequence_id, trace_id[:32], span_id[:16], None
    return Span(*place, name, attributes, at.start_time, at.end_time)


def _literal(value: Any) -> Any:
    return value if isinstance(value, str | int | float) else repr(value)
