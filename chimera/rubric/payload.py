"""Reads the parts of a role's payload that the rubric needs. Each error names the wrong key.

This folder may not import the society's schemas, so the forms are checked here again, on plain JSON objects.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, get_args

from chimera.core.types import LABELS, Label, Severity, decides

TEXT_FIELDS: tuple[str, ...] = (
    "design",
    "population",
    "intervention",
    "comparator",
    "outcome",
    "analysis",
    "safeguards",
)
"""The protocol's free-text fields, in the order of its schema."""

SEVERITIES: tuple[Severity, ...] = get_args(Severity)
"""In order, from harmless to worst."""

Choice = TypeVar("Choice", bound=str)


@dataclass(frozen=True, slots=True)
class ReviewedHypothesis:
    """The refined hypothesis under review."""

    evidence: tuple[str, ...]
    comparison: str
    claim: str
    answer: Label

    @property
    def states_direction(self) -> bool:
        """True if the answer says whether an effect was found: yes, no or maybe, not the name of an option."""
        return decides([self.answer])


@dataclass(frozen=True, slots=True)
class ReviewedProtocol:
    """The protocol under review: free-text fields by name, and the two typed fields."""

    fields: Mapping[str, str]
    sample_size: int
    expected: Label


@dataclass(frozen=True, slots=True)
class WeighedReview:
    """A review that the principal investigator considers."""

    issues: tuple[str, ...]
    severity: Severity


def read_goal(payload: Mapping[str, Any]) -> str:
    return _text(payload, "goal", "")


def read_sources(payload: Mapping[str, Any]) -> tuple[str, ...]:
    """The texts of the passages that the society saw; may be empty."""
    sources = _list(payload, "sources", "")
    return tuple(
        _text(_object_at(source, f"sources[{i}]"), "text", f"sources[{i}].") for i, source in enumerate(sources)
    )


def read_labels(payload: Mapping[str, Any]) -> tuple[Label, ...]:
    """The answers to choose from: the names of the payload's options, or yes, no and maybe if it has none."""
    options = payload.get("options") or LABELS
    if not isinstance(options, (Mapping, list, tuple)) or not all(isinstance(name, str) for name in options):
        raise ValueError(f"options must be texts by name, or a list of names, got {options!r}")
    return tuple(options)


def read_hypothesis(payload: Mapping[str, Any]) -> ReviewedHypothesis:
    form = _object(payload, "hypothesis")
    at = "hypothesis."
    return ReviewedHypothesis(
        evidence=_texts(form, "evidence", at),
        comparison=_text(form, "comparison", at),
        claim=_text(form, "claim", at),
        answer=_one_of(form, "answer", at, read_labels(payload)),
    )


def read_findings(payload: Mapping[str, Any]) -> tuple[str, ...] | None:
    """The findings as the refiner was handed them, a line each; None where it combined none."""
    combines = payload.get("findings") is not None and "studies" in _object(payload, "hypothesis")
    return _texts(payload, "findings", "") if combines else None


def read_studies(payload: Mapping[str, Any]) -> Sequence[int]:
    """The numbers of the findings that the hypothesis counts."""
    return _list(_object(payload, "hypothesis"), "studies", "hypothesis.")


def read_protocol(payload: Mapping[str, Any]) -> ReviewedProtocol:
    """The protocol; keys beyond its schema, such as amendments, are ignored."""
    form = _object(payload, "protocol")
    at = "protocol."
    size = _need(form, "sample_size", at)
    if isinstance(size, bool) or not isinstance(size, int):
        raise ValueError(f"protocol.sample_size must be a whole number, got {size!r}")
    return ReviewedProtocol(
        fields={name: _text(form, name, at) for name in TEXT_FIELDS},
        sample_size=size,
        expected=_one_of(form, "expected", at, read_labels(payload)),
    )


def read_review(payload: Mapping[str, Any], key: str) -> WeighedReview:
    """The review under `key` (peer_review or safety_review)."""
    form = _object(payload, key)
    return WeighedReview(_texts(form, "issues", f"{key}."), _one_of(form, "severity", f"{key}.", SEVERITIES))


def read_answer(payload: Mapping[str, Any]) -> Label:
    """The principal investigator's answer to the question."""
    return _one_of(payload, "answer", "", read_labels(payload))


def read_works(payload: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """What differs between works that are compared."""
    return [_object_at(work, f"works.{place}") for place, work in enumerate(_need(payload, "works", ""))]


def _need(form: Mapping[str, Any], key: str, at: str) -> Any:
    if key not in form:
        raise ValueError(f"the payload lacks {at}{key}: send every key that the role's prompt has")
    return form[key]


def _object_at(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ValueError(f"{where} must be a JSON object, got {type(value).__name__}")
    return value


def _object(form: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    return _object_at(_need(form, key, ""), key)


def _text(form: Mapping[str, Any], key: str, at: str) -> str:
    value = _need(form, key, at)
    if not isinstance(value, str):
        raise ValueError(f"{at}{key} must be a text, got {type(value).__name__}")
    return value


def _list(form: Mapping[str, Any], key: str, at: str) -> Sequence[Any]:
    value = _need(form, key, at)
    if not isinstance(value, (list, tuple)):
        raise ValueError(f"{at}{key} must be a list, got {type(value).__name__}")
    return value


def _texts(form: Mapping[str, Any], key: str, at: str) -> tuple[str, ...]:
    values = _list(form, key, at)
    for index, value in enumerate(values):
        if not isinstance(value, str):
            raise ValueError(f"{at}{key}[{index}] must be a text, got {type(value).__name__}")
    return tuple(values)


def _one_of(form: Mapping[str, Any], key: str, at: str, choices: Sequence[Choice]) -> Choice:
    value = _need(form, key, at)
    for choice in choices:
        if value == choice:
            return choice
    raise ValueError(f"{at}{key} must be one of {', '.join(choices)}, got {value!r}")
