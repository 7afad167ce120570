"""Recomputes the data behind a report: rollouts from their traces, scores, baselines.

Each function returns one sentence for each difference.
"""

import math
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from agents.findings import COMBINED
from agents.society import Start
from agents.supervisor import VOTE
from agents.visit.prompting import opening, payload_of
from chimera.config.roles import JUDGE
from chimera.config.tree import Config
from chimera.core.errors import ChimeraError
from chimera.core.types import ResearchTask
from chimera.data.tasks import Dataset
from chimera.rubric.grader import grade
from chimera.run.policies import BY_MODEL
from evaluation.baselines.simple import majority, reader, tfidf
from evaluation.conduct.repairs import start_of
from evaluation.records.repairs import REPAIR, Repair
from evaluation.records.rollouts import RolloutInput, RolloutRecord
from evaluation.records.study import GATE, Judged, Stage, Study
from evaluation.rollout.replay import Replay
from evaluation.scores.auditor import CHECKLIST, work_of
from evaluation.scores.canaries import canaries_of
from evaluation.scores.checklist import checklist
from evaluation.scores.judge import ROLE
from evaluation.traces import spans
from evaluation.traces.calls import last_outcome, model_calls, untraced

REPORTED = ("outputs", "reward", "parts", "counts", "tokens", "visits", "weights_versions", "seconds", "error")
"""Fields of a record that must equal those of the trace's outcome."""
TOLERANCE = 1e-9
"""Tolerance for numbers: another machine may add in another order."""


@dataclass(frozen=True, slots=True)
class Verification:
    """Result of a verification, or of its part on rollouts.

    Attributes:
        problems: The problems, one sentence each; empty if the report is true.
        head: Hash of the last entry. Comparing it shows whether the ledger was replaced.
    """

    problems: list[str]
    entries: int = 0
    head: str | None = None
    rollouts: int = 0
    replayed: int = 0


async def rollouts(study: Study, dataset: Dataset) -> Verification:
    """Compare every rollout of a study with its task, its trace, and the result of replaying its trace.

    Failed rollouts are not replayed, nor are rollouts whose record says that an exchange is missing from the trace.
    """
    tasks = {task.id: task for task in dataset.tasks}
    replay, problems, replayed, seen = Replay(study.config, study.run.path), [], 0, dict[str, str]()
    every = [
        (answers.stage, record, place)
        for answers in study.answers.values()
        for record, place in zip(answers.records, answers.places, strict=True)
    ]
    for stage, record, place in every:
        where = f"{place.file}:{place.line} (rollout {record.rollout_id})"
        if seen.setdefault(record.rollout_id, f"{place.file}:{place.line}") != f"{place.file}:{place.line}":
            problems.append(f"{where} has the id of {seen[record.rollout_id]}: a rollout counts once")
        unlike = [*_unlike_task(record, study.config.seed, tasks[record.task_id])]
        unlike += _unlike_stage(record, stage, study.config)
        if not unlike:
            unlike, done = await _unlike_trace(record, study.run.path, replay, tasks[record.task_id])
            replayed += done
        problems += [f"{where}: {problem}" for problem in unlike]
    return Verification(problems, rollouts=len(every), replayed=replayed)


async def repairs(study: Study, dataset: Dataset) -> Verification:
    """Compare every replay of a wrong answer with the repair that it is of, and with its own trace, replayed."""
    tasks = {task.id: task for task in dataset.tasks}
    replay, problems, replayed = Replay(study.config, study.run.path), [], 0
    for case in study.examined:
        if case.repair is None or case.replay is None:
            continue
        repair, record, task = case.repair, case.replay, tasks[case.record.task_id]
        unlike = [*_unlike_task(record, study.config.seed, task), *_unlike_repair(record, repair, study)]
        if not unlike:
            build = partial(start_of, repair, replay, study.run.path, task)
            unlike, done = await _unlike_trace(record, study.run.path, replay, task, build)
            replayed += done
        problems += [f"{case.place} (replay {record.rollout_id}): {problem}" for problem in unlike]
    replays = sum(case.replay is not None for case in study.examined)
    return Verification(problems, rollouts=replays, replayed=replayed)


