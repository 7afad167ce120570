"""Where rollouts and other records of an evaluation lie in the run directory, and which of them a plan is about."""

from collections.abc import Sequence

from chimera.core.errors import RunError
from chimera.run.directory import Run, short_name
from evaluation.records.repairs import SUFFIX
from evaluation.records.rollouts import RolloutRecord
from evaluation.records.study import GATE, Place, Plan, Split, Stage


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
    return with_failed(run, plan, stage)[0]


def with_failed(run: Run, plan: Plan, stage: Stage) -> tuple[Recorded, set[tuple[str, int]]]:
    """The result of `recorded`, and the keys of rollouts that failed first and succeeded when made again."""
    tasks = {task.id: task for task in plan.tasks}
    entries: Recorded = {}
    failed: set[tuple[str, int]] = set()
    for phase in phases_of(run, plan.split, stage):
        for line, data in enumerate(run.rollouts(phase), start=1):
            if data["task_id"] not in tasks or data["repeat"] >= plan.repeats:
                continue
            record, task = RolloutRecord.load(data), tasks[data["task_id"]]
            goal = record.goal or record.outputs.get("research_goal", task.goal)
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
