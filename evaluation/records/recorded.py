"""Reading a study from the run directory:

    rollouts/gate-<stage>.jsonl            rollouts of training's gate         (validation split only)
    rollouts/eval-<split>-<stage>.jsonl    rollouts of chimera.eval
    rollouts/eval-...--repairs.jsonl       wrong answers replayed with one step made right
    evaluation/<split>/baselines.jsonl     a line: one answer of a baseline, or one of several calls that vote
    evaluation/<split>/audit.jsonl         a line: the second judge's scores of one rollout
    evaluation/<split>/canaries.jsonl      a line: one judge's scores of one canary protocol

If several lines are about the same thing, the last counts. Lines about other tasks, stages, policies or judges are
ignored.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from chimera.config.sections.evaluation import EvaluationConfig
from chimera.core.errors import RunError
from chimera.run.directory import Run, short_name
from evaluation.baselines.simple import SAMPLED
from evaluation.baselines.votes import counted, with_consistency
from evaluation.causes.blame import examined
from evaluation.records.repairs import SUFFIX, Examined
from evaluation.records.rollouts import RolloutRecord
from evaluation.records.study import GATE, BaselineAnswer, Judged, Place, Plan, Split, Stage, StageAnswers, Study

Row = TypeVar("Row")


def load_study(run: Run, plan: Plan, settings: EvaluationConfig | None = None) -> Study:
    """Read the records of `plan`.

    Args:
        settings: The evaluation's settings; None: those of the run.

    Raises:
        RunError: A rollout of the plan is not recorded, or a record contradicts the plan.
    """
    answers: dict[str, StageAnswers] = {}
    for stage in plan.stages:
        entries, failed_before = _read(run, plan, stage)
        keys = [(task.id, repeat) for repeat in range(plan.repeats) for task in plan.tasks]
        if missing := [key for key in keys if key not in entries]:
            task, repeat = missing[0]
            raise RunError(
                f"stage {stage.name} of run {run.name!r} lacks {len(missing)} of {len(keys)} rollouts, the first is "
                f"task {task}, repeat {repeat}: run python -m chimera.eval --run {run.name}"
            )
        rows = [entries[key] for key in keys]
        records, places = zip(*rows, strict=True)
        answers[stage.name] = StageAnswers(stage, records, places, len(failed_before.intersection(keys)))
    config = run.config if settings is None else run.config.model_copy(update={"evaluation": settings})
    baseline_rows = baseline_answers(run, plan)
    baselines = [row for row in baseline_rows if row.sample == 0]
    baselines += counted(plan, answers, baseline_rows, consistency=with_consistency(config))
    auditor = (settings or run.config.evaluation).auditor.name
    audit = {score.subject: score for score in _side(run, plan, "audit", Judged) if score.model == auditor}
    canaries = {
        (score.subject, score.judge): score
        for score in _side(run, plan, "canaries", Judged)
        if score.judge == "judge" or score.model == auditor
    }
    wrong = _examined(run, plan, answers, config.evaluation.blame)
    return Study(run, plan, answers, tuple(baselines), audit, tuple(canaries.values()), settings, wrong)


def _examined(run: Run, plan: Plan, answers: Mapping[str, StageAnswers], limit: int) -> tuple[Examined, ...]:
    """The wrong answers that `evaluation.blame` asks for, with their replays."""
    if not limit:
        return ()
    there = repaired(run, plan)
    cases: list[Examined] = []
    for case in examined(plan, {name: stage.records for name, stage in answers.items()}, limit):
        if case.repair is not None:
            if case.repair.rollout_id not in there:
                raise RunError(
                    f"rollout {case.record.rollout_id} of run {run.name!r} lacks the replay with its first wrong step "
                    f"made right (evaluation.blame={limit}): run python -m chimera.eval --run {run.name}"
                )
            replay, place = there[case.repair.rollout_id]
            case = replace(case, replay=replay, place=f"{place.file}:{place.line}")
        cases.append(case)
    return tuple(cases)


def repaired(run: Run, plan: Plan) -> dict[str, tuple[RolloutRecord, Place]]:
    """The recorded replays of the last stage's wrong answers, by their ids; of several with one id the last."""
    phase = repairs_phase(plan)
    file = str(run.rollouts_file(phase).relative_to(run.path))
    records = enumerate(map(RolloutRecord.load, run.rollouts(phase)), start=1)
    return {record.rollout_id: (record, Place(file, line)) for line, record in records}


