"""Model folders in the user's cache, each made once, whatever processes want it and whenever one is stopped."""

import fcntl
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from chimera.core.errors import ConfigError


def cache_root() -> Path:
    """Where model folders are kept: `chimera/models` of $XDG_CACHE_HOME, which has to be absolute, or of ~/.cache."""
    named = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (named if named.is_absolute() else Path("~/.cache").expanduser()) / "chimera" / "models"


def cached(name: str, make: Callable[[Path], None]) -> Path:
    """The folder `name` of the cache, which appears when `make` has filled it; one process does, others wait.

    Raises:
        ConfigError: The cache cannot be written; other errors are those of `make`.
    """
    folder = cache_root() / name
    draft = folder.with_name(f".{name}.draft")
    if folder.is_dir():
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with folder.with_name(f".{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            # A process that was killed may have left its draft; the lock says that nobody writes it now.
            shutil.rmtree(draft, ignore_errors=True)
            if not folder.is_dir():
                try:
                    draft.mkdir()
                    make(draft)
                    draft.rename(folder)
                finally:
                    shutil.rmtree(draft, ignore_errors=True)
    except OSError as error:
        raise ConfigError(
            f"the model cache {folder.parent} cannot be written ({error.strerror or error}): make room, or name "
            "another folder in XDG_CACHE_HOME"
        ) from error
    return folder
