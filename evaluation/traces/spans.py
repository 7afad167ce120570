"""Reads, writes and makes the spans of a rollout's trace.

The names are those of agentlightning 0.3.0 (`agentlightning.semconv`) and its proxy, which are not needed to read them:
a trace that its Trainer and LLMProxy have made reads alike.
"""

import gzip
import hashlib
import json
import traceback
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Protocol

from chimera.core.errors import RunError
from chimera.core.files import parse_json
from chimera.core.secrets import redact_tree

EXCHANGE = "raw_gen_ai_request"
"""The span that holds request and response as the model's server saw them."""
OPERATION = "agentlightning.operation"
"""Our span of one visit of a role."""
ANNOTATION = "agentlightning.annotation"
"""Our span with the reward of an attempt and its parts."""
EXCEPTION = "agentlightning.exception"
"""Our span with what made an attempt fail."""
OBJECT = "agentlightning.object"
"""Our span with the outcome of an attempt."""

RESPONSE_IDS = "agentlightning.operation.output.response_ids"
RAW = "llm.hosted_vllm."
"""What the names of an exchange's attributes begin with."""

OBJECT_JSON = "agentlightning.object.json"
REWARD = "reward"
"""The name of the scalar reward among its parts."""
REWARD_PARTS = "reward_parts"
"""What the names of the parts' attributes begin with when the reward itself has no value."""

Status = Mapping[str, str | None]
"""OpenTelemetry's: `status_code` (UNSET, OK or ERROR) and `description`."""
UNSET: Status = {"status_code": "UNSET", "description": None}
OK: Status = {"status_code": "OK", "description": None}


class SpanLike(Protocol):
    """The attributes of a span that are read. Our spans and Agent Lightning's have them."""

    @property
    def rollout_id(self) -> str: ...

    @property
    def attempt_id(self) -> str: ...

    @property
    def sequence_id(self) -> int: ...

    @property
    def span_id(self) -> str: ...

    @property
    def name(self) -> str: ...

    @property
    def attributes(self) -> Mapping[str, Any]: ...


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
    status: Status = field(default_factory=lambda: UNSET)
    events: Sequence[Mapping[str, Any]] = ()
    links: Sequence[Mapping[str, Any]] = ()


# --- files


def read(path: Path) -> list[Span]:
    """The spans of a trace file; raises RunError if the file is missing or broken."""
    rows = read_rows(path)
    try:
        return [Span(**{field.name: row[field.name] for field in fields(Span) if field.name in row}) for row in rows]
    except (KeyError, TypeError) as error:
        raise RunError(f"trace {path} cannot be read: a line is no span ({error})") from error


def write(spans: Iterable[Span], path: Path) -> list[Span]:
    """Write spans as gzipped JSON lines, whole or not at all; secrets are replaced.

    Returns:
        What was written, as `read` gives it.
    """
    names = [field.name for field in fields(Span)]
    written = [Span(**redact_tree({name: getattr(span, name) for name in names})) for span in spans]
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}")
    # Models can answer half a surrogate pair, which UTF-8 has no bytes for; its escape is the same text in JSON.
    with gzip.open(draft, "wt", encoding="utf-8", errors="backslashreplace", compresslevel=3) as file:
        for span in written:
            row = {name: getattr(span, name) for name in names}
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
    draft.replace(path)
    return written


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The lines of a trace file; raises RunError if the file is missing or broken."""
    try:
        with gzip.open(path, "rt", encoding="utf-8") as file:
            return [parse_json(line) for line in file]
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise RunError(f"trace {path} cannot be read: {error}") from error


# --- making spans


@dataclass(frozen=True, slots=True)
class Position:
    """Where a span belongs: its attempt of a rollout, its number in the rollout, its times in seconds since 1970."""

    rollout_id: str
    attempt_id: str
    sequence_id: int
    start_time: float
    end_time: float


def operation_span(
    at: Position,
    name: str,
    attributes: Mapping[str, Any],
    response_ids: Sequence[str],
    failure: Exception | None = None,
) -> Span:
    """One visit of a role, as `agents.visit.record.Operation` is told of it, with the ids of the responses it got.

    Its role also stands under OpenTelemetry's name, so that other viewers show it.
    """
    output = {RESPONSE_IDS: list(response_ids)} if response_ids else {}
    status = UNSET if failure is None else {"status_code": "ERROR", "description": _in_words(failure)}
    names = {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": attributes["role"]}
    return _span(at, OPERATION, {**attributes, **names, f"{OPERATION}.name": name, **output}, status)


def exchange_span(at: Position, request: Mapping[str, Any], response: Mapping[str, Any]) -> Span:
    """One exchange: the JSON objects of an OpenAI chat completion, encoded as LiteLLM does it.

    Nested values become Python literals. Where both have a key, such as `model`, the response's counts.
    """
    both = {key: value for key, value in {**request, **response}.items() if value is not None}
    return _span(at, EXCHANGE, {f"{RAW}{key}": _literal(value) for key, value in both.items()})


def exception_span(at: Position, failure: BaseException) -> Span:
    """What made an attempt fail, with its traceback."""
    attributes = {
        "exception.type": type(failure).__name__,
        "exception.message": str(failure),
        "exception.escaped": True,
        "exception.stacktrace": "".join(traceback.format_exception(failure)),
    }
    return _span(at, EXCEPTION, attributes, OK)


def reward_span(at: Position, reward: float | None, parts: Mapping[str, float | None]) -> Span:
    """The reward with its parts that are known; without a reward the parts alone."""
    present = {name: value for name, value in parts.items() if value is not None}
    if reward is None:
        return _span(at, ANNOTATION, {f"{REWARD_PARTS}.{name}": value for name, value in present.items()}, OK)
    attributes: dict[str, Any] = {}
    for number, (name, value) in enumerate({REWARD: reward, **present}.items()):
        attributes[f"agentlightning.reward.{number}.name"] = name
        attributes[f"agentlightning.reward.{number}.value"] = float(value)
    return _span(at, ANNOTATION, attributes, OK)


def outcome_span(at: Position, outcome: Mapping[str, Any]) -> Span:
    """What is reported of an attempt (`evaluation.records.rollouts.Outcome.dump`)."""
    return _span(at, OBJECT, {"agentlightning.object.type": "dict", OBJECT_JSON: json.dumps(outcome)}, OK)


def _span(at: Position, name: str, attributes: Mapping[str, Any], status: Status = UNSET) -> Span:
    whole = f"{at.rollout_id}/{at.attempt_id}"
    trace_id, span_id = (hashlib.sha256(text.encode()).hexdigest() for text in (whole, f"{whole}/{at.sequence_id}"))
    place = at.rollout_id, at.attempt_id, at.sequence_id, trace_id[:32], span_id[:16], None
    return Span(*place, name, attributes, at.start_time, at.end_time, status)


def _in_words(failure: Exception) -> str:
    """The failure in OpenTelemetry's form."""
    return f"{type(failure).__name__}: {failure}"


def _literal(value: Any) -> Any:
    return value if isinstance(value, str | int | float) else repr(value)
