"""Reads the reports of several runs for a study: finds the stages and their values on each task.

Everything is computed from report.json alone.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from chimera.core.errors import RunError
from chimera.core.files import parse_json
from chimera.core.types import LABELS, Label
from chimera.run.policies import Policy
from evaluation.measures.metrics import Key
from evaluation.records.coalitions import policies_of
from evaluation.records.plan import ALONE
from evaluation.records.study import BASE

FINAL = "final"
"""In a study, the last stage of a run's sequence, whatever its name in the run."""

Value = TypeVar("Value")


@dataclass(frozen=True)
class SeedRun:
    """One run of a study with its report.

    Attributes:
        seed: Training seed.
        data_seed: Seed of the tasks.
    """

    name: str
    seed: int
    data_seed: int
    report: Mapping[str, Any]

    @classmethod
    def read(cls, name: str, seed: int, data_seed: int, file: Path) -> "SeedRun":
        """The run whose report.json is `file`; raises RunError if the file is not there, or is no report."""
        try:
            report = parse_json(file.read_bytes())
            fields = {key: report[key] for key in NEEDED} | {key: report.get(key) for key in LATER}
            return cls(name, seed, data_seed, fields)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise RunError(
                f"{file} is no report of a run ({type(error).__name__}: {error}): remove it and evaluate {name} again"
            ) from error

    @cached_property
    def tasks(self) -> dict[str, Label]:
        """Label of each task, by id, in the order of the plan."""
        return {task["id"]: task["label"] for task in self.report["plan"]["tasks"]}

    @cached_property
    def labels(self) -> tuple[Label, ...]:
        """The answers that the tasks offer."""
        return tuple(self.report["plan"].get("labels", LABELS))

    @cached_property
    def sequence(self) -> dict[str, str]:
        """Names in the report of the stages of the run's sequence, by the phase after which they were live."""
        return {
            stage.get("own_name") or stage["name"]: stage["name"]
            for stage in self.report["plan"]["stages"]
            if stage["kind"] == "sequence"
        }

    @property
    def rolled_back(self) -> list[str]:
        """The phases whose policy the gate refused."""
        return list(self.report["run"]["rolled_back"])

    @property
    def phases(self) -> list[str]:
        """The phases that the run has finished, in their order."""
        return list(self.report["run"]["phases"])

    @cached_property
    def learning(self) -> set[str]:
        """The phases that learned a policy, whether it stayed live or not."""
        return {*self.report["plan"]["learned"], *self.rolled_back}

    @cached_property
    def learned(self) -> dict[str, Policy]:
        """The policy of each phase that was kept, in the order of the run."""
        return {phase: Policy.load(policy) for phase, policy in self.report["plan"]["learned"].items()}

    def coalition(self, phases: Collection[str]) -> str:
        """The name of the stage with what `phases` learned and nothing else; raises RunError if the report lacks it."""
        policies = policies_of(self.learned, phases)
        for stage in self.report["plan"]["stages"]:
            if tuple(map(Policy.load, stage["policies"])) == policies:
                return str(stage["name"])
        raise RunError(f"the report of {self.name} has Shapley values, but no stage with {sorted(phases)} alone")

    def stage(self, name: str) -> str | None:
        """The name of stage `name` in the report; None if the report has no such stage.

        If the gate rolled a phase back, the stage after it is the one that stayed live, and "only-<phase>" is the base.

        Args:
            name: "base", "final", a phase, or "only-<phase>".
        """
        if name == FINAL:
            whole = len(self.sequence) > 1 or all(
                stage["kind"] in ("sequence", "faults") for stage in self.report["plan"]["stages"]
            )
            return [*self.sequence.values()][-1] if whole else None
        if name.startswith(ALONE):
            return self._alone(name)
        if name in self.sequence:
            return self.sequence[name]
        if name not in self.rolled_back:
            return None
        place = self.phases.index(name)
        earlier = [phase for phase in self.phases[:place] if phase in self.learning]
        return self.stage(earlier[-1] if earlier else BASE)

    def _alone(self, name: str) -> str | None:
        phase = name.removeprefix(ALONE)
        for stage in self.report["plan"]["stages"]:
            same = (stage.get("own_name") or stage["name"]) == phase and len(stage["policies"]) == 1
            if stage["name"] == name or same:
                return str(stage["name"])
        return self.sequence.get(BASE) if phase in self.rolled_back else None

    def values(self, stage: str, metric: str) -> dict[Key, float]:
        rows = self.report["outcomes"][stage]["rollouts"]
        return {(row["task"], row["repeat"]): row["values"][metric] for row in rows if metric in row["values"]}

    def answers(self, stage: str) -> dict[Key, Label | None]:
        """What each rollout of a stage answered; None for no answer."""
        rows = self.report["outcomes"][stage]["rollouts"]
        return {(row["task"], row["repeat"]): row["answer"] for row in rows}

    def baseline(self, name: str) -> dict[Key, float]:
        """A baseline's share of right answers to each task that it was asked; empty if the report lacks the baseline.

        A report stores them together with those of its last stage.

        Args:
            name: As in `baselines`. If the end has the base's models, its baselines are named by the base.
        """
        kind, _, stage = name.partition("@")
        names = [f"{kind}@{self.stage(FINAL)}", f"{kind}@{BASE}"] if stage == FINAL else [name]
        reported = {pair.partition(":")[0]: rows for pair, rows in reversed(self.report["pairs"].items())}
        pairs = [reported[title] for title in names if title in reported]
        return {(task, 0): fit for task, _, _, fit, _ in pairs[0] if fit is not None} if pairs else {}

    @property
    def baselines(self) -> list[str]:
        """Its baselines, those of the end's models with "@final": the phase by which the end is called may differ
        from run to run."""
        end = self.stage(FINAL)
        parts = [name.partition("@") for name in self.report["baselines"]]
        return [f"{kind}@{FINAL}" if stage == end != BASE else f"{kind}{at}{stage}" for kind, at, stage in parts]


NEEDED = ("run", "settings", "plan", "metrics", "outcomes", "baselines", "pairs", "written")
"""The parts of a report that a study reads."""
LATER = ("blame",)
"""Parts that reports of earlier versions lack."""


def by_data_seed(runs: Iterable[SeedRun]) -> dict[int, list[SeedRun]]:
    """The runs of each data seed, in their order."""
    groups: dict[int, list[SeedRun]] = {}
    for run in runs:
        groups.setdefault(run.data_seed, []).append(run)
    return groups


def by_task(values: Mapping[Key, Value]) -> dict[str, list[Value]]:
    """The values of each task's repeats."""
    task_values: dict[str, list[Value]] = {}
    for (task, _), value in values.items():
        task_values.setdefault(task, []).append(value)
    return task_values
