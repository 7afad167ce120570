"""One evaluation as data: its tasks and stages, and everything that was recorded for it.

A report is a pure function of a study, and a study is read from the run directory alone
(`evaluation.conduct.recorded_study`), so that every number of a report can be computed again later.
"""

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any, Literal

from pydantic import TypeAdapter

from chimera.config.roles import JUNIORS, RolesConfig
from chimera.config.sections.evaluation import EvaluationConfig
from chimera.config.tree import Config
from chimera.core.types import LABELS, Label, ResearchTask, Source
from chimera.run.directory import Run
from chimera.run.policies import Policy
from evaluation.records.coalitions import Learned, policies_of
from evaluation.records.repairs import Examined
from evaluation.records.rollouts import RolloutRecord

Split = Literal["val", "test"]
Kind = Literal["sequence", "alone", "left out", "at base", "coalition", "faults"]
SPLITS: Mapping[Split, str] = {"val": "validation", "test": "test"}
"""What readers call a split's tasks."""
BASE = "base"
GATE = "gate"
"""The gate records its rollouts of a stage as `gate-<stage>`. The seeds of all evaluations derive from this name."""


@dataclass(frozen=True, slots=True)
class PlannedTask:
    """The parts of a task that a report needs. `studies`: number of documents that answer it together, 0 for one."""

    id: str
    goal: str
    label: Label
    level: int | None = None
    studies: int = 0

    @classmethod
    def of(cls, task: ResearchTask) -> "PlannedTask":
        return cls(task.id, task.goal, task.label, task.level, len(task.studies))


@dataclass(frozen=True, slots=True)
class Stage:
    """The society with some of the run's learned policies.

    Attributes:
        name: "base", the phase after which it was live, "only-<phase>" if only that phase's policy is used,
            "final-without-<phase>" if all others are, "final-with-<slot>-at-base" if a place is as it was at the start
            ("selection" for the choice among hypotheses), or "only-<phase>-<phase>". The last stage of the sequence
            is "final" if it was asked for by this name.
        kind: "sequence" for a stage that was live during the run, "alone" for a single policy on the base, "left out"
            for the last stage without one phase, "at base" for the last stage with one place as it was at the start,
            "faults" for the last stage with failing tools, "coalition" for any others. The first that fits counts.
        policies: The learned policies. Places without one are in the state in which the run began.
        versions: The policy versions that its rollouts must have, by logical model and under "selection".
        own_name: Its name in the run, never "final". Its rollouts are recorded under it.
        temperature: At which the society's models are sampled; None for each slot's own.
        faults: Share of tool calls that fail (`evaluation.rollout.faults`).
    """

    name: str
    title: str
    kind: Kind
    policies: tuple[Policy, ...]
    versions: Mapping[str, str]
    own_name: str = ""
    temperature: float | None = None
    faults: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "own_name", self.own_name or self.name)


@dataclass(frozen=True, slots=True)
class Plan:
    """The tasks and stages to evaluate.

    Attributes:
        split: The run's test tasks, or its validation tasks.
        tasks: The tasks, in random order.
        repeats: Rollouts of each task in each stage. Repeats have different seeds, which are equal in all stages.
        stages: The stages in the order of the run, those that were never live last.
        official: True if the tasks are all of PubMedQA's official test items.
        alone_slot: The slot whose model also answers alone, as one junior does.
        learned: What each phase learned that was kept, in the order of the run.
        combining_slot: The slot whose model combines findings, also where each study is read by a call without roles.
            "" where no findings are combined.
    """

    split: Split
    source: Source
    data: str
    tasks: tuple[PlannedTask, ...]
    repeats: int
    stages: tuple[Stage, ...]
    official: bool = False
    alone_slot: str = RolesConfig().slots()[JUNIORS[1]]
    learned: Learned = field(default_factory=dict)
    labels: tuple[Label, ...] = LABELS
    combining_slot: str = ""

    @property
    def final(self) -> Stage:
        """The last stage of the sequence, or the last of all whose tools work if the sequence has only one."""
        sequence = [stage for stage in self.stages if stage.kind == "sequence"]
        return sequence[-1] if len(sequence) > 1 else [stage for stage in self.stages if not stage.faults][-1]

    @property
    def alone(self) -> list[Stage]:
        """The stages whose models also answer without roles: the first, and the last if their weights differ."""
        first, last = self.stages[0], self.final
        return [first] if self.without_roles(first) == self.without_roles(last) else [first, last]

    @property
    def ends(self) -> list[Stage]:
        """The first and the last stage, from which baselines are made."""
        return list({stage.name: stage for stage in (self.stages[0], self.final)}.values())

    def alone_of(self, stage: Stage) -> Stage:
        """The stage of `alone` that has the same models as `stage`, and under whose name these answer without roles."""
        return next(candidate for candidate in self.alone if self.without_roles(candidate) == self.without_roles(stage))

    def without_roles(self, stage: Stage) -> str:
        """The versions, in `stage`, of the models that also answer without roles."""
        slots = dict.fromkeys((self.alone_slot, self.combining_slot))
        return ", ".join(stage.versions[slot] for slot in slots if slot in stage.versions)

    def phases_at(self, stage: Stage) -> int:
        """The number of phases that had learned at a stage of the sequence."""
        learned = list(self.learned) or [each.own_name for each in self.stages if each.kind == "sequence"][1:]
        return learned.index(stage.own_name) + 1 if stage.own_name in learned else 0

    def coalition(self, phases: Collection[str]) -> Stage | None:
        """The stage with what `phases` learned and nothing else; None if it is not in the plan."""
        policies = policies_of(self.learned, phases)
        return next((stage for stage in self.stages if stage.policies == policies and not stage.faults), None)

    def dump(self) -> dict[str, Any]:
        """As plain data. A task that one document answers does not say so."""
        dumped = asdict(self)
        for task in dumped["tasks"]:
            if not task["studies"]:
                del task["studies"]
        return dumped

    @classmethod
    def load(cls, data: Mapping[str, Any]) -> "Plan":
        return _PLAN.validate_python(data)


