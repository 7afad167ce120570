"""Files that any program may have written: JSON and text that may be broken, and files that are replaced as a whole."""

import json
import os
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from chimera.core.errors import ChimeraError

_HALF = re.compile(r"[\ud800-\udfff]")
_AROUND = 30
"""Letters that a message shows before a character that cannot be held."""


def parse_json(text: str | bytes) -> Any:
    """The value of a JSON text.

    Raises:
        ValueError: The text is not JSON, not UTF-8, nested deeper than Python can read, or a number is too long for it.
    """
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("its values are nested too deeply") from error
    except (json.JSONDecodeError, UnicodeDecodeError):
        raise
    except ValueError as error:
        digits = sys.get_int_max_str_digits()
        raise ValueError(f"one of its whole numbers has more than {digits:,} digits") from error


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


def check_utf8(value: Any, place: str, error: type[ChimeraError]) -> None:
    """Raise `error` if a text within `value` cannot be written as UTF-8: no request, file or prompt could hold it.

    Args:
        value: A text, or nested lists and mappings of texts; other values pass.
        place: Where the user wrote it: the file and the row, or the setting.
    """
    for text in texts(value, keys=True):
        if half := _HALF.search(text):
            shown = text[max(0, half.start() - _AROUND) : half.end()]
            raise error(
                f"{place}: {shown!r} ends with half a character ({half[0]!r}), which UTF-8 cannot hold: write the text "
                "in UTF-8, or leave that character out"
            )


def place_of_bad_byte(file: Path) -> str:
    """The line and byte where a file stops being UTF-8, such as 'line 7, byte 12'."""
    with file.open("rb") as opened:
        for number, line in enumerate(opened, 1):
            try:
                line.decode()
            except UnicodeDecodeError as error:
                return f"line {number}, byte {error.start + 1}"
    return "its end"


def texts(value: Any, *, keys: bool = False) -> Iterator[str]:
    """All texts within nested lists and mappings; also the mappings' `keys`, if asked."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for item in (*(value if keys else ()), *value.values()):
            yield from texts(item, keys=keys)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from texts(item, keys=keys)


def replace_file(path: Path, content: str | bytes) -> None:
    """Replace `path` atomically and durably: a reader sees the old content or the new one.

    Half a surrogate pair, which a model may have written, becomes its escape.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    with draft.open("wb") as file:
        file.write(content if isinstance(content, bytes) else content.encode(errors="backslashreplace"))
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