def _unlike_repair(record: RolloutRecord, repair: Repair, study: Study) -> Iterator[str]:
    """Differences between a replay and its repair."""
    of, stage = repair.of, study.plan.final
    if (record.task_id, record.repeat) != (of.task_id, of.repeat):
        yield f"it is about task {record.task_id}, repeat {record.repeat}, not about those of {of.rollout_id}"
    if dict(record.policy_versions) != dict(stage.versions):
        yield f"its policies are not those of {stage.name}"
    if record.status == "failed":
        return
    if repair.step == "juniors":
        yield from _unlike_stage(record, stage, study.config)
    selection = record.outputs.get("selection") or {}
    if repair.step == "supervisor" and (selection.get("policy"), selection.get("author")) != (REPAIR, repair.author):
        yield f"its selection is {selection.get('author')!r} by {selection.get('policy')!r}, not the repair's"


def _unlike_task(record: RolloutRecord, seed: int, task: ResearchTask) -> Iterator[str]:
    """Differences between a record's task and the data, and a wrong seed."""
    expected = RolloutInput.of(task, GATE, record.repeat, seed)
    options = [option.name for option in task.options]
    stated = {
        "source": task.source,
        "level": task.level,
        "label": task.label,
        "options": options,
        "seed": expected.seed,
    }
    for name, value in stated.items():
        if getattr(record, name) != value:
            yield f"its {name} is {getattr(record, name)!r}, but must be {value!r}"
    if (record.status == "failed") != (record.error is not None):
        yield f"its status is {record.status!r}, but its error is {record.error!r}"
    final = {"answer": "final_answer", "decision": "final_decision", "veto": "final_veto"}
    for name, key in final.items():
        if getattr(record, name) != record.outputs.get(key):
            yield f"its {name} is {getattr(record, name)!r}, but its outputs say {record.outputs.get(key)!r}"


def _unlike_stage(record: RolloutRecord, stage: Stage, config: Config) -> Iterator[str]:
    """Sentences about models, and a chooser of the hypothesis, that are not the stage's."""
    for slot, versions in record.weights_versions.items():
        if config.models[slot].has_weights and versions != [stage.versions.get(slot)]:
            yield f"{slot} answered as {', '.join(versions)}, but {stage.name} has {stage.versions.get(slot)}"
    expected = next((policy.version for policy in stage.policies if policy.part == "choice"), BY_MODEL)
    for selection in (record.outputs.get("selection") or {}, *record.outputs.get("choices", ())):
        policy = selection.get("policy", expected)
        if policy in (COMBINED, VOTE):  # The society's graph says so, and the replay counts again.
            continue
        if policy != expected:
            yield f"its selection was made by {policy!r}, but must be by {expected!r}"
        elif expected == BY_MODEL and selection.get("propensities") is not None:
            yield "its selection was explored, which only training does"


async def _unlike_trace(
    record: RolloutRecord,
    folder: Path,
    replay: Replay,
    task: ResearchTask,
    begin: Callable[[], Awaitable[Start]] | None = None,
) -> tuple[list[str], bool]:
    """Differences between record, trace and replayed trace, and True if the trace was replayed.

    `begin` gives the start of a rollout that went on from a recorded one; None: it is a whole rollout.
    """
    if record.trace is None:
        return ["it has no trace"], False
    try:
        trace = spans.read(folder / record.trace)
        reported = last_outcome(trace)
    except (ChimeraError, ValueError, TypeError) as error:
        return [str(error)], False
    if reported is None:
        return [f"{record.trace} holds no outcome"], False
    attempt, outcome = reported
    problems = [
        f"its {name} differs from that in {record.trace}"
        for name in REPORTED
        if any(differences(getattr(record, name), outcome.get(name)))
    ]
    if any(span.rollout_id != record.rollout_id for span in trace):
        problems.append(f"{record.trace} is the trace of another rollout")
    if problems or record.status == "failed":
        return problems, False
    if missing := len(untraced(trace)):
        return [f"{record.trace} lacks {missing} model calls"], False
    try:
        calls = model_calls(trace, attempt_id=attempt)
        start = None if begin is None else await begin()
        again = await replay.run(record, calls, outcome["calls"], task, start)
    except (ChimeraError, KeyError, TypeError, ValueError, SyntaxError) as error:
        return [f"{record.trace}, replayed: {error}"], False
    for name in ("outputs", "parts", "reward"):
        for key, stated, value in differences(getattr(record, name), getattr(again, name), name):
            problems.append(f"{key} is {stated!r}, but {value!r} when {record.trace} is replayed")
    return problems, True


