"""A study of reports made by hand: which stages are meant, every figure against a direct computation, and the words."""

import copy
import io
import re
from statistics import fmean

import numpy as np
import pytest
from message_kit import refused
from rich.console import Console
from sklearn.metrics import f1_score

from chimera.core.errors import RunError
from chimera.show import markdown, terminal
from evaluation.seeds.compare import build
from evaluation.seeds.runs import SeedRun
from evaluation.seeds.study_text import about, brief, document, notes

LABELS = ["yes", "no", "maybe", "yes", "no", "yes"]
METRICS = {
    "reward": {"title": "reward", "unit": "points", "better": 1, "primary": True},
    "alignment": {"title": "answers right (accuracy)", "unit": "share", "better": 1, "primary": True},
    "macro_f1": {"title": "macro-F1 of the answers", "unit": "share", "better": 1, "primary": True},
    "seconds": {"title": "latency", "unit": "seconds", "better": -1, "primary": False},
}


def outcome(generator, gain):
    rows = []
    for task, label in enumerate(LABELS):
        right = generator.random() < 0.5 + gain
        answer = label if right else {"yes": "no", "no": "maybe", "maybe": "yes"}[label]
        values = {"reward": round(generator.normal() + gain, 3), "alignment": float(right), "seconds": 1.0}
        rows.append({"task": f"t{task}", "repeat": 0, "label": label, "answer": answer, "values": values})
    return {"rollouts": rows}


def stage(name, kind="sequence", policies=("junior",)):
    return {"name": name, "own_name": name, "kind": kind, "policies": list(policies)}


def make_run(seed, data_seed=0, *, back=()):
    """A run of sft and ppo, whose policies live but for those in `back`."""
    generator = np.random.default_rng([seed, data_seed])
    stages, live = [stage("base", policies=())], []
    for phase in ("sft", "ppo"):
        if phase not in back:
            live.append(phase)
            stages.append(stage(phase, policies=tuple(live)))
    if "ppo" in live and len(live) == 2:
        stages.append(stage("only-ppo", "alone", ("ppo",)))
    planned = [{"id": f"t{task}", "label": label} for task, label in enumerate(LABELS)]
    last = [one["name"] for one in stages if one["kind"] == "sequence"][-1]
    report = {
        "run": {"phases": ["gather", "sft", "ppo"], "rolled_back": list(back)},
        "settings": {"confidence": 0.95, "resamples": 400, "seed": seed},
        "plan": {
            **{"tasks": planned, "stages": stages, "split": "test", "data": f"generated tasks, seed {data_seed}"},
            "learned": dict.fromkeys(live),
        },
        "metrics": METRICS,
        "outcomes": {one["name"]: outcome(generator, 0.1 * place) for place, one in enumerate(stages)},
        "baselines": {"tfidf": {}},
        "pairs": {f"tfidf:{last}": [[f"t{task}", None, 1.0, task % 2, 0.0] for task in range(len(LABELS))]},
        "written": {"time": "now", "commit": "0123456789abcdef", "modified_files": 0},
    }
    return SeedRun(f"data{data_seed}-seed{seed}", seed, data_seed, report)


def comparison(study, before, after):
    return next(row for row in study["comparisons"] if (row["before"], row["after"]) == (before, after))


def values(run, name, metric):
    return np.array([row["values"][metric] for row in run.report["outcomes"][name]["rollouts"]])


def test_the_whole_run_against_a_direct_computation():
    runs = [make_run(seed) for seed in range(4)]
    study = build(runs)
    assert study["counts"] == {"runs": 4, "training_seeds": 4, "data_seeds": 1, "tasks": 6}
    found = comparison(study, "base", "final")
    for metric in ("reward", "alignment"):
        each = [(values(run, "ppo", metric) - values(run, "base", metric)).mean() for run in runs]
        row = found["metrics"][metric]
        assert row["difference"]["value"] == pytest.approx(fmean(each))
        assert [one["mean"] for one in row["per_run"]] == pytest.approx(each)
        assert row["iqm"]["value"] == pytest.approx(fmean(sorted(each)[1:3]))
        assert row["before"] == pytest.approx(fmean(values(run, "base", metric).mean() for run in runs))
        assert row["difference"]["low"] < row["difference"]["value"] < row["difference"]["high"]
        assert 0 <= row["improvement"]["low"] <= row["improvement"]["value"] <= row["improvement"]["high"] <= 1
    assert "seconds" not in found["metrics"]


def test_macro_f1_is_each_runs_own():
    runs = [make_run(seed) for seed in range(3)]
    row = comparison(build(runs), "base", "final")["metrics"]["macro_f1"]
    for run, found in zip(runs, row["per_run"], strict=True):
        f1 = [
            f1_score(LABELS, [one["answer"] for one in run.report["outcomes"][name]["rollouts"]], average="macro")
            for name in ("base", "ppo")
        ]
        assert (found["before"], found["after"]) == (pytest.approx(f1[0]), pytest.approx(f1[1]))
        assert found["mean"] == pytest.approx(f1[1] - f1[0])


