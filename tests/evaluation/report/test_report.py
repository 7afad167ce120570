"""A run made by hand: every figure of its report against a direct computation, and what its notes say."""

import copy
import csv
import io
import json
import re
from dataclasses import replace
from statistics import fmean

import numpy as np
import pytest
from report_kit import DECISIONS, FAILURE, LABEL_OF, LABELS, MAJORITY, PLAN, STAGES, VETO, make_record, printed
from scipy import stats
from sklearn.metrics import f1_score
from statsmodels.stats.multitest import multipletests
from web_kit import Page

from chimera.data.generated.review import generate as review
from chimera.run.directory import Run
from chimera.run.policies import Policy
from evaluation.conduct.recorded_study import load_study
from evaluation.records.study import BaselineAnswer, Plan, PlannedTask, Stage
from evaluation.report.build import build, compare_all, stage_pairs
from evaluation.report.content import page
from evaluation.report.content import text as markdown
from evaluation.report.conversations import linked
from evaluation.report.files import publish_predictions
from evaluation.report.formats import change
from evaluation.report.notes import notes
from evaluation.report.plots.base import Plot
from evaluation.report.spreadsheet import metrics_csv, rollouts_csv
from evaluation.verify.impossible import impossible
from training.configuration import load_config
from training.gate.rule import compare as compare_gate


def records(run):
    weights = run.config.reward.model_dump()
    return {stage.name: [make_record(stage, task, weights) for task in range(len(LABELS))] for stage in STAGES}


def macro_f1(answers):
    given = [answer or "nothing" for answer in answers]
    names = [name for name in ("yes", "no", "maybe") if name in {*LABELS, *given}]
    return f1_score(LABELS, given, labels=names, average="macro", zero_division=0)


def direct_values(one):
    """Every metric of one rollout but macro-F1, computed from the record without the package."""
    succeeded = one.decision is not None
    fits = succeeded and LABEL_OF[one.decision] == one.label
    values = {"success": succeeded, "alignment": fits, "decision_alignment": fits}
    values |= {
        "decision_two_way": fits and one.label != "maybe",
        **({"vetoed": one.veto is not None} if succeeded else {}),
    }
    if succeeded:
        values |= {f"part_{name}": part for name, part in one.parts.items()}
        values |= {**one.outputs["final_evaluation"]["scores"], "reward": one.reward, "seconds": one.seconds}
        values |= {name: one.counts[name] for name in ("model_calls", "tool_calls", "repairs")}
        values |= {name: one.counts[name] for name in ("prompt_tokens", "completion_tokens")}
        values["turns"] = one.outputs["turn_count"]
        values["revisions"] = one.outputs["major_revisions"]
        values["tool_success"] = 1 - one.counts["failed_tool_calls"] / 4
        values["cost"] = (2 * one.tokens["junior"]["prompt"] + 10 * 400) / 1e6
    return {name: float(value) for name, value in values.items()}


def test_every_mean_of_every_stage_is_what_its_records_give(report, run):
    for stage, rows in records(run).items():
        values = [direct_values(one) for one in rows]
        names = {name for row in values for name in row}
        assert set(report["stages"][stage]) == names | {"macro_f1"}
        for name in names:
            given = [row[name] for row in values if name in row]
            found = report["stages"][stage][name]
            assert found["mean"] == pytest.approx(fmean(given), abs=1e-12), name
            assert found["n"] == len(given), name
            assert found["low"] <= found["mean"] + 1e-12, name
            assert found["high"] >= found["mean"] - 1e-12, name
        answers = [LABEL_OF.get(one.decision) for one in rows]
        assert report["stages"][stage]["macro_f1"]["mean"] == pytest.approx(macro_f1(answers))


def test_intervals_of_rewards_are_about_as_wide_as_students(report, run):
    for stage, rows in records(run).items():
        rewards = [one.reward for one in rows if one.reward is not None]
        low, high = stats.t.interval(0.95, len(rewards) - 1, fmean(rewards), stats.sem(rewards))
        found = report["stages"][stage]["reward"]
        assert (found["low"], found["high"]) == pytest.approx((low, high), abs=0.2 * (high - low))


