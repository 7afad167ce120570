"""SHA-256 of files and folders. A process hashes an unchanged file only once."""

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path

from chimera.core.errors import RunError

BLOCK = 1 << 20

_known: dict[Path, tuple[tuple[int, ...], dict[int, str]]] = {}
"""By file: its inode, size and times when this process hashed it, and hashes by number of first bytes."""


def hashes(file: Path, sizes: Iterable[int]) -> list[str]:
    """SHA-256 of the first bytes of a file, for each number of bytes in `sizes`; cached for an unchanged file."""
    lengths = list(sizes)
    state = os.stat(file)
    stamp = (state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns)
    cached = _known.get(file)
    if cached is None or cached[0] != stamp:
        cached = _known[file] = (stamp, {})
    missing = sorted(set(lengths) - set(cached[1]))
    if missing:
        digest, at = hashlib.sha256(), 0
        with file.open("rb") as opened:
            for size in missing:
                while at < size and (block := opened.read(min(BLOCK, size - at))):
                    digest.update(block)
                    at += len(block)
                cached[1][size] = digest.hexdigest()
    return [cached[1][size] for size in lengths]


def hash_artifact(path: Path) -> str:
    """SHA-256 of a file, or of the names and hashes of a folder's files without hidden ones.

    Raises:
        RunError: there is nothing at `path`.
    """
    if path.is_dir():
        files = sorted(file for file in path.rglob("[!.]*") if file.is_file())
        lines = "".join(f"{hash_artifact(file)}  {file.relative_to(path).as_posix()}\n" for file in files)
        return hashlib.sha256(lines.encode()).hexdigest()
    try:
        return hashes(path, [path.stat().st_size])[0]
    except OSError as error:
        raise RunError(f"artifact {path} cannot be read: {error.strerror}") from error
