"""What W&B shows of a line of metrics.jsonl.

W&B makes a section of charts for each prefix of a metric's name, in alphabetical order, and one chart for each metric.
So the overview has the prefix "1 overview", and metrics that only experts look at get no chart by themselves ("Add
panel" still finds them).
"""

from collections import deque
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from agents.schemas import ExperimentProtocol
from evaluation.records.rollouts import RolloutRecord
from evaluation.records.study import GATE
from training.watch.metrics import ROLLOUT

if TYPE_CHECKING:
    import wandb

COLUMNS = ("task", "goal", "answer", "decision", "label", "reward", *ExperimentProtocol.model_fields, "amendments")
"""Columns of a table of protocols."""
SECTION = "1 overview"
WINDOW = 30
"""Number of rollouts in a running mean."""
STAGE = f"{SECTION}/stage"
"""X axis of validation: 0 is the base, 1 the society after the first phase that learned, and so on."""
RUNNING = {
    "reward": f"{SECTION}/reward, last {WINDOW} rollouts",
    "aligned": f"{SECTION}/right answers, last {WINDOW} rollouts",
    "failed": f"{SECTION}/failed, last {WINDOW} rollouts",
}
"""Charts of running means, by the logged value of a rollout."""
VALIDATION = {
    "reward": f"{SECTION}/validation reward by stage",
    "alignment_rate": f"{SECTION}/validation right answers by stage",
}
"""Charts of the gate's evaluations, by the logged figure."""
CHARTS = (
    *("loss", "token_accuracy", "reward/mean", "alignment/mean", "branches/value", "actor/entropy", "actor/kl_loss"),
    *("actor/grad_norm", "critic/vf_loss", "response_length/mean", "gain", "dr"),
)
"""Metrics of a phase that have a chart. All others of a run have none."""


class Rows:
    """Makes rows of a W&B run, in which every phase has its own steps.

    It must see every line, also those that W&B has already: running means and steps depend on them.
    """

    def __init__(self, run: "wandb.Run") -> None:
        self._define = run.define_metric
        self._steps: dict[str, int] = {}
        self._counted: set[str] = set()
        self._recent = {name: deque[float](maxlen=WINDOW) for name in RUNNING}
        self._stages: dict[str, int] = {}
        self._define(STAGE, hidden=True)
        for chart in RUNNING.values():
            self._define(chart, step_metric=step_key(ROLLOUT))
        for chart in VALIDATION.values():
            self._define(chart, step_metric=STAGE)

    def row(self, line: Mapping[str, Any]) -> dict[str, Any]:
        """The row of one line: its step, time and values, and what the overview shows of it."""
        phase, step = line["phase"], line["step"]
        values = {key: value for key, value in line.items() if key not in ("phase", "step", "time")}
        return {
            step_key(phase): self._step(phase, step),
            **flat(values, f"{phase}/"),
            **self._overview(phase, step, values),
            "_timestamp": datetime.fromisoformat(line["time"]).timestamp(),
        }

    def _step(self, phase: str, step: int | None) -> int:
        """The step at which a line is drawn: without one, the phase's last step, or the next number if it has none."""
        if phase not in self._steps:
            self._define(step_key(phase), hidden=True)
            self._define(f"{phase}/*", step_metric=step_key(phase), hidden=True)
            for name in CHARTS:
                self._define(f"{phase}/{name}", step_metric=step_key(phase))
            if step is None:
                self._counted.add(phase)
        if step is None:
            step = self._steps.get(phase, -1) + (phase in self._counted)
        self._steps[phase] = step
        return step

    def _overview(self, phase: str, step: int | None, values: Mapping[str, Any]) -> dict[str, float]:
        if phase == ROLLOUT:
            for name, recent in self._recent.items():
                recent.extend(float(value) for value in (values.get(name),) if value is not None)
            return {RUNNING[name]: sum(recent) / len(recent) for name, recent in self._recent.items() if recent}
        if not phase.startswith(f"{GATE}-") or step is not None:
            return {}
        place = self._stages.setdefault(phase, len(self._stages))  # A resumed run logs what is live again.
        figures = {chart: values[name] for name, chart in VALIDATION.items() if values.get(name) is not None}
        return {**figures, STAGE: place}


def step_key(phase: str) -> str:
    """The key of the x axis of a phase's values."""
    return f"{phase}/index" if phase == ROLLOUT else f"{phase}/step"


def flat(values: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """Nested values by keys with slashes. List items are named by their index, and None is left out."""
    row: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, list | tuple):
            value = dict(enumerate(value))
        if isinstance(value, Mapping):
            row |= flat(value, f"{prefix}{key}/")
        elif value is not None:
            row[f"{prefix}{key}"] = value
    return row


def protocol_rows(records: Sequence[RolloutRecord], limit: int) -> list[list[Any]]:
    """Protocols with their results, best reward first. Of more than `limit`, half are the best and half the worst."""
    scored = [(record.reward, record) for record in records if record.reward is not None]
    scored = [(reward, record) for reward, record in scored if "final_protocol" in record.outputs]
    scored.sort(key=lambda pair: pair[0], reverse=True)
    if len(scored) > limit:
        scored = scored[: limit - limit // 2] + scored[len(scored) - limit // 2 :]
    return [_protocol_row(record) for _, record in scored]


def _protocol_row(record: RolloutRecord) -> list[Any]:
    protocol = record.outputs["final_protocol"]
    result = [record.answer, record.decision, record.label, record.reward]
    fields = map(protocol.get, ExperimentProtocol.model_fields)
    return [record.task_id, record.outputs["research_goal"], *result, *fields, "; ".join(protocol["amendments"])]
