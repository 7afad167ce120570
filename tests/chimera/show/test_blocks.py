"""Blocks in three forms: page, Markdown and terminal show the same words, and no text becomes markup."""

import io
from html.parser import HTMLParser

import pytest
from rich.console import Console

from chimera.show import html, markdown, terminal
from chimera.show.blocks import (
    Bar,
    Cell,
    Column,
    FactList,
    Figure,
    Fold,
    Heading,
    Items,
    Note,
    Quote,
    ResultCard,
    ResultCards,
    SideBySide,
    TableBlock,
    TableLine,
    Text,
    joined,
    plain,
)

HOSTILE = "</p><script>x</script> | [a](javascript:x) `b` *c* \x1b[2J"
BAR = Bar(-1.0, 1.0, 2.0, -2.0, 2.0, "−1 to 2")
TABLE = TableBlock(
    "results",
    [Column("who"), Column("right, %", number=True), Column("interval", extra=True), Column("verdict")],
    [
        TableLine(["society"], group=True),
        TableLine(
            ["base", ["50.0", Text("40.0 to 60.0", small=True)], BAR, Text("worse", "bad", "#there")], anchor="there"
        ),
        TableLine(["all", Cell("60.0", ["sum"]), "", Text("better", "good", "rollouts/a.html")], strong=True),
    ],
)
BLOCKS = [
    Heading("The title", 1, "top"),
    Note(["A note with ", Text("code", "code"), "."]),
    Note("take care", "warning"),
    Items(["one", "two"], "Points:"),
    FactList([("data", "20 tasks")]),
    ResultCards([ResultCard("Reward", "Better", "good", "+0.1", BAR, "n = 20")]),
    TABLE,
    Figure("Curve", "how to read it", "<svg></svg>", "plots/curve.png"),
    Figure("Missing", "there are no metrics"),
    Quote("  indented\nlines", "answer"),
    Fold("Geneticist", [Note("found it")]),
    SideBySide([[Note("left")], [Note("right")]]),
]
SHOWN = ["The title", "A note with", "take care", "two", "20 tasks", "Reward", "Better", "n = 20", "base", "50.0"]
SHOWN += ["40.0 to 60.0", "worse", "there are no metrics", "indented", "Geneticist", "found it", "right"]


def printed(blocks, width=80):
    console = Console(width=width, file=io.StringIO())
    terminal.show(console, blocks)
    return console.file.getvalue()


@pytest.mark.parametrize("shown", [html.render, markdown.render, printed])
def test_each_form_has_every_word(shown):
    text = shown(BLOCKS)
    assert [words for words in SHOWN if words not in text] == []


@pytest.mark.parametrize(
    "blocks",
    [
        [Heading(HOSTILE), Note(HOSTILE), Items([HOSTILE], HOSTILE), FactList([(HOSTILE, HOSTILE)])],
        [ResultCards([ResultCard(HOSTILE, HOSTILE, "", HOSTILE, BAR, HOSTILE)]), Figure(HOSTILE, HOSTILE)],
        [TableBlock(HOSTILE, [Column(HOSTILE)], [TableLine([HOSTILE], HOSTILE), TableLine([Text(HOSTILE, "code")])])],
        [Quote(HOSTILE, HOSTILE), Fold(HOSTILE, [Note(Text(HOSTILE, "removed"))], HOSTILE)],
    ],
)
def test_text_stays_text(blocks):
    tags = []
    parser = HTMLParser()
    parser.handle_starttag = lambda tag, attrs: tags.append(tag)
    parser.feed(html.render(blocks))
    assert "script" not in tags
    lines = [line for line in markdown.render(blocks).splitlines() if not line.startswith("    ")]
    for line in lines:
        unescaped = line.replace("\\<", "").replace("\\[", "").replace("\\`", "")
        outside = "".join(unescaped.split("`")[::2])
        assert "<script" not in outside
        assert "[a](" not in outside
    assert "\x1b[2J" not in printed(blocks)


def test_a_page_is_whole_and_only_its_own_script_may_run():
    text = html.page("<Report>", BLOCKS, script=True)
    assert text.startswith("<!doctype html>")
    assert "<title>&lt;Report&gt;</title>" in text
    assert text.count("<script>") == 1
    assert "default-src 'none'" in text
    assert "script-src 'sha256-" in text
    assert "<script" not in html.page("Report", BLOCKS)
    assert "prefers-color-scheme: dark" in text
    assert "@media print" in text
    for name in ("http://", "https://", "<link"):
        assert name not in text


def test_links_inside_a_page_lead_to_anchors_and_markdown_keeps_only_those_to_files():
    page, text = html.render(BLOCKS), markdown.render(BLOCKS)
    for anchor in ("top", "there", "sum"):
        assert f'id="{anchor}"' in page
    assert '<a href="#there">worse</a>' in page
    assert "#there" not in text
    assert "[better](rollouts/a.html)" in text
    assert "![Curve](plots/curve.png)" in text


def test_a_bar_spans_its_interval_on_its_scale():
    page = html.inline(BAR)
    assert '<rect x="32.0" y="5" width="96.0" height="4">' in page
    assert '<circle cx="96.0"' in page
    assert '<line x1="64.0" x2="64.0"' in page
    assert 'width="0.0"' in html.inline(Bar(None, 1.0, None, -2.0, 2.0, "no interval"))


def test_details_are_for_pages_only():
    blocks = [Fold("every rollout", [Note("hundreds")], detail=True)]
    assert "hundreds" in html.render(blocks)
    assert "hundreds" not in markdown.render(blocks) + printed(blocks)


@pytest.mark.parametrize(("width", "line"), [(80, "base 50.0 (40.0 to 60.0) worse"), (34, "base 50.0 worse")])
def test_an_interval_is_below_its_number_where_80_columns_do_not_hold_both(width, line):
    text = printed([TABLE], width)
    assert line in [" ".join(one.split()) for one in text.splitlines()]
    assert max(map(len, text.splitlines())) <= width
    assert "40.0 to 60.0" in text
    assert "interval" not in text, "a bar and its column are for pages"


def test_words_of_pieces_put_what_is_small_in_brackets():
    assert plain(["50.0", Text("40.0 to 60.0", small=True), Text("n 9", small=True)]) == "50.0 (40.0 to 60.0; n 9)"
    assert plain(joined(["a", ["b", "c"]])) == "a, bc"
