"""Shows how far work is; `training.watch.view` has the views."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Protocol

from evaluation.records.rollouts import RolloutRecord

Advance = Callable[[int, str], None]
"""Called with the number of finished steps of a work and a text about it."""


class ProgressView(Protocol):
    """Shows the progress of work. Parts, phases and works may be nested. It is thread-safe."""

    def note(self, text: str) -> None: ...

    def doing(self, text: str) -> AbstractContextManager[None]:
        """Show `text` as what is happening, while nothing inside says more."""
        ...

    def part(self, name: str) -> AbstractContextManager[None]:
        """A part of the run, as named in the plan's costs, goes on."""
        ...

    def phase(
        self, name: str, total: int, versions: Mapping[str, str], *, table: bool = True
    ) -> AbstractContextManager[None]:
        """Show the progress of `total` rollouts, and a table about them at the end, even if the phase is interrupted.

        `versions` are the policy versions at its start. Rollouts bring newer ones.
        """
        ...

    def add(self, record: RolloutRecord) -> None:
        """Count one finished rollout of the innermost phase."""
        ...

    def work(self, name: str, total: int) -> AbstractContextManager[Advance]:
        """Show the progress of `total` steps of other work than rollouts."""
        ...
