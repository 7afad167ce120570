"""The first page of a run in Weights & Biases: a few charts that tell how the run goes; all others are hidden.

W&B makes one section of charts for each prefix of a metric's name, in alphabetical order, and one chart for each
metric. So the overview has the prefix "1 overview", and metrics that only experts look at get no chart by themselves
("Add panel" still finds them).
"""

from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from evaluation.records.study import GATE
from training.watch.metrics import ROLLOUT

if TYPE_CHECKING:
    import wandb

SECTION = "1 overview"
WINDOW = 30
"""Number of rollouts in a running mean."""
STAGE = f"{SECTION}/stage"
"""X axis of held-out figures: 0 is the base, 1 the society after the first phase that learned, and so on."""
RUNNING = {
    "reward": f"{SECTION}/reward, last {WINDOW} rollouts",
    "aligned": f"{SECTION}/right answers, last {WINDOW} rollouts",
    "failed": f"{SECTION}/failed, last {WINDOW} rollouts",
}
"""Charts of running means, by the logged value of a rollout."""
HELD_OUT = {
    "reward": f"{SECTION}/held-out reward by stage",
    "alignment_rate": f"{SECTION}/held-out right answers by stage",
}
"""Charts of the gate's evaluations, by the logged figure."""
CHARTS = (
    "loss",
    "token_accuracy",
    "reward/mean",
    "alignment/mean",
    "branches/value",
    "actor/entropy",
    "actor/kl_loss",
    "actor/grad_norm",
    "critic/vf_loss",
    "response_length/mean",
    "gain",
    "dr",
)
"""Metrics of a phase that have a chart. All others of a run have none."""


class Overview:
    """What the overview shows, line by line of metrics.jsonl. It must see every line, also those that W&B has."""

    def __init__(self, run: "wandb.Run") -> None:
        self._recent = {name: deque[float](maxlen=WINDOW) for name in RUNNING}
        self._stages = 0
        run.define_metric(STAGE, hidden=True)
        for chart in RUNNING.values():
            run.define_metric(chart, step_metric=f"{ROLLOUT}/index")
        for chart in HELD_OUT.values():
            run.define_metric(chart, step_metric=STAGE)

    def of(self, phase: str, step: int | None, values: Mapping[str, Any]) -> dict[str, float]:
        """The overview's values for one line: they go into the line's own row."""
        if phase == ROLLOUT:
            return self._of_rollout(values)
        if phase.startswith(f"{GATE}-") and step is None:
            found = {chart: values[name] for name, chart in HELD_OUT.items() if values.get(name) is not None}
            self._stages += 1
            return {**found, STAGE: self._stages - 1}
        return {}

    def _of_rollout(self, values: Mapping[str, Any]) -> dict[str, float]:
        found: dict[str, float] = {}
        for name, recent in self._recent.items():
            if values.get(name) is not None:
                recent.append(float(values[name]))
            if recent:
                found[RUNNING[name]] = sum(recent) / len(recent)
        return found
