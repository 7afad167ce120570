"""Builds report.json, a pure function of a study.

Every number comes with the rollouts that it was computed from, named by file and line of the run directory.
"""

import json
import os
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

from chimera.config.tree import Config
from chimera.core.types import Label
from chimera.run.policies import Place, version_key
from evaluation.baselines import simple as baselines
from evaluation.baselines import standing
from evaluation.causes import shapley
from evaluation.causes.blame import blame
from evaluation.causes.faults import faults
from evaluation.causes.lost import first_wrong_step, lost, recorded_steps
from evaluation.measures import families, official
from evaluation.measures.comparison import (
    POWER,
    Comparison,
    Comparisons,
    adjust,
    compare,
    compare_answers,
    exchanges,
    families_of,
    too_few_permutations,
    verdict_sentence,
)
from evaluation.measures.gated import GATED, as_gate
from evaluation.measures.metrics import (
    LATENCY,
    Metric,
    TaskAnswers,
    answer_metrics,
    answers_by_baseline,
    answers_of,
    hits,
    measured,
    metrics_of,
    outcomes,
    stage_metrics,
    task_means,
    values_of,
)
from evaluation.measures.verdicts import margins
from evaluation.records import coalitions
from evaluation.records.plan import ALONE
from evaluation.records.rollouts import RolloutRecord
from evaluation.records.study import Plan, Stage, StageAnswers, Study
from evaluation.report import side_by_side
from evaluation.report.guidance import learned_guidance
from evaluation.report.notes import about_run, cautions, notes, players
from evaluation.report.plots.base import Plot
from evaluation.scores.judge_health import health

FORMAT = "chimera-report"
VERSION = 3
Key = TypeVar("Key")


def build(study: Study, plots: Sequence[Plot], folder: Path) -> dict[str, Any]:
    """The report of `study`: the plain data of report.json.

    Args:
        folder: The report's folder. The run is named relative to it.
    """
    plan, config = study.plan, study.config
    metrics = metrics_of(config)
    compared = compare_all(study)
    sizes = {name: len(tests) for name, tests in families_of(compared, config, _main(plan)).items()}
    about_families = families.about(study.run, config, sizes)
    warnings = [families.note(about_families), too_few_permutations(compared, config, _main(plan))]
    report = {
        "format": FORMAT,
        "version": VERSION,
        "run": {**about_run(study.run), "path": os.path.relpath(study.run.path.resolve(), folder.resolve())},
        "settings": {
            **config.evaluation.model_dump(mode="json"),
            "power": POWER,
            "permutations": exchanges(config),
            "seed": config.seed,
            "reward": config.reward.model_dump(mode="json"),
            "margins": dict(margins(config)),
        },
        "plan": plan.dump(),
        "players": players(config),
        "data": plan.data,
        "metrics": {
            metric.name: {
                "title": metric.title,
                "unit": metric.unit,
                "better": metric.better,
                "primary": metric.primary,
            }
            for metric in metrics
        },
        "cautions": cautions(study),
        "verdict": _verdict(plan, compared, config),
        "families": about_families,
        "stages": {
            name: {
                metric: mean.dump()
                for metric, mean in stage_metrics(answers, plan, config).items()
                if metric != LATENCY or answers.timed_like(study.answers[plan.final.name])
            }
            for name, answers in study.answers.items()
        },
        "outcomes": {
            name: _outcome(answers, measured(config, answers), plan.labels) for name, answers in study.answers.items()
        },
        "comparisons": {pair: {name: row.dump() for name, row in rows.items()} for pair, rows in compared.items()},
        "pairs": {pair: _pairs(study, *pair.split(":")) for pair in compared},
        "ablation": _ablation(plan, compared, config),
        "shapley": {name: share.dump() for name, share in shapley.shares(study).items()},
        "lost": {
            name: loss
            for name, answers in study.answers.items()
            if answers.stage.kind == "sequence" or answers.stage == plan.final
            if (loss := lost(answers)) is not None
        },
        "blame": blame(study),
        "faults": faults(study),
        "baselines": _baselines(study),
        "work": standing.work(study),
        "standing": standing.beside(study),
        "strongest": standing.strongest(study),
        **({"undivided": undivided} if (undivided := standing.undivided(study)) else {}),
        "levels": standing.levels(study),
        **({"studies": by_studies} if (by_studies := standing.by_studies(study)) else {}),
        "predictions": official.summary(study),
        "references": [asdict(reference) for reference in official.REFERENCES] if plan.official else [],
        "judges": health(study),
        "guidance": learned_guidance(study.run.path, config.society, plan.learned),
        "side_by_side": _side_by_side(study),
        "plots": [asdict(plot) for plot in plots],
        "notes": [*filter(None, warnings), *notes(study)],
    }
    return json.loads(json.dumps(report, allow_nan=False))


