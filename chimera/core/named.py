"""Objects that a configuration names as module:name, such as a user's own algorithm or tool."""

import importlib
import sys
from pathlib import Path
from typing import Any

from chimera.core.errors import ConfigError


def load_named(reference: str, what: str) -> Any:
    """The object `module:name`; the module may lie in the current folder.

    Args:
        what: How errors name it, such as "algorithm 'a:B'".

    Raises:
        ConfigError: The module cannot be imported, or has no such name.
    """
    module, _, name = reference.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:  # `python -m` adds this folder; a command that pip installed does not.
        sys.path.append(here)
    try:
        found = importlib.import_module(module)
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
        raise ConfigError(f"{what}: the module {module} cannot be imported ({said})") from error
    if not hasattr(found, name):
        raise ConfigError(f"{what}: the module {module} has no {name}")
    return getattr(found, name)
