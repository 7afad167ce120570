"""Objects that a configuration names as module:name, such as a user's own algorithm or tool."""

import importlib
import sys
import sysconfig
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from chimera.core.errors import ConfigError

SITE = ("site-packages", "dist-packages")
"""Names of the folders of installed packages."""


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
        loaded_module = importlib.import_module(module)
    except Exception as error:
        cause = f"{type(error).__name__}: {error}"
        raise ConfigError(f"{what}: the module {module} cannot be imported ({cause})") from error
    if not hasattr(loaded_module, name):
        raise ConfigError(f"{what}: the module {module} has no {name}")
    return getattr(loaded_module, name)


def is_installed(module: str) -> bool:
    """True if `module` would be imported from Python's library or an installed package; imports nothing itself.

    Only the first part of the name is looked up: what is below an installed package is found inside it. A folder that
    is on Python's path for another reason, such as the current one, holds no installed packages.
    """
    top = module.partition(".")[0]
    spec = PathFinder.find_spec(top) if top.isidentifier() else None
    if spec is None:
        return False
    return all(_in_library(Path(place).resolve()) for place in spec.submodule_search_locations or [str(spec.origin)])


def _in_library(place: Path) -> bool:
    if any(place.is_relative_to(Path(sysconfig.get_path(name)).resolve()) for name in ("stdlib", "platstdlib")):
        return True
    return place.parent.name in SITE and place.parent != Path.cwd()