def repairs_phase(plan: Plan) -> str:
    """The phase under which replays of the last stage's wrong answers are recorded."""
    return short_name(f"{own_phase(plan.split, plan.final)}{SUFFIX}")


Recorded = dict[tuple[str, int], tuple[RolloutRecord, Place]]
"""Records by task id and repeat, each with its place."""


def recorded(run: Run, plan: Plan, stage: Stage) -> Recorded:
    """The recorded rollouts of `stage` for tasks of the plan.

    Rollouts of chimera.eval are preferred to those of training's gate. Records made with other policies are ignored,
    and so are records of other data's tasks with equal ids.

    Raises:
        RunError: A record has another label than the plan.
    """
    return _read(run, plan, stage)[0]


def _read(run: Run, plan: Plan, stage: Stage) -> tuple[Recorded, set[tuple[str, int]]]:
    """The result of `recorded`, and the keys of rollouts that failed first and succeeded when made again."""
    tasks = {task.id: task for task in plan.tasks}
    entries: Recorded = {}
    failed: set[tuple[str, int]] = set()
    for phase in phases_of(run, plan.split, stage):
        for line, data in enumerate(run.rollouts(phase), start=1):
            if data["task_id"] not in tasks or data["repeat"] >= plan.repeats:
                continue
            record, task = RolloutRecord.load(data), tasks[data["task_id"]]
            # A failed rollout has no outputs, so its question is unknown.
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
            key = record.task_id, record.repeat
            if key in entries and entries[key][0].status == "failed":
                failed.add(key)
            entries[key] = (record, place)
    return entries, {key for key in failed if entries[key][0].status != "failed"}


def phases_of(run: Run, split: Split, stage: Stage) -> Sequence[str]:
    """The phases under which rollouts of `stage` are recorded. Later phases replace earlier ones."""
    phase = own_phase(split, stage)
    as_gate = split == "val" and stage.kind == "sequence" and stage.temperature == run.gate_temperature
    return [f"{GATE}-{stage.own_name}", phase] if as_gate else [phase]


def own_phase(split: Split, stage: Stage) -> str:
    """The phase under which chimera.eval records rollouts of `stage`."""
    sampled = "" if stage.temperature is None else f"-at-{stage.temperature:g}"
    return short_name(f"eval-{split}-{stage.own_name}{sampled}")


def side_file(split: Split, name: str) -> str:
    """The file of `name` ("baselines", "audit", "canaries"), relative to the run."""
    return f"evaluation/{split}/{name}.jsonl"


def baseline_answers(run: Run, plan: Plan) -> list[BaselineAnswer]:
    """The recorded answers to the plan's tasks, without those of other stages, temperatures or further repeats."""
    tasks, stages = {task.id for task in plan.tasks}, {"", *(stage.name for stage in plan.alone)}
    answers: dict[tuple[str, str, int, int], BaselineAnswer] = {}
    for answer in _side(run, plan, "baselines", BaselineAnswer):
        kind, _, stage = answer.baseline.partition("@")
        sampled = kind not in SAMPLED or answer.temperature == plan.final.temperature
        if answer.task_id in tasks and answer.repeat < plan.repeats and stage in stages and sampled:
            answers[answer.baseline, answer.task_id, answer.repeat, answer.sample] = answer
    return list(answers.values())


def _side(run: Run, plan: Plan, name: str, kind: Callable[..., Row]) -> Iterator[Row]:
    return (kind(**data) for data in run.lines(side_file(plan.split, name)))
