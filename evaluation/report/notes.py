"""The texts of a report beside its numbers: about the run, its models, and the limits of the conclusions."""

from pathlib import Path
from typing import Any

from chimera.config.roles import JUDGE
from chimera.config.sections.bundled import unread
from chimera.config.sections.models import ModelConfig
from chimera.config.tree import Config
from chimera.run.directory import TRIAL, Run, is_trial
from chimera.run.policies import ROLLED_BACK
from evaluation.measures import official
from evaluation.records.study import Study
from evaluation.rollout.silent_tools import silent_warnings

SMALL = 30
"""With fewer tasks a bootstrap interval is rough."""
ONE_SEED = (
    "This report is about one training seed: its intervals are about tasks, and another seed may give other results "
    "(python -m chimera.study trains several)."
)


def about_run(run: Run) -> dict[str, Any]:
    """Name, date, commit and phases of a run, from its environment and its ledger."""
    environment = run.environment
    events = list(run.events())
    return {
        "name": run.name,
        "created": environment.get("created"),
        "commit": environment.get("commit"),
        "phases": [event["phase"] for event in events if event["event"] == "phase_finished"],
        "rolled_back": [event["phase"] for event in events if event["event"] == ROLLED_BACK],
    }


def players(config: Config) -> dict[str, dict[str, Any]]:
    """The model behind each logical model and the second judge, and the roles that it plays."""
    rows: dict[str, dict[str, Any]] = {}
    for name, model in config.used().items():
        roles = [role for role, slot in config.roles.slots().items() if slot == name]
        rows[name] = {"kind": model.kind, "model": _model(model), "roles": roles}
    auditor = config.evaluation.auditor
    if auditor.kind != "none":
        rows["auditor"] = {"kind": auditor.kind, "model": auditor.model or auditor.kind, "roles": ["second judge"]}
    return rows


def _model(model: ModelConfig) -> str:
    """A model's name. For a folder only its last part: paths of a machine stay private."""
    path = Path(model.path)
    name = path.name if path.is_absolute() or model.path.startswith((".", "~")) else model.path
    return {"embedded": name, "vllm": name, "endpoint": model.model or "endpoint", "rubric": "rubric"}[model.kind]


def tool_warnings(study: Study) -> list[str]:
    """Warnings of stages in which roles that should have searched never called a tool."""
    return [
        f"{answers.stage.title}: {warning}"
        for answers in study.answers.values()
        for warning in silent_warnings(answers.records, study.config)
    ]


def cautions(study: Study) -> list[str]:
    """What a reader must know before any figure: a trial, or a model that cannot read these tasks."""
    toy = unread(study.config.used(), study.plan.source)
    return [*([TRIAL] if is_trial(study.run.events()) else []), *([toy] if toy else [])]


def notes(study: Study) -> list[str]:
    """The limits that a reader should know, one sentence each."""
    plan, config = study.plan, study.config
    sentences: list[str] = [ONE_SEED]
    if plan.source == "generated":
        sentences.append(
            "The tasks are generated: sentences in PubMedQA's form whose answer follows from the statistics that they "
            "report. Results say nothing about PubMedQA."
        )
    elif plan.source == "pubmedqa" and not plan.official:
        sentences.append(
            f"{len(plan.tasks)} {'test' if plan.split == 'test' else 'validation'} items are not PubMedQA's official "
            "test items: published results are not comparable and are left out."
        )
    if plan.split == "test":
        sentences.append("No decision of training used these test tasks: neither learning nor the gate has seen them.")
    if all(config.models[slot].kind == "rubric" for slot in (config.slot(JUDGE), *config.rollouts.judges)):
        sentences.append(
            "The judge that gives the reward's six criteria is a deterministic rubric, not a language model: what "
            "training gains in them is what the rubric can see."
        )
    if plan.split == "val" and config.gate.tasks and any(stage.policies for stage in plan.stages):
        sentences.append(
            "The gate decided on validation tasks of this split whether a policy stayed live, so the stages that are "
            "left are a little favoured by it: --split test has tasks that no decision used. On pairs that the gate "
            "decided, reward and right answers have the gate's verdict: one test each, at evaluation.confidence="
            f"{config.evaluation.confidence:g}, without correction."
        )
    last = study.answers[plan.final.name]
    if apart := [name for name, answers in study.answers.items() if not answers.timed_like(last)]:
        sentences.append(
            f"Latencies of {', '.join(apart)} are left out: their rollouts were made beside other work than those of "
            f"{plan.final.name} (in the gate or in an evaluation); --fresh makes all alike."
        )
    sentences += tool_warnings(study)
    if (predicted := official.summary(study)) and predicted["missing"]:
        sentences.append(official.missing_sentence(predicted))
    if len(plan.tasks) < SMALL:
        sentences.append(f"{len(plan.tasks)} tasks are few: intervals are rough, and only large differences can show.")
    sentences += _begun(study)
    for phase in about_run(study.run)["rolled_back"]:
        sentences.append(f"The gate rolled back what {phase} learned, so it is no stage of this report.")
    return sentences + _missing(study)


def _begun(study: Study) -> list[str]:
    """A sentence on each phase that began with what another slot had learned by then (`pipeline.X.start`)."""
    sentences: list[str] = []
    phases = list(study.plan.learned)
    for number, phase in enumerate(phases):
        start = getattr(study.config.pipeline.get(phase), "start", None)
        earlier = [other for other in phases[:number] if study.plan.learned[other].target == start]
        if earlier:
            target = study.plan.learned[phase].target
            sentences.append(
                f"{phase} began with the weights that {start} had after {earlier[-1]}, not with those of {target}: "
                "what it gave is that of these weights and of its own learning together."
            )
    return sentences


def _missing(study: Study) -> list[str]:
    """Sentences on values that could not be computed, with the reasons."""
    sentences: list[str] = []
    for name, answers in study.answers.items():
        failed = sum(record.status == "failed" for record in answers.records)
        unscored = sum(record.status == "succeeded" and record.reward is None for record in answers.records)
        if failed:
            sentences.append(
                f"{failed} of {len(answers.records)} rollouts of {name} failed: they count as misses in success and "
                "right answers, and have no reward."
            )
        if answers.second_tries:
            sentences.append(
                f"{answers.second_tries} of {len(answers.records)} rollouts of {name} failed at first and were made "
                "again with the same seed, so its success is a little favoured."
            )
        if unscored:
            sentences.append(f"{unscored} rollouts of {name} have no reward, because the judge gave no score.")
    if not study.config.evaluation.prices:
        sentences.append("There is no cost, because no prices are configured (evaluation.prices).")
    if not study.baselines:
        sentences.append("No baseline was recorded for these tasks.")
    return sentences