def stage_pairs(plan: Plan) -> list[tuple[str, str]]:
    """The pairs of stages to compare: each of the sequence with the one before it, the first with those, with each
    phase alone and with the last, each stage that lacks one phase, or one place's policy, with the one that has all,
    and the last with itself while tools fail."""
    sequence = [stage.name for stage in plan.stages if stage.kind == "sequence"]
    first, *others = plan.stages
    compared = [other.name for other in others if other.kind in ("sequence", "alone") or other == plan.final]
    whole = [*_left_out(plan).values(), *_at_base(plan).values()]
    without = ((before.name, after.name) for before, after in whole)
    faulty = ((plan.final.name, stage.name) for stage in plan.stages if stage.faults)
    return list(dict.fromkeys([*pairwise(sequence), *((first.name, name) for name in compared), *without, *faulty]))


def compare_all(study: Study) -> dict[str, dict[str, Comparison]]:
    """All comparisons of the report with corrected p-values: pairs of stages, then each baseline with the last stage.
    The main comparison is of the first with the last stage. What the gate decided on has the gate's verdict."""
    plan, config = study.plan, study.config
    comparisons = {
        f"{before}:{after}": {
            **compare(study.answers[before], study.answers[after], plan, config),
            **_of_gate(study, before, after),
        }
        for before, after in stage_pairs(plan)
    }
    final = plan.final.name
    society = answers_of(study.answers[final])
    for name, answers in answers_by_baseline(study.baselines).items():
        comparisons[f"{name}:{final}"] = compare_answers(answers, society, plan, config)
    return adjust(comparisons, config, _main(plan))


def _of_gate(study: Study, before: str, after: str) -> dict[str, Comparison]:
    """The gate's comparison of two stages; empty unless the study is on just the tasks and rollouts of the gate."""
    plan, config, sides = study.plan, study.run.config, (study.answers[before], study.answers[after])
    if config.evaluation.confidence != study.config.evaluation.confidence:
        return {}
    if plan.split != "val" or len(plan.tasks) != config.gate.tasks or not all(side.by_gate for side in sides):
        return {}
    comparisons = {name: as_gate(sides[0].records, sides[1].records, name, config) for name in GATED}
    return {name: comparison for name, comparison in comparisons.items() if comparison is not None}


def _main(plan: Plan) -> str:
    return f"{plan.stages[0].name}:{plan.final.name}"


def _verdict(plan: Plan, compared: Comparisons, config: Config) -> dict[str, Any]:
    pair = _main(plan)
    if pair not in compared:
        return {"comparison": None, "text": f"Only {plan.final.title} was evaluated, so there is nothing to compare."}
    return {
        "comparison": pair,
        "text": verdict_sentence(plan.stages[0].title, plan.final.title, compared[pair], config),
    }


def _outcome(answers: StageAnswers, metrics: Sequence[Metric], labels: Sequence[Label]) -> dict[str, Any]:
    """Counts, and one row for each rollout: its result, its value of every metric, and its place."""
    counts, steps = outcomes(answers, labels), recorded_steps(answers.records)
    rows = [
        {
            "id": record.rollout_id,
            "task": record.task_id,
            "repeat": record.repeat,
            "status": record.status,
            "error": record.error,
            "answer": record.answer,
            "decision": record.decision,
            "veto": record.veto,
            "label": record.label,
            "lost": first_wrong_step(record) if steps else None,
            "reward": record.reward,
            "parts": record.parts,
            "values": _values(record, metrics),
            "file": place.file,
            "line": place.line,
            "trace": record.trace,
        }
        for record, place in zip(answers.records, answers.places, strict=True)
    ]
    return {**counts, "count": len(rows), "rollouts": rows}


def _values(record: RolloutRecord, metrics: Sequence[Metric]) -> dict[str, float]:
    values = {metric.name: metric.value(record) for metric in metrics if metric.value is not None}
    return {name: value for name, value in values.items() if value is not None}


def _pairs(study: Study, before: str, after: str) -> list[list[Any]]:
    """For each task: both rewards, then both shares of right answers, means over repeats. Baselines have no reward."""
    sides = [_by_task(study, name) for name in (before, after)]
    rows: list[list[Any]] = []
    for task in study.plan.tasks:
        (old_reward, old_fit), (new_reward, new_fit) = (side[task.id] for side in sides)
        rows.append([task.id, old_reward, new_reward, old_fit, new_fit])
    return rows


def _by_task(study: Study, name: str) -> dict[str, tuple[float | None, float | None]]:
    """Mean reward and share of right answers of each task. A missing answer is wrong."""
    records, answers = study.answers[name].records if name in study.answers else (), _answers(study, name)
    rewards = task_means((task.id for task in study.plan.tasks), values_of(lambda record: record.reward, records))
    rows: dict[str, tuple[float | None, float | None]] = {}
    for task in study.plan.tasks:
        (reward,), (fits,) = rewards.get(task.id, (None,)), hits(answers, [task]) or (None,)
        rows[task.id] = reward, fits
    return rows


