"""Reads JSON from files that any program may have written."""

import json
from pathlib import Path
from typing import Any


def parse_json(text: str | bytes) -> Any:
    """The value of a JSON text.

    Raises:
        ValueError: The text is not JSON, not UTF-8, or nested deeper than Python can read.
    """
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("its values are nested too deeply") from error


def parse_object(text: str | bytes) -> dict[str, Any] | None:
    """The JSON object of a text; None if it holds none."""
    try:
        value = parse_json(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def read_json_object(file: Path) -> dict[str, Any]:
    """The JSON object in a file.

    Raises:
        OSError: The file cannot be read.
        ValueError: It holds no JSON object.
    """
    value = parse_json(file.read_bytes())
    if not isinstance(value, dict):
        raise ValueError(f"it holds a {type(value).__name__} instead of a JSON object")
    return value
