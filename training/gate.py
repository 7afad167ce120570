"""The gate: what a phase learned is compared with what was live before, on the same held-out tasks and seeds.

Only a result that is clearly worse is rolled back; the user is shown the comparison either way.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from rich.table import Table

from chimera import policies
from chimera.config import Config
from chimera.data import Dataset
from chimera.errors import ConfigError, RunError
from chimera.policies import ROLLED_BACK, WENT_LIVE, Policy
from evaluation.paired import Difference, paired_difference, sign_test
from evaluation.plan import gate_tasks
from evaluation.rollouts import RolloutInput, RolloutRecord
from evaluation.study import BASE, GATE
from training.summary import aligned, summarize

if TYPE_CHECKING:
    from training.lab import Lab

Verdict = Literal["better", "worse", "no difference shown"]


@dataclass(frozen=True, slots=True)
class Comparison:
    """A stage beside the one that it would replace.

    Attributes:
        reward: Over the tasks that have a reward in both; None when there are fewer than two.
        alignment: Share of right answers over all tasks; a failed rollout has none right.
        failed: Failed rollouts before and after.
        failures_p: p-value of the change in failures.
    """

    before: str
    after: str
    reward: Difference | None
    alignment: Difference
    failed: tuple[int, int]
    failures_p: float
    verdict: Verdict

    def dump(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


def check(config: Config, dataset: Dataset) -> None:
    """Raise ConfigError if there are fewer held-out tasks than the gate compares on."""
    if config.gate.enabled and config.gate.tasks > len(dataset.validation):
        raise ConfigError(
            f"gate.tasks={config.gate.tasks}, but there are {len(dataset.validation)} held-out tasks: ask for fewer, "
            "or raise data.validation_share"
        )


def inputs(dataset: Dataset, config: Config, stage: str) -> list[RolloutInput]:
    """The held-out rollouts of `stage`: the same tasks and seeds for every stage of runs with one seed."""
    return [
        replace(RolloutInput.of(task, GATE, 0, config.seed), phase=f"{GATE}-{stage}")
        for task in gate_tasks(dataset, config)
    ]


async def evaluate(lab: "Lab", stage: str) -> list[RolloutRecord]:
    """Run the society as it is now on the held-out tasks; in the order of the tasks.

    Raises:
        RunError: Not one rollout succeeded.
    """
    wanted = inputs(lab.dataset, lab.config, stage)
    found: dict[str, RolloutRecord] = {}
    with lab.view.phase(f"{GATE}-{stage}", len(wanted), lab.policy_versions, table=False):
        async for record in lab.rollouts(wanted, mode="val"):
            found[record.task_id] = record
            lab.view.add(record)
    records = [found[given.task.id] for given in wanted]
    if all(record.status == "failed" for record in records):
        raise RunError(f"all {len(records)} held-out rollouts failed; the first: {records[0].error}")
    figures = {key: value for key, value in summarize(records).items() if not isinstance(value, dict)}
    lab.metrics.log(f"{GATE}-{stage}", None, figures)
    lab.metrics.protocols(f"{GATE}-{stage}", records)
    return records


def compare(
    before: Sequence[RolloutRecord], after: Sequence[RolloutRecord], stages: tuple[str, str], config: Config
) -> Comparison:
    """Compare two stages on the same tasks.

    'worse' is a reward whose interval lies below 0, or significantly more failures; 'better' the opposite.
    """
    gate = config.gate
    settings = {"confidence": gate.confidence, "resamples": gate.resamples, "seed": config.seed}
    pairs = [
        (old.reward, new.reward)
        for old, new in zip(before, after, strict=True)
        if old.reward is not None and new.reward is not None
    ]
    reward = paired_difference(*zip(*pairs, strict=True), **settings) if len(pairs) > 1 else None
    fits = [[float(aligned(record) or False) for record in records] for records in (before, after)]
    failed = [[record.status == "failed" for record in records] for records in (before, after)]
    changes = [new - old for old, new in zip(*failed, strict=True)]
    failures_p = sign_test(changes.count(1), changes.count(-1))
    more_failures = failures_p < 1 - gate.confidence and sum(changes) > 0
    verdict: Verdict = "no difference shown"
    if more_failures or (reward is not None and reward.high < 0):
        verdict = "worse"
    elif reward is not None and reward.low > 0:
        verdict = "better"
    return Comparison(
        *stages,
        reward=reward,
        alignment=paired_difference(fits[0], fits[1], **settings),
        failed=(sum(failed[0]), sum(failed[1])),
        failures_p=failures_p,
        verdict=verdict,
    )


class Gate:
    """Lets what phases learned go live, or not. One for a run; it remembers the stage that is live.

    Args:
        lab: The run's lab.
    """

    def __init__(self, lab: "Lab") -> None:
        self._lab = lab
        self._stages: dict[str, list[RolloutRecord]] = {}
        self._live = next(
            (event["phase"] for event in reversed(list(lab.run.events())) if event["event"] == WENT_LIVE), BASE
        )

    async def open(self) -> None:
        """Evaluate what is live, before the first phase that learns."""
        if self._lab.config.gate.enabled and self._live not in self._stages:
            self._stages[self._live] = await evaluate(self._lab, self._live)

    async def decide(self, phase: str, policy: Policy) -> bool:
        """Put `policy` live, evaluate it, and keep it or roll it back; tells whether it was kept."""
        lab = self._lab
        await lab.put_live(policy)
        if not lab.config.gate.enabled:
            self._keep(phase, policy)
            return True
        self._stages[phase] = await evaluate(lab, phase)
        found = compare(self._stages[self._live], self._stages[phase], (self._live, phase), lab.config)
        self._write(phase, found)
        if found.verdict == "worse":
            await lab.restore(policies.live(lab.run.events()))
            lab.run.ledger(ROLLED_BACK, phase=phase, policy=policy.dump(), verdict=found.verdict)
            lab.view.warn(f"{phase}: clearly worse than {found.before}, so {policy.version} was rolled back")
            return False
        self._keep(phase, policy)
        return True

    def _keep(self, phase: str, policy: Policy) -> None:
        self._lab.run.ledger(WENT_LIVE, phase=phase, policy=policy.dump(), artifacts=[policy.folder])
        self._lab.view.note(f"{phase}: {policy.version} is live")
        self._live = phase

    def _write(self, phase: str, found: Comparison) -> None:
        lab = self._lab
        file = lab.run.path / GATE / f"{phase}.json"
        file.parent.mkdir(exist_ok=True)
        file.write_text(json.dumps(found.dump(), indent=2) + "\n", encoding="utf-8")
        lab.metrics.log("gate", None, {"stage": phase, **_flat(found)})
        lab.view.table(table([found]))

    def summary(self) -> None:
        """Show every stage beside the base, also those of the run's earlier processes."""
        lab = self._lab
        decided = self._decided()
        if not (decided and lab.config.gate.enabled):
            return
        stages = {stage: self._recorded(stage) for stage in (BASE, *decided)}
        base = stages.pop(BASE)
        found = [compare(base, records, (BASE, stage), lab.config) for stage, records in stages.items() if records]
        if base and found:
            lab.view.table(table(found))

    def _decided(self) -> list[str]:
        events = self._lab.run.events()
        return list(dict.fromkeys(one["phase"] for one in events if one["event"] in (WENT_LIVE, ROLLED_BACK)))

    def _recorded(self, stage: str) -> list[RolloutRecord]:
        """The held-out rollouts of `stage`, in the order of the tasks; empty when they are not complete."""
        wanted = inputs(self._lab.dataset, self._lab.config, stage)
        found = {data["task_id"]: RolloutRecord.load(data) for data in self._lab.run.rollouts(wanted[0].phase)}
        return [found[one.task.id] for one in wanted] if all(one.task.id in found for one in wanted) else []


