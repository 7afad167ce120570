"""What is shown is a list of blocks, which `html`, `markdown` and `terminal` render.

A block has no markup: every text is data, and a renderer escapes all of it. An address that begins with "#" leads to an
anchor of the same list.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Literal, TypeAlias

Tone = Literal["", "quiet", "strong", "code", "good", "bad", "warn", "removed", "added"]


@dataclass(frozen=True, slots=True)
class Text:
    """A piece of text.

    Attributes:
        href: The address that it leads to; empty if it is no link.
        small: Shown smaller and below what is before it: an interval, a reason.
    """

    text: str
    tone: Tone = ""
    href: str = ""
    small: bool = False


@dataclass(frozen=True, slots=True)
class Bar:
    """An interval drawn on a scale from `first` to `last`, with a mark at zero; only pages show it.

    Attributes:
        low: Lower end; None if there is no interval.
        words: The interval in words, for readers who do not see it.
    """

    low: float | None
    middle: float
    high: float | None
    first: float
    last: float
    words: str


Piece: TypeAlias = str | Text | Bar
Inline: TypeAlias = Piece | Sequence[Piece]
"""One piece, or several in order."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A table's cell.

    Attributes:
        anchors: Names that links can lead to.
        shade: Strength of its background from 0 to 1; None for none.
        marked: Outlined.
        span: Number of columns that it fills.
    """

    content: Inline
    anchors: Sequence[str] = ()
    shade: float | None = None
    marked: bool = False
    span: int = 1


@dataclass(frozen=True, slots=True)
class Column:
    """A table's column.

    Attributes:
        number: Holds numbers, so it is aligned to the right.
        anchor: A name that links can lead to.
        extra: Left out where 80 columns must do.
    """

    title: Inline
    number: bool = False
    anchor: str = ""
    extra: bool = False


@dataclass(frozen=True, slots=True)
class TableLine:
    """A table's row, whose first cell is its heading.

    Attributes:
        cells: One for each column; a group has only the first.
        group: The heading of the rows below.
    """

    cells: Sequence[Inline | Cell]
    anchor: str = ""
    strong: bool = False
    group: bool = False


@dataclass(frozen=True, slots=True)
class TableBlock:
    """A table.

    Attributes:
        name: What it is, for readers who do not see it and for the terminal.
        style: "long" for hundreds of rows, which a page can scroll and sort; "matrix" for few short cells; "pair" for
            two long texts beside each other.
    """

    name: str
    columns: Sequence[Column]
    rows: Sequence[TableLine]
    style: Literal["", "long", "matrix", "pair"] = ""


@dataclass(frozen=True, slots=True)
class Heading:
    """A heading of level 1 to 3."""

    text: Inline
    level: Literal[1, 2, 3] = 2
    anchor: str = ""


@dataclass(frozen=True, slots=True)
class Note:
    """A paragraph.

    Attributes:
        style: "fine" for small print, "note" and "warning" stand out, "eyebrow" stands above a page's title, "contents"
            has links to a page's headings, which only pages show.
    """

    text: Inline
    style: Literal["", "fine", "note", "warning", "eyebrow", "contents"] = ""


@dataclass(frozen=True, slots=True)
class Items:
    """A list of points with an introduction."""

    items: Sequence[Inline]
    lead: str = ""
    warning: bool = False


@dataclass(frozen=True, slots=True)
class FactList:
    """Names with values. `large`: the few values that a page shows first."""

    facts: Sequence[tuple[str, Inline]]
    large: bool = False


@dataclass(frozen=True, slots=True)
class ResultCard:
    """A result: its title, its verdict in a word, its figures, and how to read them."""

    title: str
    verdict: str
    tone: Tone
    figures: Inline
    bar: Bar
    note: Inline


@dataclass(frozen=True, slots=True)
class ResultCards:
    """Results beside each other."""

    cards: Sequence[ResultCard]


@dataclass(frozen=True, slots=True)
class Figure:
    """A drawing.

    Attributes:
        caption: How to read it; without a drawing, why there is none.
        svg: Its SVG for pages; empty without a drawing. It is trusted: Chimera drew it.
        file: The file of the drawing for Markdown, relative to the text; empty without one.
    """

    title: str
    caption: str
    svg: str = ""
    file: str = ""
    anchor: str = ""


@dataclass(frozen=True, slots=True)
class Quote:
    """Text as a model or a tool wrote it, with all its spaces and lines, and who wrote it."""

    text: str
    title: str = ""


@dataclass(frozen=True, slots=True)
class Token:
    """A token of an answer that an update learned from.

    Attributes:
        title: Its numbers in words.
        advantage: How much better than expected, from -1 to 1, the largest of its rollout.
        surprise: How unlikely it was, from 0 to 1.
        counts: False if it is not in the loss.
    """

    text: str
    title: str
    advantage: float
    surprise: float
    counts: bool


@dataclass(frozen=True, slots=True)
class Tokens:
    """The tokens of an answer in colours, below a title; only pages show them."""

    tokens: Sequence[Token]
    title: str = ""


@dataclass(frozen=True, slots=True)
class Fold:
    """Blocks that a page folds away under a title, such as one visit of a conversation.

    Attributes:
        open: A page shows them at first.
        detail: Only pages have room for it; Markdown and terminal leave it out.
        style: "visit" is framed, "again" is a visit that a reviewer sent back.
    """

    title: Inline
    blocks: "Sequence[Block]"
    anchor: str = ""
    open: bool = False
    detail: bool = False
    style: Literal["", "visit", "again"] = ""


@dataclass(frozen=True, slots=True)
class SideBySide:
    """Lists of blocks that a page puts beside each other where it is wide enough."""

    lists: "Sequence[Sequence[Block]]"
    wide: bool = False


Block: TypeAlias = (
    Heading | Note | Items | FactList | ResultCards | TableBlock | Figure | Quote | Tokens | Fold | SideBySide
)


def pieces(content: Inline) -> list[Text | Bar]:
    """`content` as a list of texts and bars, without empty texts."""
    several = [content] if isinstance(content, str | Text | Bar) else content
    texts = [Text(piece) if isinstance(piece, str) else piece for piece in several]
    return [piece for piece in texts if isinstance(piece, Bar) or piece.text]


def plain(content: Inline, shown: Callable[[Text], str] = attrgetter("text")) -> str:
    """The words of `content` in one line, each text as `shown`: what is small follows in brackets."""
    texts = [piece for piece in pieces(content) if isinstance(piece, Text)]
    small = "; ".join(shown(piece) for piece in texts if piece.small)
    words = "".join(shown(piece) for piece in texts if not piece.small)
    return f"{words} ({small})" if words and small else words or small


def joined(items: Sequence[Inline], between: str = ", ") -> list[Piece]:
    """`items` in one line, with `between` between them."""
    line: list[Piece] = []
    for item in items:
        line += [between] if line else []
        line += pieces(item)
    return line


def spaced(name: str) -> str:
    """CamelCase as words: "ProtocolDesigner" becomes "Protocol Designer"."""
    return "".join(f" {letter}" if letter.isupper() and place else letter for place, letter in enumerate(name))
