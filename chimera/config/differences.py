"""Where two trees of plain values differ, such as two configurations."""

from collections.abc import Mapping, Sequence
from typing import Any

FIRST = 3
"""Differences that a sentence names."""


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Both values of each dotted key whose values differ, by key in order; None stands for a key that one has not."""
    before, after = _flat(old), _flat(new)
    return {
        key: (before.get(key), after.get(key)) for key in sorted({*before, *after}) if before.get(key) != after.get(key)
    }


def first_few(texts: Sequence[str]) -> str:
    """The first differences, and how many more there are."""
    more = [f"and {len(texts) - FIRST} more"] if len(texts) > FIRST else []
    return ", ".join([*texts[:FIRST], *more])


def _flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return flat
