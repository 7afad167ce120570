"""The temporary folder of one command and its children, which is removed when the command ends.

Libraries leave folders behind (W&B its media, multiprocessing its sockets), because the last frame of a command ends
the process at once. Paths stay short: a socket's may have 108 bytes.
"""

import atexit
import os
import re
import shutil
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

PREFIX = "chimera-"
_OWN = re.compile(rf"{PREFIX}[a-z0-9_]{{8}}")


def own_temporary_folder() -> Callable[[], None]:
    """Let this process and its children write to a folder of their own. Returns what removes it.

    It is also removed at the interpreter's exit: after the folders of libraries that register theirs later, since the
    last that is registered is called first. A child is in its parent's folder already, and leaves it to the parent.
    """
    system = tempfile.gettempdir()
    if _OWN.fullmatch(Path(system).name):
        return lambda: None
    os.environ.setdefault("RAY_TMPDIR", system)  # Where Ray notes the addresses of clusters on this machine.
    folder = tempfile.mkdtemp(prefix=PREFIX, dir=system)
    os.environ["TMPDIR"] = tempfile.tempdir = folder
    remove = partial(shutil.rmtree, folder, ignore_errors=True)  # Another process may be removing its own part of it.
    atexit.register(remove)
    return remove


def lasting_folder() -> Path:
    """The system's folder for temporary files, for what a person may want to read after the command."""
    folder = Path(tempfile.gettempdir())
    return folder.parent if _OWN.fullmatch(folder.name) else folder
