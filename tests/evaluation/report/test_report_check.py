"""What `--verify` finds in a report: every figure and page beside what the run gives."""

import copy
import json
import shutil
from dataclasses import replace
from errno import ENOSPC
from pathlib import Path
from unittest.mock import Mock

import pytest
from message_kit import refused
from report_kit import PLAN

from chimera.core.errors import RunError
from chimera.run.directory import Run
from evaluation.conduct.recorded_study import load_study
from evaluation.records.study import PlannedTask
from evaluation.report.build import build
from evaluation.report.files import read_report, write_report
from evaluation.verify.again import differences
from evaluation.verify.asked import AskedEvaluation, Evaluated, hashes_of
from evaluation.verify.check import find_run, unlike, verify


def test_a_written_report_is_found_and_true(report, run, study, tmp_path):
    folder = tmp_path / "report"
    report["run"]["path"] = str(run.path)
    assert write_report(report, folder) == folder / "index.html"
    found = find_run(folder)
    assert found is not None
    assert found.path == run.path
    assert read_report(folder) == read_report(folder / "report.json") == read_report(tmp_path)
    assert unlike(read_report(folder), study, folder) == []


def number_paths(tree, place=()):
    if isinstance(tree, dict):
        return [path for key, value in tree.items() for path in number_paths(value, (*place, key))]
    return [place] if isinstance(tree, int | float) and not isinstance(tree, bool) else []


def part_of(tree, place):
    for key in place:
        tree = tree[key]
    return tree


def check_numbers(tree):
    """Each number is changed a little, and the comparison with the tree names just that one. Returns how many."""
    paths, changed = number_paths(tree), copy.deepcopy(tree)
    for path in paths:
        at, name = part_of(changed, path[:-1]), path[-1]
        number = at[name]
        at[name] += 1e-6 * max(1, abs(number))
        assert [place for place, _, _ in differences(changed, tree)] == [".".join(path)]
        at[name] = number
    return len(paths)


def test_every_number_of_the_tables_is_compared_with_the_run(built):
    parts = ("stages", "comparisons", "baselines", "work", "levels", "judges")
    assert sum(check_numbers(built[part]) for part in parts) > 300


def test_changed_figures_are_named(report, study, tmp_path):
    changes = {
        ("stages", "sft", "reward", "mean"): 2.5,
        ("stages", "base", "seconds", "low"): 0.1,
        ("comparisons", "base:sft", "reward", "p"): 0.0001,
        ("comparisons", "base:sft", "reward", "verdict"): "worse",
        ("outcomes", "base", "failed"): 0,
        ("outcomes", "sft", "rollouts", 3, "reward"): 3.0,
        ("pairs", "base:sft", 2, 1): 3.0,
        ("baselines", "majority", "answered"): 12,
        ("work", "consistency@base", "tokens"): 900,
        ("levels", "2", "right", "sft", "mean"): 1.0,
        ("standing", 0): "base",
        ("judges", "length", "judge", "n"): 99,
        ("side_by_side", 0, "difference"): 5.0,
        ("settings", "reward", "impact"): 0.9,
        ("verdict", "text"): "much better",
        ("cautions",): ["all is well"],
    }
    for where, value in changes.items():
        part_of(report, where[:-1])[where[-1]] = value
    places = [problem.partition(" is ")[0] for problem in unlike(report, study, tmp_path)]
    assert sorted(places) == sorted(".".join(map(str, where)) for where in changes)


def test_a_changed_figure_by_studies_is_named(study, tmp_path):
    tasks = tuple(replace(task, studies=4 + 4 * (place % 2)) for place, task in enumerate(PLAN.tasks))
    several = replace(study, plan=replace(PLAN, tasks=tasks))
    report = build(several, [], tmp_path)
    assert unlike(report, several, tmp_path) == []
    assert check_numbers(report["studies"]) > 20
    (problem,) = unlike({name: part for name, part in report.items() if name != "studies"}, several, tmp_path)
    assert problem.startswith("studies is missing")
    report["studies"]["slope"]["mean"] += 0.01
    (problem,) = unlike(report, several, tmp_path)
    assert problem.startswith("studies.slope.mean is")


def test_spreadsheets_that_hold_other_numbers_are_named(report, run, study, tmp_path):
    report["run"]["path"] = str(run.path)
    write_report(report, tmp_path)
    for name, old, new in (("metrics.csv", ",success,", ",failure,"), ("rollouts.csv", ",GO,", ",NO-GO,")):
        written = (tmp_path / name).read_text()
        (tmp_path / name).write_text(written.replace(old, new, 1))
    problems = unlike(report, study, tmp_path)
    assert [Path(problem.partition(" does not show")[0]).name for problem in problems] == [
        "metrics.csv",
        "rollouts.csv",
    ]


def test_changed_pages_are_found_by_their_hashes_in_the_ledger(report, run, study, tmp_path):
    folder = tmp_path / "hand"
    shutil.copytree(run.path, folder)
    out = folder / "report"
    write_report(report, out)
    (out / "rollouts").mkdir()
    (out / "rollouts" / "ro-sft-0.html").write_text("<p>a conversation</p>")
    asked = AskedEvaluation.of("val", None, 1, None, study.config.data)
    with Run(folder).own() as owned:
        Evaluated(asked, study.config.evaluation, {"time": "now"}, "hand", "report", hashes_of(out)).record(owned)
    pages = [out / name for name in ("index.html", "report.md", "rollouts/ro-sft-0.html")]
    changed = {f"{page} was changed: its bytes do not have the hash that the ledger holds" for page in pages}
    assert changed.isdisjoint(verify(out, Run(folder)).problems)
    for page in pages:
        page.write_text(page.read_text() + "<p>better</p>")
    assert changed <= set(verify(out, Run(folder)).problems)


def test_a_report_without_its_run_is_no_pass(report, run, tmp_path):
    report["run"]["path"] = "../nowhere"
    (tmp_path / "report.json").write_text(json.dumps(report))
    assert find_run(tmp_path) is None
    assert any("was not found" in problem for problem in verify(tmp_path, None).problems)


def test_a_run_that_lacks_rollouts_or_a_report_that_lacks_its_plan_is_named(report, run, study, tmp_path):
    more = replace(PLAN, tasks=(*PLAN.tasks, PlannedTask("t99", "?", "yes", 1)))
    with refused(RunError, "base", "1 of 13", "t99", "python -m chimera.eval --run hand"):
        load_study(run, more)
    del report["plan"]
    assert any(problem.startswith("plan is missing") for problem in unlike(report, study, tmp_path))


def test_a_run_whose_ledger_has_no_evaluation_gives_no_report(report, run, tmp_path):
    (tmp_path / "report.json").write_text(json.dumps(report))
    assert any("has no evaluation that wrote" in problem for problem in verify(tmp_path, run).problems)


@pytest.mark.parametrize(("text", "words"), [("{", "not JSON"), ("[1]", "a list"), (None, "cannot be read")])
def test_a_file_that_is_no_report_is_refused(tmp_path, text, words):
    file = tmp_path / "report.json"
    if text is not None:
        file.write_text(text)
    with refused(RunError, file, words):
        verify(file, None)


def test_a_folder_that_cannot_be_written_is_named(report, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    with refused(RunError, "cannot be written", tmp_path / "file", "make room"):
        write_report(report, tmp_path / "file")
    monkeypatch.setattr("evaluation.report.files.replace_file", Mock(side_effect=OSError(ENOSPC, "No space left")))
    with refused(RunError, f"{tmp_path} (No space left)", "make room"):
        write_report(report, tmp_path)
