"""The gate: compares each learned policy on validation tasks, and keeps it live or rolls it back.

The new stage is compared with the stage before, the base and the best stage so far, on the same tasks and seeds.
`training.gate.rule` decides. The tasks are validation tasks, so the gate's choice does not bias a report on test tasks.
"""

import asyncio
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from rich import box
from rich.table import Table
from rich.text import Text

from chimera.config.tree import Config
from chimera.core.errors import ConfigError, RunError, UnreachableError
from chimera.data.tasks import Dataset
from chimera.run import policies
from chimera.run.policies import ROLLED_BACK, WENT_LIVE, Policy
from evaluation.measures.comparison import Comparison
from evaluation.records.plan import gate_tasks
from evaluation.records.rollouts import RolloutInput, RolloutRecord
from evaluation.records.study import BASE, GATE
from evaluation.report.formats import signed
from training.gate import power as gate_power
from training.gate.alarm import alarm
from training.gate.rule import Rivalry, compare
from training.watch.summary import summarize

if TYPE_CHECKING:
    from training.lab.lab import Lab

LIVE, BACK = "live", "rolled back"
AUDITS = "audits.jsonl"
"""The file of the run's folder of gates with what the second judge said."""


def check(config: Config, dataset: Dataset) -> None:
    """Raise ConfigError if there are fewer validation tasks than the gate needs."""
    if config.gate.tasks > len(dataset.validation):
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
        RunError: No rollout of the base succeeded. Of a learned policy that is a reason to roll it back.
    """
    stage_inputs = inputs(lab.dataset, lab.config, stage)
    by_task: dict[str, RolloutRecord] = {}
    with lab.view.phase(f"{GATE}-{stage}", len(stage_inputs), lab.policy_versions, table=False):
        async with aclosing(lab.held_out(stage_inputs, stage)) as answers:
            async for record in answers:
                by_task[record.task_id] = record
                lab.metrics.rollout(record)
                lab.view.add(record)
    records = [by_task[input_.task.id] for input_ in stage_inputs]
    if stage == BASE and all(record.status == "failed" for record in records):
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
        if lab.config.gate.tasks and live not in self._stages:
            expected = gate_power.expected(lab.config.gate.tasks, lab.config)
            lab.view.note(f"gate: if as many answers change as usual, {expected.words()}")
            self._stages[live] = await evaluate(lab, live)

    async def decide(self, phase: str, policy: Policy) -> bool:
        """Put `policy` live, evaluate it, and keep it or roll it back. Returns True if it was kept.

        A decision that the ledger has already, of a run that was killed right after it, stands.
        """
        lab = self._lab
        for decided, is_live, _ in self._decisions():
            if decided == phase:
                return is_live
        await lab.put_live(policy)
        if not lab.config.gate.tasks:
            self._keep(phase, policy, "without being compared, because gate.tasks is 0")
            return True
        self._stages[phase] = await evaluate(lab, phase)
        # Thousands of resamples take tenths of a second. A thread keeps the live view running.
        rivalries = await asyncio.to_thread(self._compare, phase, self._rivals())
        stages = self._records(rivalries[0].before), self._stages[phase]
        power = await asyncio.to_thread(gate_power.observed, *stages, lab.config)
        alarm, held_out = await self._alarm(phase, *stages)
        refused = [alarm] if alarm and lab.config.gate.alarm == "refuse" else []
        faults = [*dict.fromkeys(fault for rivalry in rivalries for fault in rivalry.faults), *refused]
        self._write(phase, rivalries, power, live=not faults, held_out=held_out)
        verdicts = {rivalry.before: rivalry.verdict for rivalry in rivalries}
        if faults:
            await lab.restore(policies.live(lab.run.events()).values())
            lab.run.ledger(ROLLED_BACK, phase=phase, policy=policy.dump(), verdicts=verdicts, reasons=faults)
            lab.view.decision(f"gate: {policy.version} was rolled back: {'; '.join(faults)}")
            return False
        self._keep(phase, policy, _beside(rivalries[0]), verdicts=verdicts)
        return True

    async def _alarm(
        self, stage: str, before: Sequence[RolloutRecord], after: Sequence[RolloutRecord]
    ) -> tuple[str | None, dict[str, Any]]:
        """What the second judge says against the new stage, and its figures; see `training.gate.alarm`."""
        lab, auditor = self._lab, None
        try:
            if (auditor := lab.second_judge()) is None:
                return None, {}
            sentence, figures = await alarm(before, after, auditor, lab.config, lab.run.path / GATE / AUDITS)
        except (UnreachableError, ConfigError) as error:
            lab.view.warn(f"gate: the second judge was not asked about {stage}: {error}")
            return None, {}
        finally:
            if auditor is not None:
                await auditor.aclose()
        if sentence is not None:
            lab.view.warn(f"gate: {stage}: {sentence}")
        return sentence, figures

    def summary(self) -> None:
        """Compare every stage with the one before and the base, also stages of the run's earlier processes."""
        if not self._lab.config.gate.tasks:
            return
        rows: list[tuple[Rivalry, str]] = []
        for phase, is_live, before in self._decisions():
            rivals = [rival for rival in dict.fromkeys((before, BASE)) if self._records(rival)]
            if rivals and self._records(phase):
                rows += [(rivalry, LIVE if is_live else BACK) for rivalry in self._compare(phase, rivals)]
        if rows:
            self._lab.view.table(table(rows))

    def _rivals(self) -> list[str]:
        """The rivals of a new stage: the stage before, the base, and the best stage so far."""
        stages = [stage for stage in self._kept() if self._records(stage)]
        best = max(stages, key=lambda stage: _quality(self._records(stage)))
        return [stage for stage in dict.fromkeys((stages[-1], BASE, best)) if stage in stages]

    def _compare(self, phase: str, rivals: Sequence[str]) -> list[Rivalry]:
        records, config = self._records(phase), self._lab.config
        return [compare(self._records(rival), records, (rival, phase), config) for rival in rivals]

    def _keep(self, phase: str, policy: Policy, why: str, **fields: Any) -> None:
        self._lab.run.ledger(WENT_LIVE, phase=phase, policy=policy.dump(), artifacts=[policy.folder], **fields)
        self._lab.view.decision(f"gate: {policy.version} is live, {why}")

    def _write(
        self,
        phase: str,
        rivalries: Sequence[Rivalry],
        power: gate_power.Power | None,
        *,
        live: bool,
        held_out: Mapping[str, Any],
    ) -> None:
        lab = self._lab
        file = lab.run.path / GATE / f"{phase}.json"
        file.parent.mkdir(exist_ok=True)
        content = {
            "phase": phase,
            "kept": live,
            "comparisons": [asdict(rivalry) for rivalry in rivalries],
            "power": None if power is None else power.dump(),
            **({"second_judge": held_out} if held_out else {}),
        }
        file.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
        for rivalry in rivalries:
            lab.metrics.log("gate", None, {"stage": phase, **_flat(rivalry)})
        lab.view.table(table([(rivalry, LIVE if live else BACK) for rivalry in rivalries]))
        if power is not None:
            lab.view.note(f"gate: as the answers changed here, {power.words()}")

    def _decisions(self) -> Iterator[tuple[str, bool, str]]:
        """Each decision of the run: the phase, True if its policy was kept, and the stage that was live before."""
        live = BASE
        for event in self._lab.run.events():
            if event["event"] in (WENT_LIVE, ROLLED_BACK):
                is_live = event["event"] == WENT_LIVE
                yield event["phase"], is_live, live
                live = event["phase"] if is_live else live

    def _kept(self) -> list[str]:
        """The stages that were kept, in order. The last one is live."""
        return [BASE, *(phase for phase, is_live, _ in self._decisions() if is_live)]

    def _records(self, stage: str) -> list[RolloutRecord]:
        """The validation rollouts of `stage`, in the order of the tasks; empty if some are missing."""
        if stage not in self._stages:
            stage_inputs = inputs(self._lab.dataset, self._lab.config, stage)
            rollouts = self._lab.run.rollouts(stage_inputs[0].phase)
            by_task = {data["task_id"]: RolloutRecord.load(data) for data in rollouts}
            complete = all(input_.task.id in by_task for input_ in stage_inputs)
            self._stages[stage] = [by_task[input_.task.id] for input_ in stage_inputs] if complete else []
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
    for number, (rivalry, fate) in enumerate(rows):
        if number == 0 or rows[number - 1][0].after != rivalry.after:
            failed = f", {rivalry.failed[1]} failed" if any(rivalry.failed) else ""
            reward = "-" if rivalry.reward is None else f"{rivalry.reward.after:z.3f}"
            right = "-" if rivalry.failed[1] == rivalry.alignment.n else f"{100 * rivalry.alignment.after:z.1f}"
            shown.add_row(rivalry.after, reward, right, f"{fate}{failed}", style="bold")
        measures = _cell(rivalry.reward, 1, 3), _cell(rivalry.alignment, 100, 1)
        shown.add_row(f"  {rivalry.before}", *measures, rivalry.verdict)
    return shown