def scores(study: Study) -> Iterator[str]:
    """Recompute scores of the checklist and of the rubric, which need no model."""
    records = {record.rollout_id: record for answers in study.answers.values() for record in answers.records}
    for score in study.audit.values():
        record = records.get(score.subject)
        if score.model == CHECKLIST and record is not None and record.status == "succeeded":
            yield from _unlike_scores("audit", score, checklist(work_of(record)))
    works = dict(canaries_of(study.answers[study.plan.stages[0].name].records))
    for score in study.canaries:
        work = works.get(score.subject)
        if work is None:
            continue
        if score.judge == "auditor" and score.model == CHECKLIST:
            yield from _unlike_scores("canaries", score, checklist(work))
        elif score.judge == "judge" and study.config.models[study.config.slot(JUDGE)].kind == "rubric":
            inputs = {key: value for key, value in work.items() if key != "goal"}
            payload = payload_of(opening(ROLE, work["goal"], **inputs))
            yield from _unlike_scores("canaries", score, grade(ROLE.schema.__name__, payload))


def baselines(study: Study, dataset: Dataset) -> Iterator[str]:
    """Recompute the baselines that need no model."""
    tasks_by_id = {task.id: task for task in dataset.tasks}
    tasks = [tasks_by_id[task.id] for task in study.plan.tasks]
    recorded = {(answer.baseline, answer.task_id, answer.repeat): answer for answer in study.baselines}
    for answers in (majority, tfidf, reader):
        for again in answers(dataset.train, tasks):
            stated = recorded.get((again.baseline, again.task_id, again.repeat))
            if stated != again:
                text = "nothing" if stated is None else repr(stated.answer)
                yield f"baseline {again.baseline} answers {again.answer!r} to task {again.task_id}, recorded is {text}"


def differences(stated: Any, computed: Any, place: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Where two JSON values differ: the dotted path and both values. Numbers may differ by `TOLERANCE`."""
    if isinstance(stated, Mapping) and isinstance(computed, Mapping):
        for key in dict.fromkeys([*stated, *computed]):
            at = f"{place}.{key}".removeprefix(".")
            if key in stated and key in computed:
                yield from differences(stated[key], computed[key], at)
            else:
                yield at, stated.get(key), computed.get(key)
    elif isinstance(stated, list | tuple) and isinstance(computed, list | tuple) and len(stated) == len(computed):
        for number, (left, right) in enumerate(zip(stated, computed, strict=True)):
            yield from differences(left, right, f"{place}.{number}")
    elif not _equal(stated, computed):
        yield place, stated, computed


def _equal(stated: Any, computed: Any) -> bool:
    if isinstance(stated, bool) or isinstance(computed, bool):
        return stated is computed
    if isinstance(stated, int | float) and isinstance(computed, int | float):
        return math.isclose(stated, computed, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
    return stated == computed


def _unlike_scores(file: str, score: Judged, again: Mapping[str, Any]) -> Iterator[str]:
    if any(differences(dict(score.scores), dict(again))):
        yield f"{file}: the scores of {score.subject} are not those that {score.model} gives"