def _answers(study: Study, name: str) -> TaskAnswers:
    if name in study.answers:
        return answers_of(study.answers[name])
    return answers_by_baseline(study.baselines)[name]


def _left_out(plan: Plan) -> dict[str, tuple[Stage, Stage]]:
    """For each phase the stage with all other phases and the one with all, if the plan has both and they differ."""
    return _beside_whole(plan, {phase: plan.learned.keys() - {phase} for phase in plan.learned})


def _at_base(plan: Plan) -> dict[Place, tuple[Stage, Stage]]:
    """For each trained place the stage with it back at base and the one with all phases, if the plan has both."""
    places = coalitions.places(plan.learned)
    return _beside_whole(plan, {place: coalitions.at_base(plan.learned, place) for place in places})


def _beside_whole(plan: Plan, without: Mapping[Key, Collection[str]]) -> dict[Key, tuple[Stage, Stage]]:
    whole = plan.coalition(plan.learned)
    stages = {key: plan.coalition(phases) for key, phases in without.items()}
    return {key: (stage, whole) for key, stage in stages.items() if stage and whole and stage != whole}


def _ablation(plan: Plan, compared: Comparisons, config: Config) -> list[dict[str, Any]]:
    """The comparisons that show the effect of each phase: in the sequence, alone on the base, and, if stages beyond the
    sequence were evaluated, left out of the end; then those of each trained place with itself back at base."""
    sequence = [stage for stage in plan.stages if stage.kind == "sequence"]
    rows: list[dict[str, Any]] = []
    for before, stage in pairwise(sequence):
        new = [policy.target for policy in stage.policies if policy not in before.policies]
        phase = stage.own_name if plan.phases_at(stage) - plan.phases_at(before) == 1 else f"all up to {stage.name}"
        rows.append(_row(phase, new, "sequence", f"{before.name}:{stage.name}"))
    base = plan.stages[0]
    for stage in plan.stages[1:]:
        if not base.policies and len(stage.policies) == 1 and not stage.faults:
            phase = stage.own_name.removeprefix(ALONE)
            rows.append(_row(phase, [stage.policies[0].target], "alone", f"{base.name}:{stage.name}"))
    if config.evaluation.contributions != "none" or any(
        stage.kind not in ("sequence", "faults") for stage in plan.stages
    ):
        for phase, (before, after) in _left_out(plan).items():
            rows.append(_row(phase, [plan.learned[phase].target], "left out", f"{before.name}:{after.name}"))
        for place, (before, after) in _at_base(plan).items():
            phases = [phase for phase, policy in plan.learned.items() if policy.place == place]
            rows.append(_row(", ".join(phases), [version_key(place)], "at base", f"{before.name}:{after.name}"))
    return [row for row in rows if row["comparison"] in compared]


def _row(phase: str, learners: Sequence[str], kind: str, comparison: str) -> dict[str, Any]:
    return {"phase": phase, "learner": ", ".join(learners), "kind": kind, "comparison": comparison}


def _baselines(study: Study) -> dict[str, Any]:
    """Each baseline's results, and the reasons of its missing answers. One without any answer has no results."""
    baseline_rows: dict[str, Any] = {}
    temperature, configured = study.plan.final.temperature, study.config.models[study.plan.alone_slot].temperature
    sampled = configured if temperature is None else min(configured, temperature)
    answered = answers_by_baseline(study.baselines)
    for name in dict.fromkeys((*answered, *(row.baseline for row in study.baselines))):
        means = answer_metrics(answered[name], study.plan, study.config) if name in answered else {}
        rows = [row for row in study.baselines if row.baseline == name]
        errors = Counter(row.error or "no reason recorded" for row in rows if row.answer is None)
        baseline_rows[name] = {
            "title": baselines.title(name, max(row.calls or 0 for row in rows), sampled),
            **{metric: mean.dump() for metric, mean in means.items()},
            "answered": sum(row.answer is not None for row in rows),
            "errors": dict(errors.most_common()),
        }
    return baseline_rows


def _side_by_side(study: Study) -> list[dict[str, Any]]:
    """The tasks with the largest gain, the median change and the largest loss in reward, first to last stage."""
    before, after = study.plan.stages[0].name, study.plan.final.name
    if before == after:
        return []
    goals = {task.id: task.goal for task in study.plan.tasks}
    return [
        {
            "why": pair.why,
            "task": pair.task_id,
            "goal": goals[pair.task_id],
            "label": pair.after.label,
            "repeat": pair.repeat,
            "difference": pair.difference,
            "before": {"stage": before, "id": pair.before.rollout_id, "reward": pair.before.reward},
            "after": {"stage": after, "id": pair.after.rollout_id, "reward": pair.after.reward},
            "rows": side_by_side.view(pair.before, pair.after),
        }
        for pair in side_by_side.pick(study, before, after)
    ]
