"""The gate: compares each learned policy on validation tasks, and keeps it live or rolls it back.

The new stage is compared with the stage before, the base and the best stage so far, on the same tasks and seeds.
`training.gate_rule` decides. The tasks are validation tasks, so the gate's choice does not bias a report on test tasks.
"""

import asyncio
import json
from collections.abc import Iterator, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rich import box
from rich.table import Table
from rich.text import Text

from chimera.config.tree import Config
from chimera.core.errors import ConfigError, RunError
from chimera.data.tasks import Dataset
from chimera.run import policies
from chimera.run.policies import ROLLED_BACK, WENT_LIVE, Policy
from evaluation.measures.comparison import Comparison
from evaluation.records.plan import gate_tasks
from evaluation.records.rollouts import RolloutInput, RolloutRecord
from evaluation.records.study import BASE, GATE
from evaluation.report.formats import signed
from training import gate_power
from training.gate_rule import Rivalry, compare
from training.summary import summarize

if TYPE_CHECKING:
    from training.lab.lab import Lab

LIVE, BACK = "live", "rolled back"


def check(config: Config, dataset: Dataset) -> None:
    """Raise ConfigError if there are fewer validation tasks than the gate needs."""
    if config.gate.enabled and config.gate.tasks > len(dataset.validation):
        raise ConfigError(
            f"gate.tasks={config.gate.tasks}, but there are {len(dataset.validation)} validation tasks: ask for fewer, "
            "or raise data.validation_share"
        )


def inputs(dataset: Dataset, config: Config, stage: str) -> list[RolloutInput]:
    """The rollouts of `stage` on validation tasks. All stages of runs with equal seeds use the same tasks and seeds."""
    return [
        replace(RolloutInput.of(task, GATE, 0, config.seed), phase=f"{GATE}-{stage}")
        for task in gate_tasks(dataset, config)
    ]


async def evaluate(lab: "Lab", stage: str) -> list[RolloutRecord]:
    """Run the current society on the validation tasks. The records are in the order of the tasks.

    Raises:
        RunError: No rollout succeeded.
    """
    wanted = inputs(lab.dataset, lab.config, stage)
    found: dict[str, RolloutRecord] = {}
    with lab.view.phase(f"{GATE}-{stage}", len(wanted), lab.policy_versions, table=False):
        async with aclosing(lab.held_out(wanted, stage)) as answers:
            async for record in answers:
                found[record.task_id] = record
                lab.metrics.rollout(record)
                lab.view.add(record)
    records = [found[given.task.id] for given in wanted]
    if all(record.status == "failed" for record in records):
        raise RunError(f"all {len(records)} rollouts on validation tasks failed; the first: {records[0].error}")
    figures = {key: value for key, value in summarize(records).items() if not isinstance(value, dict)}
    lab.metrics.log(f"{GATE}-{stage}", None, figures)
    lab.metrics.protocols(f"{GATE}-{stage}", records)
    return records