def test_outcomes_count_failures_and_decisions_and_name_the_record_of_each_rollout(report, run):
    found = report["outcomes"]["base"]
    assert (found["count"], found["tasks"], found["failed"]) == (12, 12, 1)
    assert list(found["failures"].values()) == [1]
    assert found["confusion"]["yes"] == {"yes": 3, "no": 2, "maybe": 1, "none": 0}
    assert found["confusion"]["no"] == {"yes": 2, "no": 2, "maybe": 0, "none": 0}
    assert found["confusion"]["maybe"] == {"yes": 1, "no": 0, "maybe": 0, "none": 1}
    assert found["decisions"] == {"GO": 6, "NO-GO": 4, "UNDECIDED": 1, "none": 1}
    assert (found["vetoed"], found["vetoes"]) == (4, {VETO.replace("2", "#").replace("3", "#"): 4})
    for row in found["rollouts"]:
        line = (run.path / row["file"]).read_text().splitlines()[row["line"] - 1]
        recorded = json.loads(line)
        assert (recorded["rollout_id"], recorded["reward"]) == (row["id"], row["reward"])
    assert found["rollouts"][11]["error"] == FAILURE


def test_comparisons_are_paired_tested_and_corrected_over_the_report(report, run):
    before, after = records(run).values()
    pairs = [(old.reward, new.reward) for old, new in zip(before, after, strict=True) if old.reward is not None]
    old, new = np.array(pairs).T
    found = report["comparisons"]["base:sft"]["reward"]
    assert found["n"] == len(pairs) == 11
    assert (found["before"], found["after"]) == pytest.approx((old.mean(), new.mean()))
    assert found["difference"] == pytest.approx((new - old).mean())
    assert found["low"] < found["difference"] < found["high"]
    fits = [[direct_values(one)["alignment"] for one in rows] for rows in (before, after)]
    changes = np.array(fits[1]) - np.array(fits[0])
    gained, lost = int((changes > 0).sum()), int((changes < 0).sum())
    aligned = report["comparisons"]["base:sft"]["alignment"]
    assert aligned["p"] == pytest.approx(stats.binomtest(gained, gained + lost).pvalue)
    assert aligned["difference"] == pytest.approx((gained - lost) / 12)
    main = f"base:{report['plan']['stages'][-1]['name']}"
    rows = [(pair, row) for pair, found in report["comparisons"].items() for row in found.values()]
    for kind in ((True, True), (True, False), (False, False)):
        family = [row for pair, row in rows if (row["primary"], row["primary"] and pair == main) == kind]
        assert family
        corrected = multipletests([row["p"] for row in family], method="holm")[1]
        assert [row["p_adjusted"] for row in family] == pytest.approx(list(corrected))
        for row in family:
            assert (row["verdict"] in ("no difference shown", "non-inferior")) == (row["p_adjusted"] >= 0.05)


def test_baselines_of_the_same_rollouts_and_of_as_many_tokens(report):
    """1,400 tokens of the society are four calls of 350; three of them say no, as all first refinements do."""
    shares = {name: one["alignment"]["mean"] for name, one in report["baselines"].items()}
    assert shares["single@base"] == pytest.approx(2 / 12)
    assert shares["consistency@base"] == shares["unreviewed@sft"] == pytest.approx(4 / 12)
    assert shares["juniors@sft"] == pytest.approx(6 / 12)
    assert report["baselines"]["unreviewed@base"]["errors"] == {FAILURE: 1}
    work = report["work"]
    assert work["majority"] == {"calls": 0, "tokens": 0}
    assert work["consistency@base"] == {"calls": 4, "tokens": 1400}
    assert work["juniors@sft"] == {"calls": 2, "tokens": 330}
    assert work["unreviewed@sft"] == {"calls": 3, "tokens": 450}
    assert work["sft"] == {"calls": pytest.approx(12 + 5.5), "tokens": pytest.approx(1405.5)}
    for name in report["baselines"]:
        assert "alignment" in report["comparisons"][f"{name}:sft"]


