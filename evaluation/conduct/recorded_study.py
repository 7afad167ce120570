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

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TypeVar

from chimera.config.sections.evaluation import EvaluationConfig
from chimera.core.errors import RunError
from chimera.run.directory import Run
from evaluation.baselines.simple import SAMPLED
from evaluation.baselines.votes import counted, with_consistency
from evaluation.causes.blame import examined
from evaluation.records.recorded import repaired, side_file, with_failed
from evaluation.records.repairs import Examined
from evaluation.records.study import BaselineAnswer, Judged, Plan, StageAnswers, Study

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
        entries, failed_before = with_failed(run, plan, stage)
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
    baseline_rows = baseline_answers(run, plan, config.evaluation.agent_tool_calls)
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


def baseline_answers(run: Run, plan: Plan, tool_calls: int) -> list[BaselineAnswer]:
    """The recorded answers to the plan's tasks, without those of other models, temperatures or further repeats, and of
    agents with other than `tool_calls` tool calls."""
    goals = {task.id: ("", task.goal) for task in plan.tasks}
    models = {stage.name: plan.without_roles(stage) for stage in plan.alone}
    answers: dict[tuple[str, str, int, int], BaselineAnswer] = {}
    for answer in _side(run, plan, "baselines", BaselineAnswer):
        kind, _, stage = answer.baseline.partition("@")
        sampled = kind not in SAMPLED or answer.temperature == plan.final.temperature
        alike = sampled and answer.models == models.get(stage, "") and answer.tool_calls in (None, tool_calls)
        if answer.goal in goals.get(answer.task_id, ()) and answer.repeat < plan.repeats and alike:
            answers[answer.baseline, answer.task_id, answer.repeat, answer.sample] = answer
    return list(answers.values())


def _side(run: Run, plan: Plan, name: str, kind: Callable[..., Row]) -> Iterator[Row]:
    return (kind(**data) for data in run.lines(side_file(plan.split, name)))
