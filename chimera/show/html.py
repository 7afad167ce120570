"""Renders blocks as HTML: everything is escaped but the drawings of figures; nothing is loaded and nothing is inline.

`page` makes one self-contained file for light, dark and paper, which reads without scripts.
"""

import base64
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from html import escape
from pathlib import Path

from chimera.show.blocks import (
    Bar,
    Block,
    Cell,
    Column,
    FactList,
    Figure,
    Fold,
    Heading,
    Inline,
    Items,
    Note,
    Quote,
    ResultCard,
    ResultCards,
    SideBySide,
    TableBlock,
    TableLine,
    Text,
    Token,
    Tokens,
    pieces,
    plain,
)

ASSETS = Path(__file__).parents[1] / "assets" / "show"
SHADES = 5
"""The style sheet has as many shades of a cell, and none."""
WIDE = 7
"""Tables with fewer columns are as wide as their text, with intervals beside their numbers and not below."""
BAR = (128.0, 14.0)
"""Width and height of an interval's bar."""
TAGS: Mapping[str, str] = {"strong": "b", "code": "code", "removed": "del", "added": "ins"}
"""Elements of tones; other tones are classes."""


def render(blocks: Sequence[Block]) -> str:
    """`blocks` as the body of a page."""
    return "\n".join(map(_block, blocks))


def page(title: str, blocks: Sequence[Block], *, script: bool = False) -> str:
    """One self-contained page.

    Args:
        script: Adds the script that sorts long tables and opens what a link leads to.
    """
    code = _asset("page.js") if script else ""
    digest = base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()
    policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
    policy += f"; script-src 'sha256-{digest}'" if script else ""
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en">',
            "<head>",
            '<meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="color-scheme" content="light dark">',
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
            f"<title>{escape(title)}</title>",
            f"<style>\n{_asset('page.css')}</style>",
            "</head>",
            "<body>",
            f"<main>\n{render(blocks)}\n</main>",
            *([f"<script>{code}</script>"] if script else []),
            "</body>",
            "</html>",
            "",
        ]
    )


def inline(content: Inline) -> str:
    """Texts and bars in one line."""
    return "".join(_bar(piece) if isinstance(piece, Bar) else _text(piece) for piece in pieces(content))


@cache
def _asset(name: str) -> str:
    return (ASSETS / name).read_text(encoding="utf-8")


def _tag(name: str, content: str, **attributes: str | int | bool | None) -> str:
    """An element; `class_` and `aria_label` stand for class and aria-label. None, False and empty text are left out."""
    listed = "".join(
        f" {key.rstrip('_').replace('_', '-')}" + ("" if value is True else f'="{escape(str(value))}"')
        for key, value in attributes.items()
        if value is not None and value is not False and value != ""
    )
    return f"<{name}{listed}>{content}</{name}>"


def _block(block: Block) -> str:
    match block:
        case Heading():
            return _tag(f"h{block.level}", inline(block.text), id=block.anchor)
        case Note():
            contents = block.style == "contents"
            label = "Contents" if contents else ""
            return _tag("nav" if contents else "p", inline(block.text), class_=block.style, aria_label=label)
        case Items():
            return _items(block)
        case FactList():
            return _facts(block)
        case ResultCards():
            return _tag("div", "".join(map(_card, block.cards)), class_="cards")
        case TableBlock():
            return _table(block)
        case Figure():
            return _figure(block)
        case Quote():
            title = _tag("p", escape(block.title), class_="fine") if block.title else ""
            return title + _tag("pre", escape(block.text))
        case Tokens():
            title = _tag("p", escape(block.title), class_="fine") if block.title else ""
            return title + _tag("p", "".join(map(_token, block.tokens)), class_="tokens")
        case Fold():
            head = _tag("summary", inline(block.title))
            inside = _tag("div", render(block.blocks), class_="inside")
            return _tag("details", head + inside, id=block.anchor, class_=block.style, open=block.open)
        case SideBySide():
            lists = "".join(_tag("div", render(blocks)) for blocks in block.lists)
            return _tag("div", lists, class_="beside wide" if block.wide else "beside")


def _text(text: Text) -> str:
    tag = "small" if text.small else TAGS.get(text.tone, "span" if text.tone else "")
    tone = text.tone if tag in ("span", "small") else ""
    words = _tag("a", escape(text.text), href=text.href) if text.href else escape(text.text)
    return _tag(tag, words, class_=tone) if tag else words