def test_a_baseline_that_could_not_be_fitted_is_not_zero_per_cent_right_and_is_compared_with_nothing(study, run, built):
    why = "all training tasks have the label 'yes'"
    unfitted = tuple(BaselineAnswer("tfidf", task.id, 0, None, why) for task in PLAN.tasks)
    report = build(replace(study, baselines=(*study.baselines, *unfitted)), [], run.path / "report")
    title = "TF-IDF + logistic regression"
    assert report["baselines"]["tfidf"] == {"title": title, "answered": 0, "errors": {why: 12}}
    assert "tfidf:sft" not in report["comparisons"]
    assert report["families"] == built["families"], "no test is counted for it"
    assert not any("tfidf" in level["right"] for level in report["levels"].values())
    rows = [line for line in markdown(report).splitlines() if line.startswith(f"| {title}")]
    assert [line.split(" | ")[1:3] for line in rows] == [["–", "–"], ["–", "– |"]]
    assert f"12 × {why}" in rows[0]
    (row,) = re.findall(rf"<tr><th[^>]*>{re.escape(title)}.*?{why[:8]}.*?</th>(.*?)</tr>", page(report, {}))
    assert re.sub(r"<[^>]+>", " ", row).split()[:2] == ["–", "–"]
    (line,) = [line for line in printed(report).splitlines() if "tfidf" in line]
    assert re.search(rf"tfidf +\(not fitted: {why}\) +– +–", line.replace("│", " "))
    assert f"not fitted: {why}" in markdown(report)


def test_a_stage_whose_rollouts_all_failed_is_not_zero_per_cent_right(study, run):
    gone = {"status": "failed", "error": "late", "answer": None, "decision": None, "reward": None, "parts": {}}
    failed = tuple(replace(one, **gone) for one in study.answers["sft"].records)
    answers = {**study.answers, "sft": replace(study.answers["sft"], records=failed)}
    broken = replace(
        study, answers=answers, baselines=tuple(one for one in study.baselines if "sft" not in one.baseline)
    )
    report = build(broken, [], run.path / "report")
    assert report["stages"]["sft"]["success"]["mean"] == 0.0
    assert set(report["stages"]["sft"]).isdisjoint(("alignment", "macro_f1", "decision_alignment", "decision_two_way"))
    assert "answers right has no value in both; success worse, from 91.7 to 0.0 %" in report["verdict"]["text"]
    assert not any("sft" in level["right"] for level in report["levels"].values())
    assert "The society, after sft, gave no answer" in markdown(report)
    assert " 0.0 % right" not in markdown(report) + page(report, {})
    (line,) = [line for line in printed(report).splitlines() if "society sft" in line]
    assert line.replace("│", " ").split()[:4] == ["society", "sft", "–", "–"]
    read = Page(page(report, {}))
    assert {link.removeprefix("#") for link in read.links if link.startswith("#")} <= set(read.ids)
    assert impossible(report) == []


def test_answers_by_level_are_those_of_the_level_s_tasks(report, study, run):
    assert [(level, found["tasks"]) for level, found in report["levels"].items()] == [("1", 6), ("2", 6)]
    for start, found in enumerate(report["levels"].values()):
        rows = records(run)["base"][start::2]
        one = found["right"]["base"]
        assert one["mean"] == pytest.approx(fmean(direct_values(row)["alignment"] for row in rows))
        assert one["low"] <= one["mean"] <= one["high"]
        assert one["n"] == 6
        majority = fmean(label == answer for label, answer in list(zip(LABELS, MAJORITY, strict=True))[start::2])
        assert found["right"]["majority"]["mean"] == pytest.approx(majority)
    assert "Answers right by difficulty" in markdown(report)
    assert "Level 2" in page(report, {})
    plain = replace(PLAN, tasks=tuple(replace(task, level=None) for task in PLAN.tasks))
    without = build(replace(study, plan=plain), (), run.path)
    assert without["levels"] == {}
    assert "by difficulty" not in markdown(without)
    assert "Level 2" not in page(without, {})