def table(comparisons: Sequence[Comparison]) -> Table:
    """Comparisons for the terminal."""
    shown = Table(title=f"held-out tasks, paired: n = {comparisons[0].alignment.n}", title_justify="left")
    shown.add_column("stage\nagainst", no_wrap=True)
    shown.add_column("reward\ndifference", justify="right", no_wrap=True)
    shown.add_column("right, %\ndifference, points", justify="right", no_wrap=True)
    shown.add_column("verdict", width=13)
    for one in comparisons:
        reward = "-" if one.reward is None else f"{one.reward.after:.3f}\n{_interval(one.reward, 1, 3)}"
        fits = f"{100 * one.alignment.after:.1f}\n{_interval(one.alignment, 100, 1)}"
        verdict = one.verdict + (f", {one.failed[1]} failed" if any(one.failed) else "")
        shown.add_row(f"{one.after}\n{one.before}", reward, fits, verdict, end_section=True)
    return shown


def _interval(found: Difference, scale: float, digits: int) -> str:
    mean, low, high = (f"{scale * value:+.{digits}f}" for value in (found.mean, found.low, found.high))
    return f"{mean} [{low}, {high}]"


def _flat(found: Comparison) -> dict[str, Any]:
    values: dict[str, Any] = {"against": found.before, "verdict": found.verdict, "failed": found.failed[1]}
    for name, difference in (("reward", found.reward), ("alignment", found.alignment)):
        if difference is not None:
            values |= {f"{name}/{key}": value for key, value in difference.dump().items()}
    return values
