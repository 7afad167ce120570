"""The first screen of a report: where the society stands, what each phase gave, and what to know before reading."""

import re
import shutil
from dataclasses import replace
from html import unescape

import pytest
from report_kit import PLAN, SFT, STAGES, printed

from chimera.run.directory import TRIAL, Run
from evaluation.conduct.recorded_study import load_study
from evaluation.records.study import BaselineAnswer, Plan
from evaluation.report.build import build
from evaluation.report.content import page
from evaluation.report.content import text as markdown
from evaluation.report.content.head import gains
from evaluation.report.formats import change, data_words, pays_words, sentence, shown, slug, standing_words
from evaluation.report.gains import gain_rows, gain_tables, replaced
from evaluation.report.losses import lost_words
from evaluation.report.notes import cautions, notes, players
from training.configuration import load_config


def test_the_first_screen_says_where_the_society_stands(report):
    assert report["standing"][0] == "sft"
    assert {"unreviewed@sft", "juniors@sft"} <= set(report["standing"])
    first = page(report, {}).partition("<nav")[0].partition("<main>")[2]
    assert "Majority of the juniors of stage sft" in first
    assert "1,406" in first
    head = markdown(report).partition("## Stages")[0]
    assert "the strongest baseline of at most as many tokens: " in head


@pytest.mark.parametrize(
    ("verdict", "word"),
    [("better", "Yes"), ("worse", "No:"), ("no difference shown", "Not shown"), ("non-inferior", "Not")],
)
def test_whether_a_team_pays_is_said_with_the_interval(report, verdict, word):
    pair = f"{report['strongest']}:{report['standing'][0]}"
    row = report["comparisons"][pair]["alignment"]
    row |= {"verdict": verdict, "difference": 0.0525, "low": -0.01, "high": 0.115}
    words = pays_words(report)
    assert words.startswith(word)
    assert "+5.2 points" in words or "+5.3 points" in words
    assert "+11.5" in words
    assert words in page(report, {}).partition("<nav")[0]
    assert "Does a team pay?" in printed(report)
    report["strongest"] = None
    assert pays_words(report) == ""


def test_where_the_strongest_rival_divides_the_evidence_too_dividing_is_judged_apart(study, run):
    """Map and reduce is right on all tasks for few tokens. What asks no model, and is right on all, reads nothing."""
    question = "Does dividing the evidence pay?"

    def answers(name, right, calls):
        tasks = [(task.id, task.label if place < right else None) for place, task in enumerate(PLAN.tasks)]
        return [BaselineAnswer(name, id_, 0, label, None, calls, 100, 10) for id_, label in tasks]

    drawn = [*answers("mapreduce@base", 12, 5), *answers("single@base", 5, 1), *answers("greedy@base", 4, 1)]
    divided = replace(study, baselines=(*drawn, *answers("majority", 12, 0)))
    report = build(divided, [], run.path / "report")
    assert report["undivided"] == "single@base"
    row = report["comparisons"][f"single@base:{report['standing'][0]}"]["alignment"]
    words = pays_words(report, undivided=True)
    assert f"{change(row['difference'], 'share')} points" in words
    assert report["baselines"]["single@base"]["title"] in words
    for text in (unescape(page(report, {}).partition("<nav")[0]), printed(report, 400)):
        assert question in text
        assert words in text
    report["strongest"] = "single@base"
    assert question not in page(report, {})


def test_who_lost_the_wrong_answers_is_on_the_first_screen(report):
    """All hypotheses say yes: juniors lost what is not yes, and what is yes and answered otherwise was changed last."""
    assert report["lost"]["base"] == {
        "rollouts": 12,
        "wrong": 7,
        "steps": {"juniors": 3, "supervisor": 0, "refiner": 0, "review": 3, "failed": 1},
        "vetoed": 2,
    }
    words = lost_words(report)
    assert words.startswith("After sft, 2 of 12 answers are wrong, lost by the juniors (nothing right handed on) 2.")
    assert words in page(report, {}).partition("<nav")[0]
    assert words in markdown(report).partition("## Stages")[0]
    assert [row["lost"] for row in report["outcomes"]["base"]["rollouts"]].count("failed") == 1
    wrong = [row["id"] for row in report["outcomes"]["sft"]["rollouts"] if row["answer"] != row["label"]]
    section = page(report, {}).partition('id="lost"')[2].partition("<h2")[0]
    assert re.findall(r'<a href="rollouts/([^"]+)\.html">', section) == wrong
    report["lost"] = {}
    assert lost_words(report) == ""
    assert "Who lost" not in page(report, {}) + markdown(report)


def test_what_each_phase_gave_is_on_the_first_screen(report):
    report["plan"]["learned"] = {"sft": SFT.dump()}
    (sft, whole) = gain_rows(report)
    assert (sft["phase"], sft["learner"], whole["phase"]) == ("sft", "junior", "all together")
    own = report["comparisons"]["base:sft"]
    for cell, name in zip(sft["cells"], ("alignment", "reward"), strict=True):
        assert {key: cell[key] for key in ("difference", "low", "verdict")} == {
            key: own[name][key] for key in ("difference", "low", "verdict")
        }
    assert list(gains(report))
    for head in (page(report, {}).partition("<nav")[0], markdown(report).partition("## Stages")[0]):
        assert "all together" in head.lower()
        assert "junior" in head
    report["ablation"] = []
    assert (gain_tables(report), gain_rows(report), list(gains(report))) == ([], [], [])


