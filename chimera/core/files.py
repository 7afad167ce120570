"""Files that are replaced as a whole."""

import os
from pathlib import Path


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
