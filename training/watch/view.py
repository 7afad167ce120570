"""Shows a run to the user: a live view in a terminal (`live`), plain lines elsewhere (`lines`).

While a view is open, it is never silent for long: it says what is happening, also where there is nothing to count.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol, Self

from rich.console import Console
from rich.table import Table

from evaluation.conduct.progress import ProgressView


class View(ProgressView, Protocol):
    """Shows a run's progress.

    As a context manager it is open: only then it shows what is happening where nothing is counted.
    """

    def plan(self, names: Sequence[str], done: Sequence[str] = (), costs: Mapping[str, float] | None = None) -> None:
        """Show the phases of the run. Those in `done` were finished before.

        `costs` are the expected costs of the parts that are to come (`forecast`), for the time left of the whole run.
        """
        ...

    def decision(self, text: str) -> None:
        """Show a decision of the gate, and keep it in sight."""
        ...

    def table(self, table: Table) -> None: ...

    def note(self, text: str) -> None:
        """Show a message."""
        ...

    def warn(self, text: str) -> None:
        """Show a warning about a problem that does not stop the run."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...


def make_view(console: Console, concurrency: int) -> View:
    """The view that fits the console.

    It shows no remaining time until `concurrency` rollouts have ended. The first ends show the duration of a rollout,
    but not yet the rate.
    """
    from training.watch.lines import LineView
    from training.watch.live import LiveView

    return LiveView(console, concurrency) if console.is_terminal else LineView(console, concurrency)
