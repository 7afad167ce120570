"""Shapley values and repairs over several runs, each figure against a direct computation."""

from statistics import fmean

import numpy as np
import pytest
from test_seeds_compare import METRICS, SeedRun, make_run

from chimera.run.policies import Policy
from chimera.show import markdown
from evaluation.seeds.compare import build
from evaluation.seeds.study_text import brief, document

PHASES = ("sft", "ppo")
TASKS = 6


def policy(phase):
    return Policy("weights", phase, f"{phase}@1", f"models/{phase}").dump()


def shapley_run(seed, kept=PHASES, contributions="shapley"):
    """A run whose coalitions of `kept` have rewards of their own on each task, and which examined wrong answers."""
    generator = np.random.default_rng(seed)
    made = make_run(seed)
    names = {(): "base", ("sft",): "sft", ("ppo",): "only-ppo", PHASES: "ppo"} | (
        {("ppo",): "ppo"} if len(kept) < 2 else {}
    )
    stages = [
        {"name": name, "own_name": name, "kind": "alone" if name.startswith("only") else "sequence",
         "policies": sorted(map(policy, phases), key=lambda one: one["target"])}
        for phases, name in names.items() if set(phases) <= set(kept)
    ]  # fmt: skip
    outcomes = {
        one["name"]: {
            "rollouts": [
                {"id": f"{one['name']}-{task}", "task": f"t{task}", "repeat": 0, "label": "yes", "answer": "yes",
                 "values": {"reward": float(generator.normal()), "alignment": float(generator.integers(2))}}
                for task in range(TASKS)
            ]
        }
        for one in stages
    }  # fmt: skip
    report = dict(made.report)
    last = stages[-1]["name"]
    report["plan"] = {**report["plan"], "stages": stages, "learned": {phase: policy(phase) for phase in kept}}
    report["run"] = {**report["run"], "rolled_back": [phase for phase in PHASES if phase not in kept]}
    report["settings"] = {**report["settings"], "contributions": contributions}
    wrong = [(f"{last}-{task}", task % 2 == 0, "refiner" if task < 2 else "juniors") for task in range(4 + seed % 2)]
    report["blame"] = {
        "stage": last, "examined": len(wrong), "steps": {"juniors": {}, "supervisor": {}, "refiner": {}},
        "rollouts": [{"id": name, "mended": mended, "step": step} for name, mended, step in wrong],
    }  # fmt: skip
    return SeedRun(
        made.name, seed, 0, {**report, "outcomes": outcomes, "pairs": {}, "baselines": {}, "metrics": METRICS}
    )


def rewards(run, name):
    return np.array([row["values"]["reward"] for row in run.report["outcomes"][name]["rollouts"]])


def test_the_values_are_the_means_of_the_runs_own_and_sum_to_the_whole():
    runs = [shapley_run(seed) for seed in range(3)]
    found = build(runs)["shapley"]["reward"]
    each = []
    for run in runs:
        base, sft, ppo, both = (rewards(run, name) for name in ("base", "sft", "only-ppo", "ppo"))
        each.append(((sft - base + both - ppo) / 2).mean())
    assert found["sft"]["value"] == pytest.approx(fmean(each))
    assert [one["value"] for one in found["sft"]["per_run"]] == pytest.approx(each)
    assert found["sft"]["value"] + found["ppo"]["value"] == pytest.approx(found["all together"]["value"])
    assert found["sft"]["low"] < found["sft"]["value"] < found["sft"]["high"]


def test_a_phase_that_was_rolled_back_gave_nothing_in_that_run():
    runs = [shapley_run(0), shapley_run(1, kept=("ppo",)), shapley_run(2, kept=())]
    found = build(runs)["shapley"]["reward"]
    assert [one["value"] for one in found["sft"]["per_run"]][1:] == [0, 0]
    assert found["ppo"]["per_run"][1]["value"] == pytest.approx(
        (rewards(runs[1], "ppo") - rewards(runs[1], "base")).mean()
    )
    assert found["ppo"]["per_run"][2]["value"] == 0


def test_the_share_that_each_repair_mends_is_of_all_examined_wrong_answers():
    """Of four (five) wrong answers the first (even ones) are mended; two of them were the refiner's."""
    study = build([shapley_run(0), shapley_run(1)])
    found = study["blame"]
    assert [one["value"] for one in found["refiner"]["per_run"]] == pytest.approx([1 / 4, 1 / 5])
    assert [one["value"] for one in found["any of them"]["per_run"]] == pytest.approx([2 / 4, 3 / 5])
    assert found["refiner"]["value"] == pytest.approx((1 / 4 + 1 / 5) / 2)
    assert found["supervisor"]["value"] == 0
    assert found["refiner"]["low"] <= found["refiner"]["value"] <= found["refiner"]["high"]


def test_both_are_in_the_study_and_reports_without_them_are_left_out():
    study = build([shapley_run(0), shapley_run(1), shapley_run(2, contributions="none")])
    assert study["shapley"]["reward"]["ppo"]["runs"] == 2
    text = markdown.render(document(study))
    assert "## What each phase gave: Shapley values" in text
    assert "| all together |" in text
    assert "## Wrong answers that become right when their first wrong step is made right" in text
    assert len(brief(study)) == 3
    old = build([make_run(0), make_run(1)])
    assert (old["shapley"], old["blame"]) == ({}, {})
    assert "Shapley" not in markdown.render(document(old))