COLOURS = {"better": "green", "worse": "red"}


def _cell(comparison: Comparison | None, scale: float, digits: int) -> Text:
    if comparison is None:
        return Text("-")
    return Text(_difference(comparison, scale, digits), style=COLOURS.get(str(comparison.verdict), ""))


def _difference(comparison: Comparison, scale: float, digits: int) -> str:
    ends = [] if comparison.low is None or comparison.high is None else [comparison.low, comparison.high]
    change, *around = (signed(scale * value, digits) for value in (comparison.difference, *ends))
    return change + (f" [{', '.join(around)}]" if around else "")


def _beside(rivalry: Rivalry) -> str:
    """A comparison in a few words."""
    reward = "" if rivalry.reward is None else f"reward {_difference(rivalry.reward, 1, 3)}, "
    return f"{rivalry.verdict} beside {rivalry.before}: {reward}right {_difference(rivalry.alignment, 100, 1)} points"


def _quality(records: Sequence[RolloutRecord]) -> tuple[float, float]:
    """Sort key for the quality of a stage: right answers, then reward."""
    figures = summarize(records)
    return figures["alignment_rate"], figures["reward"] or 0.0


def _flat(rivalry: Rivalry) -> dict[str, Any]:
    """The differences with their intervals by measure, for the metrics."""
    values: dict[str, Any] = {"against": rivalry.before, "verdict": rivalry.verdict, "failed": rivalry.failed[1]}
    for name, comparison in (("reward", rivalry.reward), ("alignment", rivalry.alignment)):
        if comparison is not None:
            means = {"before": comparison.before, "after": comparison.after, "mean": comparison.difference}
            test = {"low": comparison.low, "high": comparison.high, "n": comparison.n, "verdict": comparison.verdict}
            values |= {f"{name}/{key}": value for key, value in {**means, **test}.items()}
    return values
