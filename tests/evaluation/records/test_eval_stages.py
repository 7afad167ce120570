"""`python -m chimera.eval` with served weights: every stage is answered by its own, and its report can be verified."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import chimera
from chimera.config.tree import load_config
from chimera.run.directory import Run
from chimera.run.policies import WENT_LIVE, Policy
from evaluation.records.rollouts import RolloutRecord

NANO = Path(chimera.__file__).parent / "assets" / "nano"
REVIEWERS = dict.fromkeys(("board", "principal", "judge"), "rubric")
BASE = {**dict.fromkeys(("junior", "supervisor", "senior"), "nano@0"), **REVIEWERS}


def command(*arguments):
    done = subprocess.run(
        [sys.executable, "-m", "chimera.eval", *map(str, arguments)],
        check=False,
        capture_output=True,
        text=True,
    )
    return done.returncode, done.stdout + done.stderr


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    config = load_config(None, [f"runs_dir={folder}", "data.size=40", "gate.tasks=2"])
    with Run.create("trained", config) as run:
        began = {**BASE, "selection": "supervisor's model"}
        run.ledger("phase_started", phase="gather", policy_versions=began)
        for learner, phase in (("junior", "sft"), ("senior", "ppo")):
            policy = Policy("weights", learner, f"{learner}@{phase}", f"models/{learner}/{phase}")
            shutil.copytree(NANO, run.path / policy.folder)
            run.ledger(WENT_LIVE, phase=phase, policy=policy.dump())
    code, said = command("--run", "trained", "--split", "val", "--stages", "all", f"runs_dir={folder}")
    assert code == 0, said
    return run, said


def test_each_stage_is_answered_by_its_own_weights(evaluated):
    run, said = evaluated
    served = {}
    for stage in ("base", "sft", "ppo", "only-ppo"):
        records = [RolloutRecord.load(data) for data in run.rollouts(f"eval-val-{stage}")]
        assert [record.status for record in records] == ["succeeded"] * 2
        (served[stage],) = {
            (*record.weights_versions["junior"], *record.weights_versions["senior"]) for record in records
        }
    assert served == {
        "base": ("nano@0", "nano@0"),
        "sft": ("junior@sft", "nano@0"),
        "ppo": ("junior@sft", "senior@ppo"),
        "only-ppo": ("nano@0", "senior@ppo"),
    }
    assert "After ppo beside base" in said


def test_the_report_is_verified_and_a_changed_number_is_named(evaluated, tmp_path):
    run, _ = evaluated
    code, said = command("--verify", run.path / "report")
    assert (code, "computed again" in said) == (0, True), said
    changed = tmp_path / "trained"
    shutil.copytree(run.path, changed)
    file = changed / "report" / "report.json"
    report = json.loads(file.read_text())
    report["stages"]["ppo"]["reward"]["mean"] += 0.01
    file.write_text(json.dumps(report))
    code, said = command("--verify", changed / "report")
    assert code == 1
    assert "stages.ppo.reward" in said


def test_a_report_of_other_numbers_does_not_flood_the_terminal(evaluated, tmp_path):
    changed = tmp_path / "trained"
    shutil.copytree(evaluated[0].path, changed)
    file = changed / "report" / "report.json"
    report = json.loads(file.read_text())
    for metrics in report["stages"].values():
        for mean in metrics.values():
            mean["n"] += 1
    file.write_text(json.dumps(report))
    code, said = command("--verify", changed / "report")
    assert code == 1
    assert said.count("refused: ") == 50
    (more,) = re.findall(r"\.\.\. and (\d+) more", said)
    assert f"{50 + int(more)} problems" in said


def test_a_table_that_cannot_be_true_is_refused(tmp_path):
    criteria = ("clarity", "efficiency", "feasibility", "groundedness", "impact", "novelty")
    means = {"success": 98.50, "reward": 0.81, "alignment": 87.82}
    means |= dict(zip(criteria, (0.91, 0.82, 0.85, 0.89, 0.88, 0.76), strict=True))
    file = tmp_path / "report.json"
    file.write_text(json.dumps({"stages": {"final": {name: {"mean": value} for name, value in means.items()}}}))
    code, said = command("--verify", file)
    assert code == 1
    assert "0.8655" in said
