"""One evaluation as data: which tasks and stages it is about, and everything that was recorded for it.

A report is a pure function of a study, and a study is read from the run directory alone, so that every number of a
report can be computed again later:

    rollouts/evaluation-<stage>.jsonl      rollouts of training's gate         (held-out split only)
    rollouts/eval-<split>-<stage>.jsonl    rollouts of chimera.eval
    evaluation/<split>/baselines.jsonl     one answer of one baseline a line
    evaluation/<split>/audit.jsonl         the second judge's scores of one rollout a line
    evaluation/<split>/canaries.jsonl      one judge's scores of one canary protocol a line

Of several lines about the same thing the last counts.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, Literal, TypeVar

from chimera.config import Config
from chimera.config_evaluation import EvaluationConfig
from chimera.errors import RunError
from chimera.jsonl import read_lines
from chimera.policies import Policy
from chimera.runs import Run
from chimera.types import Label, ResearchTask, Source
from evaluation.rollouts import RolloutRecord

Row = TypeVar("Row")
Split = Literal["val", "test"]
BASE = "base"
GATE = "evaluation"
"""Training's gate records its rollouts of a stage as `evaluation-<stage>`; the seeds of all are made from this name."""


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
        name: "base", the phase after which it was live, or "only-<phase>" when just that phase's policy is used; the last
            of the sequence is "final" when it was asked for so.
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
        split: The held-out tasks of the run, or the official test tasks.
        source: Whose tasks they are.
        data: The data in words.
        tasks: The tasks, in the order of the data.
        repeats: Rollouts of each task in each stage, with different seeds; the same seeds in every stage.
        stages: In the order of the run, single policies last.
    """

    split: Split
    source: Source
    data: str
    tasks: tuple[PlannedTask, ...]
    repeats: int
    stages: tuple[Stage, ...]

    @property
    def official(self) -> bool:
        """Whether these are PubMedQA's 500 official test items, all of them."""
        return self.split == "test" and self.source == "pubmedqa" and len(self.tasks) == OFFICIAL_ITEMS

    @property
    def final(self) -> Stage:
        """The last stage of the sequence; the last of all when the sequence has no stage but the first."""
        sequence = [stage for stage in self.stages if stage.kind == "sequence"]
        return sequence[-1] if len(sequence) > 1 else self.stages[-1]

    @property
    def alone(self) -> list[Stage]:
        """The stages whose junior model also answers alone: the first, and the last if its junior is another."""
        first, last = self.stages[0], self.final
        return [first] if first.versions.get("junior") == last.versions.get("junior") else [first, last]

    def dump(self) -> dict[str, Any]:
        """Plain data for the report."""
        return {
            "split": self.split,
            "source": self.source,
            "data": self.data,
            "tasks": [asdict(task) for task in self.tasks],
            "repeats": self.repeats,
            "stages": [stage.dump() for stage in self.stages],
        }

    @classmethod
    def load(cls, data: Mapping[str, Any]) -> "Plan":
        """The inverse of `dump`."""
        tasks, stages = (PlannedTask(**task) for task in data["tasks"]), map(Stage.load, data["stages"])
        return cls(**{**data, "tasks": tuple(tasks), "stages": tuple(stages)})