class Gate:
    """Decides which learned policies stay live. A run has one gate, whose state is the run's ledger and rollouts."""

    def __init__(self, lab: "Lab") -> None:
        self._lab = lab
        self._stages: dict[str, list[RolloutRecord]] = {}

    async def open(self) -> None:
        """Evaluate the live society before the first phase that learns."""
        lab, live = self._lab, self._kept()[-1]
        if lab.config.gate.enabled and live not in self._stages:
            expected = gate_power.expected(lab.config.gate.tasks, lab.config)
            lab.view.note(f"gate: if as many answers change as usual, {expected.words()}")
            self._stages[live] = await evaluate(lab, live)

    async def decide(self, phase: str, policy: Policy) -> bool:
        """Put `policy` live, evaluate it, and keep it or roll it back. Returns True if it was kept."""
        lab = self._lab
        await lab.put_live(policy)
        if not lab.config.gate.enabled:
            self._keep(phase, policy, "without being compared, because gate.enabled is false")
            return True
        self._stages[phase] = await evaluate(lab, phase)
        # Thousands of resamples take tenths of a second. A thread keeps the live view running.
        found = await asyncio.to_thread(self._compare, phase, self._rivals())
        power = await asyncio.to_thread(self._power, found[0])
        faults = list(dict.fromkeys(fault for one in found for fault in one.faults))
        self._write(phase, found, power, kept=not faults)
        verdicts = {one.before: one.verdict for one in found}
        if faults:
            await lab.restore(policies.live(lab.run.events()).values())
            lab.run.ledger(ROLLED_BACK, phase=phase, policy=policy.dump(), verdicts=verdicts, reasons=faults)
            lab.view.decision(f"gate: {policy.version} was rolled back: {'; '.join(faults)}")
            return False
        self._keep(phase, policy, _beside(found[0]), verdicts=verdicts)
        return True

    def summary(self) -> None:
        """Compare every stage with the one before and the base, also stages of the run's earlier processes."""
        if not self._lab.config.gate.enabled:
            return
        rows: list[tuple[Rivalry, str]] = []
        for phase, kept, before in self._decisions():
            rivals = [rival for rival in dict.fromkeys((before, BASE)) if self._records(rival)]
            if rivals and self._records(phase):
                rows += [(one, LIVE if kept else BACK) for one in self._compare(phase, rivals)]
        if rows:
            self._lab.view.table(table(rows))

    def _rivals(self) -> list[str]:
        """The rivals of a new stage: the stage before, the base, and the best stage so far."""
        kept = [stage for stage in self._kept() if self._records(stage)]
        best = max(kept, key=lambda stage: _quality(self._records(stage)))
        return [stage for stage in dict.fromkeys((kept[-1], BASE, best)) if stage in kept]

    def _compare(self, phase: str, rivals: Sequence[str]) -> list[Rivalry]:
        own, config = self._records(phase), self._lab.config
        return [compare(self._records(rival), own, (rival, phase), config) for rival in rivals]

    def _power(self, found: Rivalry) -> gate_power.Power | None:
        return gate_power.observed(self._records(found.before), self._records(found.after), self._lab.config)

    def _keep(self, phase: str, policy: Policy, why: str, **fields: Any) -> None:
        self._lab.run.ledger(WENT_LIVE, phase=phase, policy=policy.dump(), artifacts=[policy.folder], **fields)
        self._lab.view.decision(f"gate: {policy.version} is live, {why}")

    def _write(self, phase: str, found: Sequence[Rivalry], power: gate_power.Power | None, *, kept: bool) -> None:
        lab = self._lab
        file = lab.run.path / GATE / f"{phase}.json"
        file.parent.mkdir(exist_ok=True)
        content = {
            "phase": phase,
            "kept": kept,
            "comparisons": [one.dump() for one in found],
            "power": None if power is None else power.dump(),
        }
        file.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
        for one in found:
            lab.metrics.log("gate", None, {"stage": phase, **_flat(one)})
        lab.view.table(table([(one, LIVE if kept else BACK) for one in found]))
        if power is not None:
            lab.view.note(f"gate: as the answers changed here, {power.words()}")

    def _decisions(self) -> Iterator[tuple[str, bool, str]]:
        """Each decision of the run: the phase, True if its policy was kept, and the stage that was live before."""
        live = BASE
        for event in self._lab.run.events():
            if event["event"] in (WENT_LIVE, ROLLED_BACK):
                kept = event["event"] == WENT_LIVE
                yield event["phase"], kept, live
                live = event["phase"] if kept else live

    def _kept(self) -> list[str]:
        """The stages that were kept, in order. The last one is live."""
        return [BASE, *(phase for phase, kept, _ in self._decisions() if kept)]

    def _records(self, stage: str) -> list[RolloutRecord]:
        """The validation rollouts of `stage`, in the order of the tasks; empty if some are missing."""
        if stage not in self._stages:
            wanted = inputs(self._lab.dataset, self._lab.config, stage)
            found = {data["task_id"]: RolloutRecord.load(data) for data in self._lab.run.rollouts(wanted[0].phase)}
            complete = all(one.task.id in found for one in wanted)
            self._stages[stage] = [found[one.task.id] for one in wanted] if complete else []
        return self._stages[stage]


def table(rows: Sequence[tuple[Rivalry, str]]) -> Table:
    """Comparisons for a terminal of 80 columns and 24 lines, each with the gate's decision: a line with each stage's
    means, then one for each rival. Green and red are what the test shows of one measure."""
    shown = Table(
        title=f"validation tasks, paired: n = {rows[0][0].alignment.n}",
        title_justify="left",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        show_edge=False,
    )
    shown.add_column("stage\n  beside", no_wrap=True)
    shown.add_column("reward\ndifference", no_wrap=True)
    shown.add_column("right, %\npoints", no_wrap=True)
    shown.add_column("\nverdict", min_width=13)
    for number, (one, fate) in enumerate(rows):
        if number == 0 or rows[number - 1][0].after != one.after:
            failed = f", {one.failed[1]} failed" if any(one.failed) else ""
            reward = "-" if one.reward is None else f"{one.reward.after:z.3f}"
            right = "-" if one.failed[1] == one.alignment.n else f"{100 * one.alignment.after:z.1f}"
            shown.add_row(one.after, reward, right, f"{fate}{failed}", style="bold")
        shown.add_row(f"  {one.before}", _cell(one.reward, 1, 3), _cell(one.alignment, 100, 1), one.verdict)
    return shown


COLOURS = {"better": "green", "worse": "red"}


def _cell(one: Comparison | None, scale: float, digits: int) -> Text:
    return Text("-") if one is None else Text(_difference(one, scale, digits), style=COLOURS.get(str(one.verdict), ""))


def _difference(one: Comparison, scale: float, digits: int) -> str:
    ends = [] if one.low is None or one.high is None else [one.low, one.high]
    change, *around = (signed(scale * value, digits) for value in (one.difference, *ends))
    return change + (f" [{', '.join(around)}]" if around else "")


def _beside(found: Rivalry) -> str:
    """A comparison in a few words."""
    reward = "" if found.reward is None else f"reward {_difference(found.reward, 1, 3)}, "
    return f"{found.verdict} beside {found.before}: {reward}right {_difference(found.alignment, 100, 1)} points"


def _quality(records: Sequence[RolloutRecord]) -> tuple[float, float]:
    """Sort key for the quality of a stage: right answers, then reward."""
    found = summarize(records)
    return found["alignment_rate"], found["reward"] or 0.0


def _flat(found: Rivalry) -> dict[str, Any]:
    """The differences with their intervals by measure, for the metrics."""
    values: dict[str, Any] = {"against": found.before, "verdict": found.verdict, "failed": found.failed[1]}
    for name, one in (("reward", found.reward), ("alignment", found.alignment)):
        if one is not None:
            own = {"before": one.before, "after": one.after, "mean": one.difference, "low": one.low, "high": one.high}
            values |= {f"{name}/{key}": value for key, value in {**own, "n": one.n, "verdict": one.verdict}.items()}
    return values
