"""Text that UTF-8 can hold. Python holds more: halves of surrogate pairs, from JSON's escapes or a shell's bytes."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from chimera.core.errors import ChimeraError

_HALF = re.compile(r"[\ud800-\udfff]")
_AROUND = 30
"""Letters that a message shows before a character that cannot be held."""


def check_utf8(value: Any, place: str, error: type[ChimeraError]) -> None:
    """Raise `error` if a text within `value` cannot be written as UTF-8: no request, file or prompt could hold it.

    Args:
        value: A text, or nested lists and mappings of texts; other values pass.
        place: Where the user wrote it: the file and the row, or the setting.
    """
    for text in _texts(value):
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


def _texts(value: Any) -> Iterator[str]:
    """All texts within nested lists and mappings, with the mappings' keys."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from _texts([*value.keys(), *value.values()])
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _texts(item)