def test_a_planned_task_counts_its_studies():
    tasks = [PlannedTask.of(item.task) for item in review(4, seed=3)]
    assert [task.studies for task in tasks] == [4, 8, 12, 16]


def several(study):
    """`study` on tasks that 2, 4 and 6 studies answer."""
    tasks = tuple(replace(task, studies=2 + 2 * (place % 3)) for place, task in enumerate(PLAN.tasks))
    return replace(study, plan=replace(PLAN, tasks=tasks))


def test_the_gap_to_the_strongest_baseline_stands_by_the_number_of_studies(study, run):
    drawn = Plot("studies", "Studies", {"png": "studies.png"}, "How to read it.")
    report = build(several(study), [drawn], run.path / "report")
    assert "studies.png" in markdown(report).partition("## Stages")[0]
    by_studies, rival = report["studies"], report["strongest"]
    assert by_studies["systems"] == ["sft", rival]
    gaps = [after - before for _, _, _, before, after in report["pairs"][f"{rival}:sft"]]
    for start, (count, row) in enumerate(by_studies["counts"].items()):
        assert (count, row["tasks"]) == (str(2 + 2 * start), 4)
        sides = [row["right"][name]["mean"] for name in (rival, "sft")]
        assert row["gap"]["difference"] == pytest.approx(sides[1] - sides[0]) == pytest.approx(fmean(gaps[start::3]))
        assert row["gap"]["low"] <= row["gap"]["difference"] <= row["gap"]["high"]
    line = by_studies["slope"]
    fitted = stats.linregress([(2 + 2 * (place % 3)) / by_studies["step"] for place in range(12)], gaps)
    assert line["mean"] == pytest.approx(fitted.slope)
    assert line["low"] < line["mean"] < line["high"]
    grown = f"{change(line['mean'], 'share')} points ({change(line['low'], 'share')} to"
    for text in (markdown(report), page(report, {}), printed(report, 400)):
        assert "Does the gap grow with more studies?" in text
        assert grown in text
    row = next(line for line in markdown(report).splitlines() if line.startswith("| 6 studies"))
    assert change(by_studies["counts"]["6"]["gap"]["difference"], "share") in row
    assert "6 studies" in printed(report)
    report["studies"]["slope"] |= {"mean": 0.2, "low": 0.1, "high": 0.3}
    assert "Yes, on these tasks: +20.0 points (+10.0 to +30.0) for every 4 studies more" in markdown(report)
    report["studies"]["slope"] |= {"mean": -0.2, "low": -0.3, "high": -0.1}
    assert "No, it shrinks: −20.0 points" in markdown(report)


@pytest.mark.parametrize("studies", [0, 4])
def test_tasks_of_as_many_studies_have_no_figures_by_studies(study, run, studies):
    tasks = tuple(replace(task, studies=studies) for task in PLAN.tasks)
    report = build(replace(study, plan=replace(PLAN, tasks=tasks)), [], run.path / "report")
    assert "studies" not in report
    assert all(("studies" in task) == bool(studies) for task in report["plan"]["tasks"])
    assert Plan.load(report["plan"]).tasks == tasks
    assert "number of studies" not in markdown(report) + page(report, {}) + printed(report)