def test_the_society_beside_the_strongest_baseline_of_its_tokens_is_on_the_first_screen(report):
    """The juniors' majority is part of the society, and what uses more tokens than it is no rival."""
    strongest, final = report["strongest"], report["standing"][0]
    limit, rivals = report["work"][final]["tokens"], {}
    for name, row in report["baselines"].items():
        tokens = report["work"][name]["tokens"]
        if name.partition("@")[0] not in ("juniors", "unreviewed") and tokens is not None and tokens <= limit:
            rivals[name] = row["alignment"]["mean"]
    assert rivals[strongest] == max(rivals.values())
    assert strongest in report["standing"]
    pair = f"{strongest}:{final}"
    found, title = report["comparisons"][pair]["alignment"], report["baselines"][strongest]["title"]
    first = page(report, {}).partition("<nav")[0]
    card = first.partition("beside the strongest baseline")[2].partition("</section>")[0]
    assert f'<a href="#pairs-{slug(pair)}">{change(found["difference"], "share")}</a>' in card
    assert f"{sentence(title)}: {shown(found['before'], 'share')} %" in card
    assert title in standing_words(report)
    assert title in markdown(report).partition("## Stages")[0]
    report["strongest"] = None
    assert "strongest baseline" not in page(report, {})
    assert standing_words(report) == ""


def test_a_report_says_at_which_temperature_was_answered(report):
    for temperature, words in ((0.3, "sampled at temperature 0.3"), (0, "greedy"), (None, "each slot's own")):
        report["settings"]["temperature"] = temperature
        assert words in markdown(report).partition("## Stages")[0]
        assert words in unescape(page(report, {}).partition("<nav")[0])


def test_a_phase_whose_policy_another_replaced_is_named(report):
    again = {**SFT.dump(), "version": "junior@again", "folder": "models/junior/again"}
    report["plan"]["learned"] = {"sft": SFT.dump(), "again": again}
    assert replaced(report) == [
        "What again learned replaced what sft learned, so without sft the end is the same: sft counts only where again "
        "is not."
    ]


def test_the_terminal_s_tables_fit_80_columns_and_know_no_minus_zero(report):
    report["comparisons"]["base:sft"]["reward"]["low"] = -0.0001
    text = printed(report, 80)
    tables = text.partition("After sft beside base")[0]
    assert all(len(line.rstrip()) <= 80 for line in tables.splitlines() if "intervals, not corrected" not in line)
    assert "-0.000" not in text
    assert "−0.000" not in text
    assert "[0.000, " in text
    assert "…" not in text
    assert "society sft" in text


@pytest.mark.parametrize(
    ("path", "name"),
    [("nano", "nano"), ("owner/model", "owner/model"), ("/home/me/secret/mine", "mine"), ("../up/mine", "mine")],
)
def test_a_models_folder_is_named_without_where_it_lies(path, name):
    assert players(load_config(None, [f"models.junior.path={path}"]))["junior"]["model"] == name


def test_what_was_rolled_back_stands_on_the_first_screen(report):
    for head in (markdown(report).partition("## Stages")[0], page(report, {}).partition('id="stages"')[0]):
        assert "rolled back by the gate, so no stage here: ppo" in head
    report["run"]["rolled_back"] = []
    assert "rolled back by" not in markdown(report)


def test_a_single_stage_has_nothing_to_be_compared_with(run):
    alone = Plan("val", "generated", "generated tasks", PLAN.tasks, 1, STAGES[:1])
    report = build(load_study(run, alone), [], run.path / "report")
    assert set(report["comparisons"]) == {f"{name}:base" for name in report["baselines"]}
    assert "nothing to compare" in report["verdict"]["text"]
    assert "nothing to compare" in page(report, {})
    assert "run hand" in markdown(report).splitlines()[0]


def test_a_trial_is_called_one_on_the_reports_first_screen(study, built, tmp_path):
    assert "--quick" not in page(built, {})
    shutil.copytree(study.run.path, tmp_path / "hand")
    with Run(tmp_path / "hand").own() as run:
        run.ledger("planned", phases=["sft"], trial=True)
    report = build(replace(study, run=Run(run.path)), [], run.path / "report")
    assert report["cautions"] == [TRIAL]
    first = page(report, {}).partition("<nav")[0]
    assert "This is a trial (--quick)" in first
    assert "**warning:** This is a trial (--quick)" in markdown(report)


def test_roles_that_never_searched_are_named_on_the_report(study, report):
    assert not any("never called a tool" in note for note in report["notes"])
    silent = [
        replace(one, tool_calls={"Geneticist": 0, "Pharmacologist": 3, "Neurologist": 1})
        for one in study.answers["sft"].records
    ]
    answers = {**study.answers, "sft": replace(study.answers["sft"], records=tuple(silent))}
    (note,) = [note for note in notes(replace(study, answers=answers)) if "never called a tool" in note]
    assert note.startswith("after sft: Geneticist (12 rollouts) never called a tool")


def test_the_bundled_model_is_called_a_toy_where_the_tasks_are_not_generated(study):
    assert cautions(study) == []
    own = replace(study, plan=replace(study.plan, source="own"))
    (caution,) = cautions(own)
    assert (
        "the bundled model plays junior, supervisor, senior, refiner: a toy that knows invented studies only" in caution
    )
    assert "models.junior.path=FOLDER" in caution
    report = build(own, [], own.run.path / "report")
    first = page(report, {}).partition("<nav")[0]
    assert "a toy that knows invented studies only" in first
    assert "**warning:** The bundled model plays" in markdown(report)
    assert "own test tasks" in data_words({"plan": {**own.plan.dump(), "split": "test"}})
