"""Reads a user's abstract, a text file with or without section labels, as the context of a question."""

import re
from pathlib import Path

from chimera.core.errors import DataError
from chimera.core.types import Section

LONGEST = 20_000
"""Longest abstract in characters; whole papers belong in a search index, not in a prompt."""
MOST_BYTES = 4 * LONGEST + 3
"""Most bytes that are read: an abstract of `LONGEST` characters in UTF-8 with a byte order mark is never longer."""

_LABEL = re.compile(r"(?:^|(?<=[.!?)]\s))[ \t]*([A-Z][A-Z0-9 &/,()-]{2,60}):\s", re.MULTILINE)


def read_abstract(path: Path) -> tuple[Section, ...]:
    """The sections of the abstract in `path`.

    A section begins with its label in capitals and a colon ("RESULTS: ..."), on a new line or after a sentence. Text
    before the first label becomes a section without a label.

    Raises:
        DataError: The file cannot be read, is no text, is empty, or is longer than `LONGEST`.
    """
    try:
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
        text = content.decode("utf-8-sig") if len(content) <= MOST_BYTES else ""
    except OSError as error:
        raise DataError(f"--context {path}: cannot be read ({error.strerror or error})") from error
    except UnicodeDecodeError as error:
        raise DataError(f"--context {path}: byte {error.start} is not UTF-8: give a plain text file") from error
    if len(content) > MOST_BYTES:
        raise DataError(f"--context {path}: over {LONGEST:,} characters, the most allowed: give the abstract only")
    if not text.strip():
        raise DataError(f"--context {path}: the file is empty: it should hold an abstract")
    if len(text) > LONGEST:
        raise DataError(f"--context {path}: {len(text):,} characters, at most {LONGEST:,}: give the abstract only")
    return sections(text)


def sections(text: str) -> tuple[Section, ...]:
    """Split an abstract at its labels; every word is kept, and white space becomes single spaces."""
    pieces = _LABEL.split(text)
    labelled = zip(["", *pieces[1::2]], pieces[0::2], strict=True)
    found = (Section(" ".join(label.split()), " ".join(body.split())) for label, body in labelled)
    return tuple(section for section in found if section.label or section.text)