def test_what_the_gate_decided_has_the_gate_s_verdict_in_the_report(study, run, built):
    """12 tasks with other settings in gate and report: a report on the gate's own rollouts repeats the gate."""
    settings = {"tasks": 12, "confidence": 0.8, "resamples": 300}
    config = run.config.model_copy(update={"gate": run.config.gate.model_copy(update=settings)})
    by_gate = {name: replace(one, second_tries=0) for name, one in study.answers.items()}

    class GatedRun(Run):
        config = property(lambda self: config)

    gated = replace(study, run=GatedRun(run.path), answers=by_gate)
    decided = compare_gate(by_gate["base"].records, by_gate["sft"].records, ("base", "sft"), config)
    reported = compare_all(gated)["base:sft"]
    assert (reported["reward"], reported["alignment"]) == (decided.reward, decided.alignment)
    assert reported["macro_f1"].p_adjusted >= reported["macro_f1"].p
    report = build(gated, [], run.path / "report")
    assert report["comparisons"]["base:sft"]["reward"]["by_gate"]
    assert "decided by the gate, so in no family: 2 tests" in " ".join(page(report, {}).split())
    assert not any(one["by_gate"] for one in built["comparisons"]["base:sft"].values())
    again = replace(gated, answers={**by_gate, "base": replace(by_gate["base"], second_tries=1)})
    assert not compare_all(again)["base:sft"]["reward"].by_gate


def test_latencies_stand_beside_those_that_were_made_in_the_same_place(study, run, built):
    assert "seconds" in built["comparisons"]["base:sft"]
    assert not any("atencies" in note for note in built["notes"])
    base = study.answers["base"]
    apart = replace(base, records=tuple(replace(record, phase="eval-val-base") for record in base.records))
    mixed = build(replace(study, answers={**study.answers, "base": apart}), [], run.path / "report")
    assert "seconds" not in mixed["stages"]["base"]
    assert "seconds" in mixed["stages"]["sft"]
    assert "seconds" not in mixed["comparisons"]["base:sft"]
    assert any("Latencies of base are left out" in note for note in mixed["notes"])


def test_the_same_numbers_are_in_csv_files_for_other_programs(report):
    rows = list(csv.DictReader(io.StringIO(metrics_csv(report))))
    (one,) = [row for row in rows if (row["kind"], row["name"], row["metric"]) == ("stage", "sft", "reward")]
    assert float(one["value"]) == report["stages"]["sft"]["reward"]["mean"]
    assert float(one["low"]) == report["stages"]["sft"]["reward"]["low"]
    differences = [row for row in rows if row["kind"] == "difference"]
    assert len(differences) == sum(map(len, report["comparisons"].values()))
    assert {row["verdict"] for row in differences} == {
        one["verdict"] for found in report["comparisons"].values() for one in found.values()
    }
    rollouts = list(csv.DictReader(io.StringIO(rollouts_csv(report))))
    assert [row["id"] for row in rollouts] == [f"ro-{stage}-{task}" for stage in DECISIONS for task in range(12)]
    assert rollouts[11]["error"] == FAILURE
    assert rollouts[11]["reward"] == ""
    assert float(rollouts[12]["reward"]) == report["outcomes"]["sft"]["rollouts"][0]["reward"]


@pytest.mark.parametrize("text", ["=1+1", "+1", "-2", "@now", "\tx"])
def test_text_that_a_spreadsheet_would_run_is_marked_as_text(report, text):
    report["outcomes"]["sft"]["rollouts"][0]["veto"] = text
    (row,) = [
        row
        for row in csv.DictReader(io.StringIO(rollouts_csv(report)))
        if (row["id"], row["stage"]) == ("ro-sft-0", "sft")
    ]
    assert row["veto"] == f"'{text}"


def test_the_first_and_the_last_stage_and_what_a_phase_changed_lead_to_conversations(report):
    three = copy.deepcopy(report)
    three["outcomes"] = {
        name: copy.deepcopy(three["outcomes"][at]) for name, at in (("base", "base"), ("mid", "sft"), ("sft", "sft"))
    }
    for row in three["outcomes"]["mid"]["rollouts"]:
        row["id"] = f"mid-{row['task']}"
    mid = {**three["plan"]["stages"][1], "name": "mid"}
    three["plan"]["stages"].insert(1, mid)
    ends = {row["id"] for name in ("base", "sft") for row in three["outcomes"][name]["rollouts"]} - {"ro-base-11"}
    changed = {
        new["id"]
        for old, new in zip(three["outcomes"]["base"]["rollouts"], three["outcomes"]["mid"]["rollouts"], strict=True)
        if (old["answer"] == old["label"]) != (new["answer"] == new["label"])
    }
    assert changed
    assert linked(three) == ends | changed
    for wanted, number in (("none", 0), ("all", 35)):  # A failed rollout has no trace.
        three["settings"]["conversations"] = wanted
        assert len(linked(three)) == number
    three["outcomes"]["base"]["rollouts"][0]["trace"] = None
    assert "ro-base-0" not in linked(three)


