"""Weights & Biases with named steps: every phase of a run is drawn over its own."""

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from training.watch.metrics import ROLLOUT

if TYPE_CHECKING:
    import wandb


class PhaseSteps:
    """Logs to one W&B run, where every phase has its own step."""

    def __init__(self, run: "wandb.Run") -> None:
        self._run = run
        self._steps: dict[str, int] = {}
        self._counted: set[str] = set()

    def log(
        self,
        phase: str,
        step: int | None,
        values: Mapping[str, Any],
        *,
        row: int | None = None,
        time: datetime | None = None,
        send: bool = True,
    ) -> None:
        """Log `values` of `phase`.

        Args:
            phase: The prefix of the keys.
            step: The phase's own step; None is the phase's last step, or the next number if it has no steps.
            values: Numbers, texts, or mappings and lists of those; None is left out.
            row: Which row of W&B's history this is; the next one for None.
            time: When it was; now for None.
            send: False only takes note of the step: W&B has the row already.
        """
        if phase not in self._steps:
            self._run.define_metric(step_key(phase))
            self._run.define_metric(f"{phase}/*", step_metric=step_key(phase))
            if step is None:
                self._counted.add(phase)
        if step is None:
            step = self._steps.get(phase, -1) + 1 if phase in self._counted else self._steps[phase]
        self._steps[phase] = step
        if send:
            found = {f"{phase}/{key}": value for key, value in flat(values)}
            stamp = {} if time is None else {"_timestamp": time.timestamp()}
            self._run.log({step_key(phase): step, **found, **stamp}, step=row, commit=True)


def step_key(phase: str) -> str:
    """The key that a phase's values are drawn over."""
    return f"{phase}/index" if phase == ROLLOUT else f"{phase}/step"


def flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Keys with slashes instead of nesting; items of lists are named by their position, and None is left out."""
    for key, value in values.items():
        if isinstance(value, list | tuple):
            value = dict(enumerate(value))
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{key}/")
        elif value is not None:
            yield f"{prefix}{key}", value
