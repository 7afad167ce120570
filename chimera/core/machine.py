"""What is checked before any command: the system, Python's version, and that Chimera's packages are its own."""

import os
import sys
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from chimera.core.errors import ConfigError

PACKAGES = ("agents", "evaluation", "training")
"""Chimera's other top-level packages. Other distributions have packages of these names."""
NAMED_IN_EACH = "Chimera"
"""Word in the docstring of each package's `__init__.py`, which tells it from another distribution's."""
OLDEST, NEWEST = (3, 11), (3, 12)
HOME = Path(__file__).resolve().parents[2]
"""The folder that holds the package `chimera`."""


def check_machine() -> None:
    """Refuse what Chimera cannot run on; say on stderr what nobody has tested.

    Raises:
        ConfigError: The system is Windows, the version of Python is another, or a package is not Chimera's.
    """
    if os.name == "nt":
        raise ConfigError(
            "Chimera does not run on Windows, because the processes of a run need POSIX: use WSL 2 or a Linux machine"
        )
    version = sys.version_info[:2]
    if not OLDEST <= version <= NEWEST:
        raise ConfigError(
            f"Chimera needs Python 3.11 or 3.12, and this is {version[0]}.{version[1]} ({sys.executable}): make an "
            "environment with one of them (make setup PYTHON=python3.12)"
        )
    check_packages()
    if sys.platform == "darwin":
        print("note: Chimera is tested on Linux; on macOS nobody has tried it", file=sys.stderr)


def check_packages() -> None:
    """Make sure that the packages beside `chimera` are Chimera's own. Imports none of them.

    Raises:
        ConfigError: Another distribution's package has the name of one of them.
    """
    for name in PACKAGES:
        spec = find_spec(name)
        file = Path(spec.origin) if spec is not None and spec.origin else None
        if file is None or file.resolve().parents[1] != HOME:
            raise ConfigError(_foreign(name, file.parent if file else None))
        if NAMED_IN_EACH not in file.read_text(encoding="utf-8"):
            raise ConfigError(_foreign(name, file.parent))


def _foreign(name: str, folder: Path | None) -> str:
    if folder is None:
        return f"Chimera's package {name!r} is not installed beside {HOME}/chimera: run make setup"
    others = [one for one in metadata.packages_distributions().get(name, ()) if one != "chimera-lab"]
    owner = f"the distribution {others[0]}" if others else "another program"
    remedy = f"pip uninstall {others[0]} and install Chimera again" if others else "remove it from the path"
    return (
        f"the package {name!r} in {folder} belongs to {owner} and not to Chimera, which has one of the same name: "
        f"{remedy}, or give Chimera an environment of its own (make setup)"
    )
