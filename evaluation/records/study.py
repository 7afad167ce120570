"""One evaluation as data: which tasks and stages it is about, and everything that was recorded for it.

A report is a pure function of a study, and a study is read from the run directory alone
(`evaluation.records.recorded`), so that every number of a report can be computed again later.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, Literal

from chimera.config.evaluation import EvaluationConfig
from chimera.config.roles import JUNIORS, RolesConfig
from chimera.config.tree import Config
from chimera.core.types import Label, ResearchTask, Source
from chimera.run.directory import Run
from chimera.run.policies import Policy
from evaluation.records.rollouts import RolloutRecord

Split = Literal["val", "test"]
BASE = "base"
GATE = "gate"
"""The gate records its rollouts of a stage as `gate-<stage>`; the seeds of all are made from this name."""


@dataclass(frozen=True, slots=True)
class PlannedTask:
    """What a report needs to know of a task."""

    id: str
    goal: str
    label: Label
    level: int | None = None

    @classmethod
    def of(cls, task: ResearchTask) -> "PlannedTask":
        """Of a task of the data."""
        return cls(task.id, task.goal, task.label, task.level)


@dataclass(frozen=True, slots=True)
class Stage:
    """The society with some of the run's learned policies.

    Attributes:
        name: "base", the phase after which it was live, or "only-<phase>" when just that phase's policy is used. The
            last of the sequence is "final" when it was asked for so.
        title: In words.
        kind: "sequence" for what was live during the run, "alone" for a single policy put on the base.
        policies: The learned policies; what has none is as the run began.
        versions: The policy versions that its rollouts must carry, by logical model, and under "selection".
        own_name: Its name without "final": what its rollouts are recorded under.
    """

    name: str
    title: str
    kind: Literal["sequence", "alone"]
    policies: tuple[Policy, ...]
    versions: Mapping[str, str]
    own_name: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "own_name", self.own_name or self.name)

    def dump(self) -> dict[str, Any]:
        """Plain data."""
        return {**asdict(self), "policies": [policy.dump() for policy in self.policies]}

    @classmethod
    def load(cls, data: Mapping[str, Any]) -> "Stage":
        """The inverse of `dump`."""
        return cls(**{**data, "policies": tuple(Policy.load(policy) for policy in data["policies"])})


@dataclass(frozen=True, slots=True)
class Plan:
    """What is evaluated.

    Attributes:
        split: The run's test tasks, or its validation tasks.
        source: Whose tasks they are.
        data: The data in words.
        tasks: The tasks, in the order of the data.
        repeats: Rollouts of each task in each stage, with different seeds; the same seeds in every stage.
        stages: In the order of the run, single policies last.
        official: Whether these are PubMedQA's official test items, all of them.
        alone_slot: The slot whose model also answers alone, as one junior does.
    """

    split: Split
    source: Source
    data: str
    tasks: tuple[PlannedTask, ...]
    repeats: int
    stages: tuple[Stage, ...]
    official: bool = False
    alone_slot: str = RolesConfig().slots()[JUNIORS[1]]

    @property
    def final(self) -> Stage:
        """The last stage of the sequence; the last of all when the sequence has no stage but the first."""
        sequence = [stage for stage in self.stages if stage.kind == "sequence"]
        return sequence[-1] if len(sequence) > 1 else self.stages[-1]

    @property
    def alone(self) -> list[Stage]:
        """The stages whose model also answers alone: the first, and the last if its weights are others."""
        first, last = self.stages[0], self.final
        return [first] if first.versions.get(self.alone_slot) == last.versions.get(self.alone_slot) else [first, last]

    @property
    def ends(self) -> list[Stage]:
        """The first stage and the last: those that baselines are made from."""
        return list({stage.name: stage for stage in (self.stages[0], self.final)}.values())

    def alone_of(self, stage: Stage) -> Stage:
        """The stage, of `alone`, under whose name the model of `stage` answers alone."""
        return next(
            one for one in self.alone if one.versions.get(self.alone_slot) == stage.versions.get(self.alone_slot)
        )

    def dump(self) -> dict[str, Any]:
        """Plain data for the report."""
        return {
            "split": self.split,
            "source": self.source,
            "data": self.data,
            "tasks": [asdict(task) for task in self.tasks],
            "repeats": self.repeats,
            "stages": [stage.dump() for stage in self.stages],
            "official": self.official,
            "alone_slot": self.alone_slot,
        }

    @classmethod
    def load(cls, data: Mapping[str, Any]) -> "Plan":
        """The inverse of `dump`."""
        tasks, stages = (PlannedTask(**task) for task in data["tasks"]), map(Stage.load, data["stages"])
        return cls(**{**data, "tasks": tuple(tasks), "stages": tuple(stages)})


@dataclass(frozen=True, slots=True)
class Place:
    """Where a record stands: a file of the run directory and a line of it, from 1."""

    file: str
    line: int


@dataclass(frozen=True, slots=True)
class StageAnswers:
    """The rollouts of one stage.

    Attributes:
        records: One for each task and repeat, failed ones too: all tasks of repeat 0 first, in the plan's order.
        places: Where each is recorded, in the same order.
        second_tries: How many of them stand in place of an earlier one that had failed.
    """

    stage: Stage
    records: tuple[RolloutRecord, ...]
    places: tuple[Place, ...]
    second_tries: int = 0

    @property
    def by_training(self) -> bool:
        """Whether training's gate made some of the rollouts: only training's name the runner process they ran in."""
        return any(record.worker is not None for record in self.records)


@dataclass(frozen=True, slots=True)
class BaselineAnswer:
    """What a baseline answered.

    Attributes:
        answer: None when it gave none; `error` says why.
        calls: Model calls for this answer; None if that was not recorded.
        prompt_tokens: Tokens read in them.
        completion_tokens: Tokens written in them.
        sample: Which of several calls with the same prompt this is, from 0; further ones only vote.
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


@dataclass(frozen=True, slots=True)
class Judged:
    """One judge's scores by criterion, all None when it gave none; `error` says why.

    Attributes:
        subject: The rollout's id, for a canary also which: "<rollout id>/<canary>".
        judge: "judge" for the one that training uses, "auditor" for the second.
        model: What stands behind it, in words.
    """

    subject: str
    judge: Literal["judge", "auditor"]
    model: str
    scores: Mapping[str, float | None]
    error: str | None = None


@dataclass(frozen=True)
class Study:
    """Everything a report is made from."""

    run: Run
    plan: Plan
    answers: Mapping[str, StageAnswers]
    baselines: tuple[BaselineAnswer, ...]
    audit: Mapping[str, Judged]
    canaries: tuple[Judged, ...]
    settings: EvaluationConfig | None = None

    @cached_property
    def config(self) -> Config:
        """The run's configuration, with the evaluation's own settings when it has some."""
        config = self.run.config
        return config if self.settings is None else config.model_copy(update={"evaluation": self.settings})
