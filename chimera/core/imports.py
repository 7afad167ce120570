"""Imports: Chimera's own packages, and objects that a configuration names as module:name, such as a user's own tool."""

import importlib
import sys
import sysconfig
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any

from chimera.core.errors import ConfigError

PACKAGES = ("agents", "evaluation", "training")
"""Chimera's other top-level packages. Other distributions and users' folders have these names too."""
HOME = Path(__file__).resolve().parents[2]
"""The folder that holds the package `chimera`."""
SITE = ("site-packages", "dist-packages")
"""Names of the folders of installed packages."""


class OwnPackages:
    """Finds Chimera's packages beside `chimera`, whatever has their names in the working directory or on the path."""

    @classmethod
    def find_spec(cls, name: str, _path: Sequence[str] | None = None, _target: object = None) -> ModuleSpec | None:
        return PathFinder.find_spec(name, [str(HOME)]) if name in PACKAGES else None


def prefer_own_packages() -> None:
    """Import Chimera's own packages before others of their names, in this process."""
    if OwnPackages not in sys.meta_path:
        sys.meta_path.insert(0, OwnPackages)


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
        raise ConfigError(f"{what}: the module {module} cannot be imported ({cause}){_hidden(module)}") from error
    if not hasattr(loaded_module, name):
        raise ConfigError(f"{what}: the module {module} has no {name}{_hidden(module)}")
    return getattr(loaded_module, name)


def _hidden(module: str) -> str:
    """Ends an error if a module of the working directory cannot be imported because of its name."""
    top = module.partition(".")[0]
    if top not in PACKAGES or Path.cwd() == HOME or not any(Path(name).exists() for name in (top, f"{top}.py")):
        return ""
    return f": {top!r} is Chimera's own package, so give yours in {Path.cwd()} another name"


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
