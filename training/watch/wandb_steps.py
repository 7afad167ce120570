"""Weights & Biases with named steps: every phase of a run is drawn over its own steps."""

from collections.abc import Collection, Iterator, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from training.watch.metrics import ROLLOUT

if TYPE_CHECKING:
    import wandb


class PhaseSteps:
    """Logs to one W&B run in which every phase has its own steps.

    Args:
        charts: Metrics of a phase that get a chart by themselves; None: all of them.
    """

    def __init__(self, run: "wandb.Run", charts: Collection[str] | None = None) -> None:
        self._run = run
        self._charts = charts
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
        beside: Mapping[str, float] | None = None,
    ) -> None:
        """Log `values` of `phase`.

        Args:
            phase: The prefix of the keys.
            step: The phase's step; None: the phase's last step, or the next number if it has no steps.
            values: Numbers, texts, or mappings and lists of those; None is left out.
            row: Row of W&B's history; None: the next row.
            time: Time of the values; None: now.
            send: False: only note the step, because W&B has the row already.
            beside: Values of the same row with whole keys.
        """
        if phase not in self._steps:
            self._define(phase)
            if step is None:
                self._counted.add(phase)
        if step is None:
            step = self._steps.get(phase, -1) + 1 if phase in self._counted else self._steps[phase]
        self._steps[phase] = step
        if send:
            found = {f"{phase}/{key}": value for key, value in flat(values)}
            stamp = {} if time is None else {"_timestamp": time.timestamp()}
            self._run.log({step_key(phase): step, **found, **(beside or {}), **stamp}, step=row, commit=True)

    def _define(self, phase: str) -> None:
        """Give the phase its x axis, and charts to those of its metrics that are to have one."""
        hidden = self._charts is not None
        self._run.define_metric(step_key(phase), hidden=hidden)
        self._run.define_metric(f"{phase}/*", step_metric=step_key(phase), hidden=hidden)
        for name in self._charts or ():
            self._run.define_metric(f"{phase}/{name}", step_metric=step_key(phase))


def step_key(phase: str) -> str:
    """The key of the x axis of a phase's values."""
    return f"{phase}/index" if phase == ROLLOUT else f"{phase}/step"


def flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Flatten nested values to keys with slashes. List items are named by their index, and None is left out."""
    for key, value in values.items():
        if isinstance(value, list | tuple):
            value = dict(enumerate(value))
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{key}/")
        elif value is not None:
            yield f"{prefix}{key}", value