def _bar(bar: Bar) -> str:
    """The interval as a drawing, with positions rounded to tenths of a pixel."""
    width, height = BAR

    def across(value: float) -> float:
        return round(width * (value - bar.first) / (bar.last - bar.first), 1)

    low, high = (across(bar.middle if end is None else end) for end in (bar.low, bar.high))
    drawn = (
        f'<line x1="{across(0.0)}" x2="{across(0.0)}" y1="0" y2="{height:g}"></line>'
        f'<rect x="{low}" y="{height / 2 - 2:g}" width="{round(high - low, 1)}" height="4"></rect>'
        f'<circle cx="{across(bar.middle)}" cy="{height / 2:g}" r="4.5"></circle>'
    )
    box = f"0 0 {width:g} {height:g}"
    return f'<svg class="bar" viewBox="{box}" role="img" aria-label="{escape(bar.words)}">{drawn}</svg>'


def _items(block: Items) -> str:
    lead = _tag("strong" if block.warning else "p", escape(block.lead)) if block.lead else ""
    listed = _tag("ul", "".join(_tag("li", inline(entry)) for entry in block.items))
    return _tag("div", lead + listed, class_="warning" if block.warning else "")


def _facts(block: FactList) -> str:
    if block.large:
        large = (f"<li>{_tag('b', inline(value))} {escape(name)}</li>" for name, value in block.facts)
        return _tag("ul", "".join(large), class_="facts")
    rows = (_tag("div", _tag("dt", escape(name)) + _tag("dd", inline(value))) for name, value in block.facts)
    return _tag("dl", "".join(rows))


def _card(card: ResultCard) -> str:
    inside = [
        _tag("h3", escape(card.title)),
        _tag("p", escape(card.verdict), class_="word"),
        _tag("p", inline(card.figures)),
        _bar(card.bar),
        _tag("p", inline(card.note), class_="fine"),
    ]
    return _tag("section", "".join(inside), class_=f"card {card.tone}".rstrip())


def _table(table: TableBlock) -> str:
    head = _tag("tr", "".join(map(_head, table.columns)))
    rows = "\n".join(_row(row, table) for row in table.rows)
    style = table.style or ("wide" if len(table.columns) >= WIDE else "")
    drawn = _tag("table", f"<thead>{head}</thead>\n<tbody>\n{rows}\n</tbody>", class_=style)
    scroll = "scroll long" if table.style == "long" else "scroll"
    return _tag("div", drawn, class_=scroll, tabindex=0, role="region", aria_label=table.name)


def _head(column: Column) -> str:
    return _tag("th", inline(column.title), scope="col", class_="n" if column.number else "", id=column.anchor)


def _row(row: TableLine, table: TableBlock) -> str:
    cells = list(_cells(row, table))
    if row.group:
        heading = _tag("th", cells[0][1], scope="rowgroup", colspan=len(table.columns))
        return _tag("tr", heading, class_="group", id=row.anchor)
    drawn = []
    for place, (cell, content) in enumerate(cells):
        classes = ["n"] if table.columns[place].number else []
        classes += ["marked"] if cell.marked else []
        classes += [] if cell.shade is None else [f"shade{round(SHADES * cell.shade)}"]
        name, scope = ("td", "") if place else ("th", "row")
        span = cell.span if cell.span > 1 else None
        drawn.append(_tag(name, content, scope=scope, class_=" ".join(classes), colspan=span))
    return _tag("tr", "".join(drawn), class_="sum" if row.strong else "", id=row.anchor)


def _cells(row: TableLine, table: TableBlock) -> Iterator[tuple[Cell, str]]:
    """The cells with their content and anchors."""
    for place, entry in enumerate(row.cells):
        cell = entry if isinstance(entry, Cell) else Cell(entry)
        anchors = "".join(_tag("i", "", id=anchor) for anchor in cell.anchors)
        side = plain(table.columns[place].title) if table.style == "pair" and place else ""
        content = inline(cell.content)
        yield cell, anchors + (_tag("div", content, data_side=side) if side else content)


def _token(token: Token) -> str:
    side = "up" if token.advantage > 0 else "down" if token.advantage < 0 else "level"
    off = "" if token.counts else " off"
    strength = f"a{round(SHADES * abs(token.advantage))} s{round(SHADES * token.surprise)}"
    return _tag("span", escape(token.text), class_=f"{side}{off} {strength}", title=token.title)


def _figure(figure: Figure) -> str:
    title = _tag("b", escape(figure.title))
    if not figure.svg:
        return _tag("p", f"{title}. {_tag('span', escape(figure.caption), class_='quiet')}", id=figure.anchor)
    above = _tag("figcaption", title)
    drawing = _tag("div", figure.svg, class_="scroll", tabindex=0, role="region", aria_label=figure.title)
    below = _tag("figcaption", escape(figure.caption)) if figure.caption else ""
    return _tag("figure", above + drawing + below, id=figure.anchor)