def test_a_number_leads_to_its_rollouts_and_a_rollout_to_its_conversation(report):
    text = page(report, {})
    assert '<a href="rollouts/ro-sft-0.html">ro-sft-0</a>' in text
    assert "23 of them lead to their conversation" in text
    report["settings"]["conversations"] = "none"
    assert "rollouts/ro-sft-0.html" not in page(report, {})


def test_baselines_and_pairs_come_from_the_same_tasks(report):
    majority = report["baselines"]["majority"]
    assert (majority["answered"], majority["errors"]) == (11, {"no answer": 1})
    assert majority["alignment"]["mean"] == pytest.approx(6 / 12)
    assert majority["macro_f1"]["mean"] == pytest.approx(macro_f1(MAJORITY))
    against = report["comparisons"]["majority:sft"]
    assert set(against) == {"alignment", "macro_f1"}
    assert against["alignment"]["difference"] == pytest.approx((6 + 3 + 1 - 6) / 12)
    rows = {row[0]: row[1:] for row in report["pairs"]["base:sft"]}
    assert rows["t11"][0] is None
    assert rows["t11"][2:] == [0.0, 0.0]
    assert rows["t3"][2:] == [0.0, 1.0]
    assert {row[1] for row in report["pairs"]["majority:sft"]} == {None}


def test_what_surrounds_the_numbers_is_there(report, run):
    assert report["run"]["name"] == "hand"
    assert (run.path / "report" / report["run"]["path"]).resolve() == run.path
    assert (report["run"]["phases"], report["run"]["rolled_back"]) == (["sft"], ["ppo"])
    assert report["players"]["junior"]["model"] == "nano"
    assert report["players"]["judge"] == {"kind": "rubric", "model": "rubric", "roles": ["Judge"]}
    assert [row["kind"] for row in report["ablation"]] == ["sequence", "alone"]
    assert (report["references"], report["predictions"]) == ([], None), "only PubMedQA has them"
    assert report["verdict"]["comparison"] == "base:sft"
    assert any("generated" in note for note in report["notes"])
    assert any("1 of 12 rollouts of base failed" in note for note in report["notes"])
    assert any("ppo" in note and "rolled back" in note for note in report["notes"])
    assert not any("prices" in note for note in report["notes"])
    assert report["side_by_side"]


def test_the_gate_favours_only_what_it_could_roll_back(study):
    untrained = replace(study.plan, stages=STAGES[:1])
    assert any("The gate decided" in note for note in notes(study))
    assert not any("The gate decided" in note for note in notes(replace(study, plan=untrained)))


def test_it_is_said_which_phase_began_with_what_another_had_learned(study):
    def told(phases):
        learned = {name: Policy.made("weights", slot, name) for name, slot in phases}
        return [note for note in notes(replace(study, plan=replace(study.plan, learned=learned))) if "began" in note]

    assert study.config.pipeline["ppo"].start == "junior"
    (note,) = told([("sft", "junior"), ("ppo", "refiner"), ("design", "senior")])
    assert note.startswith("ppo began with the weights that junior had after sft, not with those of refiner")
    assert told([("ppo", "refiner"), ("design", "senior")]) == []
    assert told([("ppo", "refiner"), ("sft", "junior")]) == []


def test_the_families_of_tests_and_their_declaration_are_shown(report, study):
    shown = [markdown(report), page(report, {})]
    assert report["families"]["declared"] is None
    assert any("declares no families" in note for note in report["notes"])
    sizes = {name: family["tests"] for name, family in report["families"]["used"].items()}
    assert sizes["main"] == 3
    assert sum(sizes.values()) == sum(map(len, report["comparisons"].values()))
    for text in shown:
        words = " ".join(re.sub(r"[\\\\]", "", text).split())
        assert "Families of tests, not declared before the run: main (main/reward, main/alignment, main/" in words
    report["families"] |= {"declared": "2026-01-01", "as_declared": True}
    assert "declared at the run's start, 2026-01-01: main" in markdown(report)