_PLAN = TypeAdapter(Plan)


@dataclass(frozen=True, slots=True)
class Place:
    """Place of a record: a file of the run directory and a line number, from 1."""

    file: str
    line: int


@dataclass(frozen=True, slots=True)
class StageAnswers:
    """The rollouts of one stage.

    Attributes:
        records: One for each task and repeat, failed ones too. All tasks of repeat 0 come first, in the plan's order.
        places: The place of each record, in the same order.
        second_tries: Number of records that replace an earlier failed rollout.
    """

    stage: Stage
    records: tuple[RolloutRecord, ...]
    places: tuple[Place, ...]
    second_tries: int = 0

    @property
    def by_gate(self) -> bool:
        """True if they are just the rollouts by which training's gate decided."""
        return not self.second_tries and self._in_gate == {True}

    def timed_like(self, other: "StageAnswers") -> bool:
        """True if latencies compare: both made in training's gate or in an evaluation, beside the same other work."""
        return self._in_gate == other._in_gate

    @property
    def _in_gate(self) -> set[bool]:
        """For rollouts that training's gate made True, for those of an evaluation False."""
        return {record.phase.startswith(f"{GATE}-") for record in self.records}


@dataclass(frozen=True, slots=True)
class BaselineAnswer:
    """One answer of a baseline.

    Attributes:
        answer: The answer. If it is None, `error` says why.
        calls: Model calls for this answer; None if they were not recorded.
        sample: Number of the call among calls with the same prompt, from 0. Calls after the first only vote.
        temperature: At which the model was sampled; None for the slot's own, and for answers that are not sampled.
        models: The versions of the models that answer without roles; "" if the baseline uses none.
        goal: The question; empty in records of earlier versions, and for answers that are not recorded.
        tool_calls: The `evaluation.agent_tool_calls` with which an agent answered.
    """

    baseline: str
    task_id: str
    repeat: int
    answer: Label | None
    error: str | None = None
    calls: int | None = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    sample: int = 0
    temperature: float | None = None
    models: str = ""
    goal: str = ""
    tool_calls: int | None = None


@dataclass(frozen=True, slots=True)
class Judged:
    """One judge's scores by criterion. If the judge gave none, all are None and `error` says why.

    Attributes:
        subject: The rollout's id; for a canary "<rollout id>/<canary>".
        judge: "judge" for training's judge, "auditor" for the second judge.
    """

    subject: str
    judge: Literal["judge", "auditor"]
    model: str
    scores: Mapping[str, float | None]
    error: str | None = None


@dataclass(frozen=True)
class Study:
    """All data from which a report is made."""

    run: Run
    plan: Plan
    answers: Mapping[str, StageAnswers]
    baselines: tuple[BaselineAnswer, ...]
    audit: Mapping[str, Judged]
    canaries: tuple[Judged, ...]
    settings: EvaluationConfig | None = None
    examined: tuple[Examined, ...] = ()

    @cached_property
    def config(self) -> Config:
        """The run's configuration, with the evaluation's settings if there are any."""
        config = self.run.config
        return config if self.settings is None else config.model_copy(update={"evaluation": self.settings})