OFFICIAL_ITEMS = 500


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
    """

    stage: Stage
    records: tuple[RolloutRecord, ...]
    places: tuple[Place, ...]


@dataclass(frozen=True, slots=True)
class BaselineAnswer:
    """What a baseline answered; `answer` is None when it gave none, and `error` says why."""

    baseline: str
    task_id: str
    repeat: int
    answer: Label | None
    error: str | None = None


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


def load_study(run: Run, plan: Plan, settings: EvaluationConfig | None = None) -> Study:
    """Read what is recorded for `plan`.

    Args:
        run: The run.
        plan: What is evaluated.
        settings: The evaluation's settings; the run's own without them.

    Raises:
        RunError: A rollout of the plan is not recorded, or a record contradicts the plan.
    """
    answers: dict[str, StageAnswers] = {}
    for stage in plan.stages:
        found = recorded(run, plan, stage)
        wanted = [(task.id, repeat) for repeat in range(plan.repeats) for task in plan.tasks]
        if missing := [key for key in wanted if key not in found]:
            task, repeat = missing[0]
            raise RunError(
                f"stage {stage.name} of run {run.name!r} lacks {len(missing)} of {len(wanted)} rollouts, the first is "
                f"task {task}, repeat {repeat}: run python -m chimera.eval --run {run.name}"
            )
        rows = [found[key] for key in wanted]
        answers[stage.name] = StageAnswers(stage, tuple(row for row, _ in rows), tuple(place for _, place in rows))
    baselines = {(one.baseline, one.task_id, one.repeat): one for one in _baselines(run, plan)}
    auditor = (settings or run.config.evaluation).auditor.name
    audit = {one.subject: one for one in _side(run, plan, "audit", Judged) if one.model == auditor}
    canaries = {
        (one.subject, one.judge): one
        for one in _side(run, plan, "canaries", Judged)
        if one.judge == "judge" or one.model == auditor
    }
    return Study(run, plan, answers, tuple(baselines.values()), audit, tuple(canaries.values()), settings)


Recorded = dict[tuple[str, int], tuple[RolloutRecord, Place]]
"""Records by task id and repeat, each with its place."""


def recorded(run: Run, plan: Plan, stage: Stage) -> Recorded:
    """The rollouts of `stage` that are recorded for tasks of the plan.

    Those of chimera.eval come before those of training's gate. Records made with other policies are passed over, and so
    are those of other data's tasks that have the same ids.

    Raises:
        RunError: A record has another label than the plan.
    """
    tasks = {task.id: task for task in plan.tasks}
    found: Recorded = {}
    for phase in phases_of(plan.split, stage):
        for line, data in enumerate(run.rollouts(phase), start=1):
            if data["task_id"] not in tasks or data["repeat"] >= plan.repeats:
                continue
            record, task = RolloutRecord.load(data), tasks[data["task_id"]]
            # A failed rollout has no outputs that tell what was asked.
            goal = record.outputs.get("research_goal", task.goal)
            same_task = (record.source, goal) == (plan.source, task.goal)
            if dict(record.policy_versions) != dict(stage.versions) or not same_task:
                continue
            if record.label != task.label:
                raise RunError(
                    f"{run.rollouts_file(phase)}, line {line}: the label of task {task.id} is {record.label!r}, but "
                    f"{task.label!r} in what is evaluated: the data has changed since"
                )
            place = Place(str(run.rollouts_file(phase).relative_to(run.path)), line)
            found[record.task_id, record.repeat] = (record, place)
    return found


def phases_of(split: Split, stage: Stage) -> Sequence[str]:
    """Under which phases rollouts of `stage` are recorded; later ones replace earlier ones."""
    own = own_phase(split, stage)
    return [f"{GATE}-{stage.own_name}", own] if split == "val" and stage.kind == "sequence" else [own]


def own_phase(split: Split, stage: Stage) -> str:
    """The phase under which chimera.eval records rollouts of `stage`."""
    return f"eval-{split}-{stage.own_name}"


def side_file(split: Split, name: str) -> str:
    """Where `name` ("baselines", "audit", "canaries") is recorded, relative to the run."""
    return f"evaluation/{split}/{name}.jsonl"


def _baselines(run: Run, plan: Plan) -> Iterator[BaselineAnswer]:
    """The answers to the plan's tasks; not those that another evaluation had from other stages or further repeats."""
    tasks, stages = {task.id for task in plan.tasks}, {"", *(stage.name for stage in plan.alone)}
    for one in _side(run, plan, "baselines", BaselineAnswer):
        if one.task_id in tasks and one.repeat < plan.repeats and one.baseline.partition("@")[2] in stages:
            yield one


def _side(run: Run, plan: Plan, name: str, kind: Callable[..., Row]) -> Iterator[Row]:
    return (kind(**data) for data in read_lines(run.path / side_file(plan.split, name)))
