"""The runs folder: which runs there are, and the one with a name."""

import threading
from dataclasses import dataclass
from pathlib import Path

from chimera.core.errors import RunError
from chimera.run.directory import Run, check_name, list_runs
from evaluation.view.reading.watched import WatchedRun, inside


@dataclass(frozen=True, slots=True)
class OddFolder:
    """A folder that looks like a run but is not opened."""

    name: str
    why: str


class RunsFolder:
    """The runs in a folder. It is thread-safe.

    Args:
        path: The folder; it may be made later.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._watched: dict[str, WatchedRun] = {}

    def runs(self) -> tuple[list[WatchedRun], list[OddFolder]]:
        """The runs, newest first, and the folders that are not opened."""
        watched_runs: list[WatchedRun] = []
        odd: list[OddFolder] = []
        for run in reversed(list_runs(self.path)):
            try:
                watched_runs.append(self.open(run.name))
            except RunError as error:
                odd.append(OddFolder(run.name, str(error)))
        return watched_runs, odd

    def read_newest(self) -> None:
        """Read the newest run, which is likely to be opened first."""
        for newest in self.runs()[0][:1]:
            newest.look()

    def folders(self) -> dict[str, int]:
        """Folders that hold runs of their own, such as a study's, with the number of these runs."""
        below = sorted(self.path.iterdir()) if self.path.is_dir() else []
        return {path.name: len(list_runs(path)) for path in below if path.is_dir() and any(path.glob("*/config.yaml"))}

    def open(self, name: str) -> WatchedRun:
        """The run `name`.

        Raises:
            RunError: There is none, its name is not one that Chimera gives, or it lies outside the folder.
        """
        path = self.path / check_name(name)
        if not (path / "config.yaml").is_file():
            raise RunError(f"there is no run {name!r} in {self.path}: choose one from the list")
        if not inside(path, self.path):
            raise RunError(f"run {name!r} is a link out of {self.path}: start the viewer with --runs-dir of its folder")
        with self._lock:
            return self._watched.setdefault(name, WatchedRun(Run(path)))
