"""The pages of a report: whole HTML that needs nothing else, links that lead somewhere, and text that stays text."""

import re
from dataclasses import asdict

from web_kit import Page

from evaluation.report.content import page
from evaluation.report.content import text as markdown
from evaluation.report.content.answers import inlined
from evaluation.report.formats import slug
from evaluation.report.plots.base import Plot

SVG = '<?xml version="1.0"?>\n<!DOCTYPE svg>\n<svg width="9pt" viewBox="0 0 9 9"><g id="a"/><use href="#a"/></svg>\n'


def test_the_page_needs_nothing_else_and_all_its_links_lead_somewhere(report):
    report["plots"].append(asdict(Plot("drawn", "Drawn", {"svg": "drawn.svg"}, "how to read it")))
    read = Page(page(report, {"drawn": SVG}))
    assert len(read.ids) == len(set(read.ids))
    assert "link" not in read.tags
    assert {link.removeprefix("#") for link in read.links if link.startswith("#")} <= set(read.ids)
    pages = {f"rollouts/{row['id']}.html" for found in report["outcomes"].values() for row in found["rollouts"]}
    assert {link for link in read.links if not link.startswith("#")} <= pages


def test_each_mean_leads_to_its_column_and_each_cell_of_a_confusion_matrix_to_its_rollouts(report):
    text = page(report, {})
    for name, mean in report["stages"]["sft"].items():
        assert f'<a href="#sft.{name}">' in text, (name, mean)
        assert f'id="sft.{name}"' in text
    assert '<a href="#base.yes.no">2</a>' in text
    row = re.search(r'<tr id="([^"]+)"><th scope="row"><i id="base.yes.no">', text)
    assert row is not None
    assert row[1] == "base-ro-base-3"
    assert "rollouts/gate-base.jsonl:5" in text
    assert "python -m chimera.trace hand ID" in text
    labels = ("是", "否", "<5%", ">5%", "A+", "A-", "a~b", "a b")
    assert len({slug(f"base.{label}.yes") for label in labels} - {"base.--.yes"}) == len(labels)
    assert slug("base:final-2.yes.no_") == "base-final-2.yes.no_"


def test_what_models_wrote_is_text_in_page_and_markdown(report):
    text = page(report, {})
    assert "<script>alert" not in text
    assert "&lt;script&gt;alert" in text
    assert Page(text).tags.count("script") == 1
    lines = markdown(report)
    assert "<script" not in lines.replace("\\<script", "")
    assert "| [a](" not in lines


def test_the_first_screen_says_what_was_compared_on_what_by_whom_with_the_verdict(report):
    first = page(report, {}).partition("<nav")[0].partition("<main>")[2]
    words = re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", first))
    assert "12 generated validation tasks" in words
    assert "PubMedQA" not in words
    assert "nano (embedded)" in words
    assert "rubric (deterministic, no language model)" in words
    row = report["comparisons"]["base:sft"]["alignment"]
    assert f"{100 * row['difference']:+.1f}" in words
    assert f"{100 * row['low']:+.1f} to {100 * row['high']:+.1f}".replace("-", "−") in words
    assert row["verdict"].capitalize() in words


def test_pages_say_answers_right_and_right_answer_and_never_alignment(report):
    shown = re.sub(r"<[^>]+>", " ", page(report, {}).partition("</style>")[2].partition("<script")[0]) + markdown(
        report
    )
    families = re.compile(r"(main|elsewhere|\*)/alignment|run/alignment")
    assert "alignment" not in families.sub("", shown)
    assert "answers right" in shown.lower()
    assert "right answer" in shown


def test_a_plot_that_is_missing_leaves_its_reason_and_one_that_is_there_is_as_wide_as_the_page_allows(report):
    for text in (page(report, {}), markdown(report)):
        assert "there are no metrics" in text
    assert inlined(SVG) == '<svg viewBox="0 0 9 9"><g id="a"/><use href="#a"/></svg>'
    assert inlined(None) == ""