def test_a_report_without_a_second_judge_says_so(report):
    report["judges"] |= {"auditor": None, "n": 0}
    assert "There was no second judge." in markdown(report)


def test_stages_are_compared_in_sequence_with_the_first_and_alone():
    names = ["base", "sft", "ppo"]
    stages = [Stage(name, name, "sequence", (), {}) for name in names] + [Stage("only-ppo", "", "alone", (), {})]
    plan = Plan("val", "generated", "", PLAN.tasks, 1, tuple(stages))
    assert stage_pairs(plan) == [("base", "sft"), ("sft", "ppo"), ("base", "ppo"), ("base", "only-ppo")]


def test_with_repeats_tasks_are_what_is_counted(run, tmp_path):
    twice = Plan("val", "generated", "generated tasks", PLAN.tasks, 2, STAGES)
    weights = run.config.reward.model_dump()
    with Run.create("twice", load_config(None, [f"runs_dir={tmp_path}", "evaluation.resamples=200"])) as repeated:
        for stage in STAGES:
            for task in range(len(LABELS)):
                first = make_record(stage, task, weights)
                again = make_record(stage, (task + 1) % 6, weights) if task < 6 else first
                phase = f"eval-val-{stage.name}"
                repeated.append_rollout(first.dump(), phase=phase)
                second = {"rollout_id": f"{first.rollout_id}-again", "task_id": first.task_id, "repeat": 1}
                repeated.append_rollout({**again.dump(), **second}, phase=phase)
    study = load_study(Run(repeated.path), twice)
    report = build(study, [], tmp_path)
    assert report["stages"]["base"]["alignment"]["n"] == 12
    rewards: dict[str, list[float]] = {}
    for one in study.answers["sft"].records:
        rewards.setdefault(one.task_id, []).append(one.reward)
    assert report["stages"]["sft"]["reward"]["mean"] == pytest.approx(fmean(map(fmean, rewards.values())))
    assert sum(sum(row.values()) for row in report["outcomes"]["sft"]["confusion"].values()) == 24
    assert report["comparisons"]["base:sft"]["alignment"]["test"] == "exchange test"
    read = Page(page(report, {}))
    assert {link.removeprefix("#") for link in read.links if link.startswith("#")} <= set(read.ids)


def test_published_results_stand_beside_the_official_split_only(study):
    study = replace(study, plan=replace(study.plan, official=True))
    report = build(study, [], study.run.path)
    assert report["references"][0]["accuracy"] == 78.0
    assert "78.0" in page(report, {})
    assert "arXiv:1909.06146" in markdown(report)


def test_one_failed_rollout_is_missing_in_the_predictions_and_counted_on_the_report(study, run, tmp_path):
    plan = replace(PLAN, split="test", source="pubmedqa", stages=STAGES[:1])
    answers = {"base": study.answers["base"]}
    official = replace(study, plan=plan, answers=answers)
    assert publish_predictions(official, tmp_path) == tmp_path / "predictions.json"
    predicted = json.loads((tmp_path / "predictions.json").read_text())
    assert predicted == {f"t{task}": LABEL_OF[d] for task, d in enumerate(DECISIONS["base"]) if d is not None}
    assert json.loads((tmp_path / "predictions_missing.json").read_text()) == {"t11": FAILURE}
    built = build(official, [], run.path / "report")
    assert built["predictions"] == {"stage": "base", "answered": 11, "missing": ["t11"]}
    (sentence,) = [note for note in built["notes"] if "predictions.json" in note]
    assert sentence.startswith("1 of 12 test items have no answer (t11)")
    assert "1 of 12 test items have no answer (t11)" in markdown(built)
