"""A run made by hand, with its evaluation: what each figure of its report must be can be computed beside it."""

import io

import numpy as np
from message_kit import PROTOCOL
from record_kit import answered
from rich.console import Console

from chimera.run.directory import Run
from chimera.run.jsonl import append_line
from chimera.run.policies import Policy
from chimera.show import terminal
from evaluation.records.study import Plan, PlannedTask, Stage
from evaluation.report.content.head import brief
from evaluation.scores.judge import CRITERIA
from training.configuration import load_config

LABELS = ["yes"] * 6 + ["no"] * 4 + ["maybe"] * 2
DECISIONS = {
    "base": ["GO", "GO", "GO", "NO-GO", "NO-GO", "UNDECIDED", "NO-GO", "NO-GO", "GO", "GO", "GO", None],
    "sft": ["GO", "GO", "GO", "GO", "GO", "GO", "NO-GO", "NO-GO", "NO-GO", "GO", "UNDECIDED", "GO"],
}
LABEL_OF = {"GO": "yes", "NO-GO": "no", "UNDECIDED": "maybe"}
HOSTILE = '</details><script>alert("x")</script> | [a](javascript:x) `'
FAILURE = f"Supervisor: no JSON after 31 tokens {HOSTILE}"
ANSWER = {"evidence": ["It fell (p=0.01)."], "comparison": "lower", "claim": "it works", "answer": "yes"}
BASE = {"junior": "nano@0", "judge": "rubric", "selection": "supervisor's model"}
SFT = Policy("weights", "junior", "junior@sft", "models/junior/sft")
STAGES = (
    Stage("base", "base", "sequence", (), BASE),
    Stage("sft", "after sft", "sequence", (SFT,), {**BASE, "junior": "junior@sft"}),
)


def scores_of(stage, task):
    gain = 0.25 if stage == "sft" else 0.0
    return {name: round((task * (place + 2) % 7) / 10 + gain, 3) for place, name in enumerate(CRITERIA)}


VETO = "peer review: 2 of 3 evidence sentences are in no source"


def make_record(stage, task, weights):
    decision = DECISIONS[stage.name][task]
    about = {
        "phase": f"gate-{stage.name}",
        "seed": task,
        "label": LABELS[task],
        "policy_versions": dict(stage.versions),
    }
    if decision is None:
        return answered(f"ro-{stage.name}-{task}", f"t{task}", None, **about, error=FAILURE)
    veto = VETO if (stage.name, decision) == ("base", "NO-GO") else None
    scores = scores_of(stage.name, task)
    parts = {name: weights[name] * score for name, score in scores.items()}
    parts |= {
        "alignment": float(LABEL_OF[decision] == LABELS[task]),
        "parsed": 0.05,
        "repeated_call": -0.1 * (task % 2),
    }
    parts |= {"call_valid": 0.1, "tool_succeeded": 0.05, "unverifiable_quote": 0.0, "overlong": 0.0}
    outputs = {
        "turn_count": 9 + task % 3,
        "initial_hypotheses": [{"author": "Geneticist", **ANSWER}],
        "selected_hypothesis": {"author": "Geneticist", **ANSWER, "claim": f"{stage.name} {HOSTILE}"},
        "supervisor_justification": "its quote is real",
        "refined_hypothesis": ANSWER,
        "unreviewed_hypothesis": {**ANSWER, "answer": "no"},
        "peer_review": {"issues": [], "severity": "NONE", "verdict": "APPROVE"},
        "safety_review": {"issues": [], "severity": "NONE", "verdict": "APPROVE"},
        "major_revisions": task % 2,
        "critical_revisions": 0,
        "final_protocol": {**PROTOCOL, "amendments": []},
        "final_answer": LABEL_OF[decision],
        "final_decision": decision,
        "final_veto": veto,
        "final_rationale": "the evidence says so",
        "final_evaluation": {"scores": scores, "error": None},
    }
    calls = {"model_calls": 12 + task, "tool_calls": 4, "failed_tool_calls": task % 2, "repairs": 0}
    return answered(
        f"ro-{stage.name}-{task}",
        f"t{task}",
        LABEL_OF[decision],
        float(np.sum(list(parts.values()))),
        **about,
        veto=veto,
        parts=parts,
        outputs=outputs,
        counts={**calls, "prompt_tokens": 1000 + task, "completion_tokens": 400},
        tokens={"junior": {"prompt": 1000 + task, "completion": 400}},
        visits={
            "Geneticist/1": {"calls": 2, "prompt": 300, "completion": 30},
            "HypothesisRefiner/1": {"calls": 1, "prompt": 100, "completion": 20},
            "HypothesisRefiner/2": {"calls": 1, "prompt": 600, "completion": 350},
        },
        seconds=2.0 + task,
        trace=f"traces/{stage.name}.jsonl.gz",
    )


PLAN = Plan(
    "val",
    "generated",
    "generated tasks, by hand",
    tuple(
        PlannedTask(f"t{task}", f"Does it work {HOSTILE}?", label, 1 + task % 2) for task, label in enumerate(LABELS)
    ),
    1,
    STAGES,
)
VOTES = ["maybe", "no", "no", "no"]
MAJORITY = ["yes"] * 11 + [None]


def write_run(folder):
    """A run in `folder`: two stages, a phase that was rolled back, and the answers of two baselines."""
    settings = ["evaluation.resamples=1000", "evaluation.prices={junior: [2, 10]}"]
    settings += ["evaluation.temperature=null"]
    with Run.create("hand", load_config(None, [f"runs_dir={folder}", *settings])) as run:
        run.ledger("phase_started", phase="sft", policy_versions=BASE)
        run.ledger("went_live", phase="sft", policy=SFT.dump())
        run.ledger("phase_finished", phase="sft")
        run.ledger("rolled_back", phase="ppo", policy=Policy("weights", "senior", "senior@ppo", "models/x").dump())
        weights = run.config.reward.model_dump()
        for stage in STAGES:
            run.append_rollout({**make_record(stage, 0, weights).dump(), "reward": 9.0}, phase=f"gate-{stage.name}")
            for task in range(len(LABELS)):
                run.append_rollout(make_record(stage, task, weights).dump(), phase=f"gate-{stage.name}")
        side = run.path / "evaluation" / "val"
        side.mkdir(parents=True)
        for task, answer in enumerate(MAJORITY):
            why = None if answer else "no answer"
            row = {"baseline": "majority", "task_id": f"t{task}", "repeat": 0, "answer": answer, "error": why}
            append_line(side / "baselines.jsonl", row)
            for sample in range(4):
                used = {"calls": 1, "prompt_tokens": 300, "completion_tokens": 50, "sample": sample, "models": "nano@0"}
                call = {**row, "baseline": "single@base", "answer": VOTES[sample], "error": None, **used}
                append_line(side / "baselines.jsonl", call)
    return Run(run.path)


def printed(report, width=200):
    """What the terminal shows of a report."""
    console = Console(width=width, record=True, file=io.StringIO())
    terminal.show(console, list(brief(report)))
    return console.export_text()
