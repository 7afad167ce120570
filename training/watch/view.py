"""Shows a run to the user: a live view in a terminal (`live`), plain lines elsewhere (`lines`).

While a view is open, it is never silent for long: it says what is happening, also where there is nothing to count.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol, Self

from rich.console import Console
from rich.table import Table

from evaluation.records.rollouts import RolloutRecord

Advance = Callable[[int, str], None]
"""Called with the number of finished steps of a work and a text about it."""


class View(Protocol):
    """Shows a run's progress. Parts, phases and works may be nested. It is thread-safe.

    As a context manager it is open: only then it shows what is happening where nothing is counted.
    """

    def plan(self, names: Sequence[str], done: Sequence[str] = (), costs: Mapping[str, float] | None = None) -> None:
        """Show the phases of the run. Those in `done` were finished before.

        `costs` are the expected costs of the parts that are to come (`forecast`), for the time left of the whole run.
        """
        ...

    def doing(self, text: str) -> AbstractContextManager[None]:
        """Show `text` as what is happening, while nothing inside says more."""
        ...

    def part(self, name: str) -> AbstractContextManager[None]:
        """A part of the run, as named in the plan's costs, goes on."""
        ...

    @contextmanager
    def phase(self, name: str, total: int, versions: Mapping[str, str], *, table: bool = True) -> Iterator[None]:
        """Show the progress of `total` rollouts, and a table about them at the end, even if the phase is interrupted.

        `versions` are the policy versions at its start. Rollouts bring newer ones.
        """
        ...

    def add(self, record: RolloutRecord) -> None:
        """Count one finished rollout of the innermost phase."""
        ...

    @contextmanager
    def work(self, name: str, total: int) -> Iterator[Advance]:
        """Show the progress of `total` steps of other work than rollouts."""
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


def make_view(console: Console, runners: int) -> View:
    """The view that fits the console.

    It shows no remaining time until `runners` rollouts have ended. The first ends show the duration of a rollout, but
    not yet the rate.
    """
    from training.watch.lines import LineView
    from training.watch.live import LiveView

    return LiveView(console, runners) if console.is_terminal else LineView(console, runners)