def test_every_kind_of_comparison_is_there():
    found = [(row["before"], row["after"], row["kind"]) for row in build([make_run(0), make_run(1)])["comparisons"]]
    assert found == [
        ("base", "final", "whole"),
        ("base", "sft", "sequence"),
        ("sft", "ppo", "sequence"),
        ("base", "only-sft", "alone"),
        ("base", "only-ppo", "alone"),
        ("tfidf", "final", "baseline"),
    ]


def test_the_first_phase_alone_is_the_stage_after_it():
    study = build([make_run(0), make_run(1)])
    alone, after = comparison(study, "base", "only-sft"), comparison(study, "base", "sft")
    assert alone["metrics"] == after["metrics"]


def test_what_was_rolled_back_counts_as_what_stayed_live():
    """Leaving these runs out would show only the seeds with which a phase did well."""
    runs = [make_run(0), make_run(1, back=("ppo",)), make_run(2, back=("sft", "ppo"))]
    for report, last in zip((run.report for run in runs), ("ppo", "sft", "base"), strict=True):
        report["baselines"] = {f"greedy@{last}": {}}
        report["pairs"] = {f"greedy@{last}:{last}": report["pairs"][f"tfidf:{last}"]}
    study = build(runs)
    assert comparison(study, "greedy@final", "final")["runs"] == [run.name for run in runs]
    assert comparison(study, "base", "final")["runs"] == [run.name for run in runs]
    step = comparison(study, "sft", "ppo")
    assert step["rolled_back"] == ["data0-seed1", "data0-seed2"]
    means = [one["mean"] for one in step["metrics"]["reward"]["per_run"]]
    assert means[0] != 0
    assert means[1:] == [0, 0]
    whole = comparison(study, "base", "final")["metrics"]["reward"]["per_run"]
    assert whole[2]["mean"] == 0
    assert comparison(study, "base", "only-ppo")["metrics"]["alignment"]["per_run"][1]["mean"] == 0
    assert "rolled back in 2 of 3 runs" in markdown.render(document(study))
    assert any("counts as what stayed live" in note for note in notes(study))


def test_without_the_stages_between_no_phase_is_said_to_have_given_all():
    runs = [make_run(0), make_run(1)]
    for plan in (run.report["plan"] for run in runs):
        plan["stages"] = [one for one in plan["stages"] if one["name"] in ("base", "ppo")]
    kinds = [(row["before"], row["after"], row["kind"]) for row in build(runs)["comparisons"]]
    assert kinds == [("base", "final", "whole"), ("tfidf", "final", "baseline")]


def test_a_comparison_that_a_report_lacks_says_so():
    runs = [make_run(0), make_run(1)]
    plan = runs[1].report["plan"]
    plan["stages"] = [one for one in plan["stages"] if one["name"] != "only-ppo"]
    study = build(runs)
    assert comparison(study, "base", "only-ppo")["without"] == ["data0-seed1"]
    assert any("lacks data0-seed1" in note for note in notes(study))


def test_a_baseline_is_compared_by_its_answers_and_one_that_divides_also_for_each_number_of_studies():
    runs = [make_run(seed) for seed in range(3)]
    for report in (run.report for run in runs):
        report["plan"]["tasks"] = [{**task, "studies": 4 + 4 * (task["id"] > "t1")} for task in report["plan"]["tasks"]]
        report["baselines"]["mapreduce@ppo"], report["pairs"]["mapreduce@ppo:ppo"] = {}, report["pairs"]["tfidf:ppo"]
    rows = [row["metrics"] for row in build(runs)["comparisons"] if row["kind"] == "baseline"]
    for row, places in zip(rows, (range(6), range(6), range(2), range(2, 6)), strict=True):
        gains = [np.mean([values(run, "ppo", "alignment")[task] - task % 2 for task in places]) for run in runs]
        assert {name: figures["difference"]["tasks"] for name, figures in row.items()} == {"alignment": len(places)}
        assert row["alignment"]["difference"]["value"] == pytest.approx(fmean(gains))
    runs[2].report["plan"]["tasks"] = [{**task, "studies": 4} for task in runs[2].report["plan"]["tasks"]]
    lacking = [row["without"] for row in build(runs)["comparisons"] if row["before"] == "mapreduce@final"]
    assert lacking == [[], [], ["data0-seed2"]]


