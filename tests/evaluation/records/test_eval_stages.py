"""`python -m chimera.eval` with served weights: every stage is answered by its own, and its report can be verified."""

import io
import json
import re
import shutil
import subprocess
import sys

import pytest
from rich.console import Console

from chimera.config.sections.bundled import NANO
from chimera.eval import main
from chimera.run.directory import Run
from chimera.run.policies import WENT_LIVE, Policy
from chimera.show import terminal
from chimera.show.blocks import TableBlock
from evaluation.records.rollouts import RolloutRecord
from evaluation.report.content.head import gains
from evaluation.report.files import read_report
from evaluation.report.gains import WAYS, gain_tables
from evaluation.report.losses import lost_words
from training.configuration import load_config

pytestmark = pytest.mark.whole

REVIEWERS = dict.fromkeys(("board", "principal", "judge"), "rubric")
BASE = {**dict.fromkeys(("junior", "supervisor", "senior", "refiner"), "nano@0"), **REVIEWERS}
ASKED = ("--run", "trained", "--split", "val", "evaluation.contributions=shapley")


@pytest.fixture
def command(capsys):
    def run(*arguments):
        code = main([str(argument) for argument in arguments])
        return code, capsys.readouterr().out

    return run


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    few = ["evaluation.resamples=20"]
    config = load_config(None, [f"runs_dir={folder}", "data.size=40", "gate.tasks=2", *few])
    with Run.create("trained", config) as run:
        began = {**BASE, "selection": "supervisor's model"}
        run.ledger("phase_started", phase="gather", policy_versions=began)
        for learner, phase in (("junior", "sft"), ("senior", "ppo")):
            policy = Policy("weights", learner, f"{learner}@{phase}", f"models/{learner}/{phase}")
            shutil.copytree(NANO, run.path / policy.folder)
            run.ledger(WENT_LIVE, phase=phase, policy=policy.dump())
    command_line = [sys.executable, "-m", "chimera.eval", *ASKED, f"runs_dir={folder}"]
    done = subprocess.run(command_line, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return run, done.stdout + done.stderr


def test_each_stage_is_answered_by_its_own_weights(evaluated):
    run, said = evaluated
    served = {}
    for stage in ("base", "sft", "ppo", "only-ppo"):
        records = [RolloutRecord.load(data) for data in run.rollouts(f"eval-val-{stage}-at-0.3")]
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


def test_what_each_phase_gave_is_on_the_first_screen_and_sums_to_the_whole(evaluated):
    run, said = evaluated
    report = read_report(run.path / "report")
    for name in ("reward", "alignment"):
        found = report["shapley"][name]
        values = [found["phases"][phase]["mean"] for phase in ("sft", "ppo")]
        assert sum(values) == pytest.approx(found["total"]["mean"])
        whole = report["comparisons"]["base:ppo"][name]
        assert found["total"] == {**{key: whole[key] for key in ("low", "high", "n")}, "mean": whole["difference"]}
    kinds = {
        kind: {row["phase"]: row["comparison"] for row in report["ablation"] if row["kind"] == kind} for kind in WAYS
    }
    assert kinds["alone"] == {"sft": "base:sft", "ppo": "base:only-ppo"}
    assert kinds["left out"] == {"sft": "only-ppo:ppo", "ppo": "sft:ppo"}
    for table in gain_tables(report):
        assert table["ways"] == list(WAYS)
        assert [row["phase"] for row in table["rows"]] == [
            "sft",
            "ppo",
            "junior at base",
            "senior at base",
            "all together",
        ]
        assert [cell["comparison"] for cell in table["rows"][0]["cells"][:3]] == [
            "base:sft",
            "base:sft",
            "only-ppo:ppo",
        ]
        back = {row["phase"]: row["cells"] for row in table["rows"]}["senior at base"]
        assert [cell and cell["comparison"] for cell in back] == [None, None, "sft:ppo", None]
    head = (run.path / "report" / "report.md").read_text().partition("## Stages")[0]
    screen = (run.path / "report" / "index.html").read_text().partition("<nav")[0]
    for text in (said, head, screen):
        assert "hat each phase gave" in text
        assert lost_words(report) in text
    console = Console(width=80, record=True, file=io.StringIO())
    terminal.show(console, [one for one in gains(report) if isinstance(one, TableBlock)])
    assert max(map(len, console.export_text().splitlines())) <= 80


def test_the_wrong_answers_of_each_stage_are_all_lost_by_someone(evaluated):
    report = read_report(evaluated[0].path / "report")
    assert set(report["lost"]) == {"base", "sft", "ppo"}
    for stage, found in report["lost"].items():
        rows = report["outcomes"][stage]["rollouts"]
        wrong = [row for row in rows if row["answer"] != row["label"]]
        assert sum(found["steps"].values()) == found["wrong"] == len(wrong)
        assert all((row["lost"] is not None) == (row in wrong) for row in rows)


def test_no_rollout_is_made_twice(evaluated, command):
    run, _ = evaluated
    before = {file.name: file.read_bytes() for file in (run.path / "rollouts").iterdir()}
    code, said = command(*ASKED, "--out", run.path / "again", f"runs_dir={run.path.parent}")
    assert (code, "8 recorded, 0 to make" in said) == (0, True), said
    assert {file.name: file.read_bytes() for file in (run.path / "rollouts").iterdir()} == before
    assert "starting model servers" not in said


@pytest.fixture
def refusal(evaluated, command, tmp_path):
    """What is said of a copy of the run whose report a function has changed."""

    def verify(change):
        folder = shutil.copytree(evaluated[0].path, tmp_path / "trained")
        file = folder / "report" / "report.json"
        report = json.loads(file.read_text())
        change(report)
        file.write_text(json.dumps(report))
        code, said = command("--verify", file.parent)
        assert code == 1
        return said

    return verify


def test_the_report_is_verified_and_a_changed_number_is_named(evaluated, refusal, command):
    run, _ = evaluated
    code, said = command("--verify", run.path / "report")
    assert (code, "computed again" in said) == (0, True), said

    def change(report):
        report["stages"]["ppo"]["reward"]["mean"] += 0.01
        report["shapley"]["reward"]["phases"]["sft"]["mean"] += 0.01
        report["lost"]["ppo"]["steps"]["refiner"] += 1

    said = refusal(change)
    assert "stages.ppo.reward" in said
    assert "shapley.reward.phases.sft.mean" in said
    assert "lost.ppo.steps.refiner" in said


def test_a_report_of_other_numbers_does_not_flood_the_terminal(refusal):
    def change(report):
        for metrics in report["stages"].values():
            for mean in metrics.values():
                mean["n"] += 1

    said = refusal(change)
    assert said.count("refused: ") == 50
    (more,) = re.findall(r"\.\.\. and (\d+) more", said)
    assert f"{50 + int(more)} problems" in said


def test_a_table_that_cannot_be_true_is_refused(command, tmp_path):
    file = tmp_path / "report.json"
    file.write_text('{"stages": {"final": {"success": {"mean": 98.5}}}}')
    code, said = command("--verify", file)
    assert code == 1
    assert "success is 98.5" in said