def test_a_rollout_without_a_reward_is_left_out_of_the_reward_only():
    runs = [make_run(seed) for seed in range(3)]
    runs[0].report["outcomes"]["ppo"]["rollouts"][2] |= {"values": {"alignment": 0.0}, "answer": None}
    row = comparison(build(runs), "base", "final")["metrics"]
    before, after = (
        [one["values"]["reward"] for one in runs[0].report["outcomes"][name]["rollouts"] if "reward" in one["values"]]
        for name in ("base", "ppo")
    )
    wanted = fmean(after) - fmean(before[place] for place in (0, 1, 3, 4, 5))
    assert row["reward"]["per_run"][0]["mean"] == pytest.approx(wanted)
    assert (row["reward"]["per_run"][0]["n"], row["alignment"]["per_run"][0]["n"]) == (5, 6)


def test_one_training_seed_has_no_interval_and_says_why():
    study = build([make_run(0)])
    row = comparison(study, "base", "final")["metrics"]["reward"]
    assert (row["difference"]["low"], row["difference"]["high"]) == (None, None)
    assert row["per_run"][0]["low"] is not None
    assert "one training seed: nothing here tells what another seed would give" in " ".join(notes(study))
    assert "(no interval)" in markdown.render(document(study))


@pytest.mark.parametrize(("before", "after"), [(1.0, 1.0), (0.0, 1.0), (1.0, 1 / 3)])
def test_stages_that_differ_alike_on_all_tasks_have_the_bound_of_so_many_tasks(before, after):
    runs = [make_run(seed) for seed in range(3)]
    for outcomes in (run.report["outcomes"] for run in runs):
        for value, name in ((before, "base"), (after, "ppo")):
            for rollout in outcomes[name]["rollouts"]:
                rollout["values"]["alignment"] = value
    row = comparison(build(runs), "base", "final")["metrics"]["alignment"]
    unseen, same = 1 - 0.025 ** (1 / 6), after - before
    ends = [(figures["low"], figures["high"]) for figures in (row["difference"], row["iqm"], *row["per_run"])]
    assert ends == [pytest.approx((same - unseen * (1 + same), same + unseen * (1 - same)))] * 5


def test_two_data_seeds():
    study = build([make_run(seed, data) for data in (0, 1) for seed in (0, 1)])
    assert study["counts"] == {"runs": 4, "training_seeds": 2, "data_seeds": 2, "tasks": 12}
    row = comparison(study, "base", "final")["metrics"]["alignment"]
    each = [one["value"] for one in row["per_data_seed"]]
    assert row["difference"]["value"] == pytest.approx(fmean(each))
    assert fmean(row["over_data_seeds"]) == pytest.approx(fmean(each))
    assert about(study) == "4 runs: 2 training seeds on each of 2 data seeds, 12 test tasks in all."
    assert "other data sets" in markdown.render(document(study))


def test_the_order_of_runs_does_not_matter_for_the_estimates():
    runs = [make_run(seed, data) for data in (0, 1) for seed in (0, 1, 2)]
    one, other = (comparison(build(order), "base", "final")["metrics"]["reward"] for order in (runs, runs[::-1]))
    for figure in ("difference", "iqm", "improvement"):
        assert one[figure]["value"] == pytest.approx(other[figure]["value"])
    assert one["difference"]["high"] == pytest.approx(other["difference"]["high"], abs=0.2)


def test_runs_that_were_asked_other_tasks_say_so():
    runs = [make_run(0), make_run(1)]
    assert not any("same tasks" in note for note in notes(build(runs)))
    report = copy.deepcopy(dict(runs[1].report))
    report["plan"]["tasks"].pop()
    for one in report["outcomes"].values():
        one["rollouts"].pop()
    study = build([runs[0], SeedRun("data0-seed1", 1, 0, report)])
    assert any("not all asked the same tasks" in note for note in notes(study))
    assert comparison(study, "base", "final")["metrics"]["reward"]["per_run"][1]["n"] == 5


def test_the_tables_fit_into_80_columns():
    study = build([make_run(0), make_run(1, back=("ppo",)), make_run(2)])

    def lines(width):
        text = io.StringIO()
        terminal.show(Console(file=text, width=width), brief(study))
        return text.getvalue().splitlines()

    assert all(len(line) <= 80 and "…" not in line and line.count("[") == line.count("]") for line in lines(80))
    assert any("data0-seed2" in line for line in lines(80))
    numbers = [sorted(re.findall(r"\d+\.\d+", " ".join(lines(width)))) for width in (60, 200)]
    assert numbers[0] == numbers[1]


def test_a_file_that_is_no_report_is_named(tmp_path):
    for content in ("", "[]", '{"run": {}}'):
        (tmp_path / "report.json").write_text(content)
        with refused(RunError, "report.json", "evaluate data0-seed0 again"):
            SeedRun.read("data0-seed0", 0, 0, tmp_path / "report.json")
