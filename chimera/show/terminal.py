"""Renders blocks for a terminal, readable at 80 columns and in a pipe."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import StringIO

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text as RichText

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
    ResultCards,
    SideBySide,
    TableBlock,
    TableLine,
    pieces,
    plain,
)
from chimera.show.card import printable

UNLIMITED = 10_000
INDENT = "  "
WORD = 16
"""Longer words may be broken in a table."""
STYLES: Mapping[str, str] = {
    "quiet": "dim",
    "strong": "bold",
    "good": "green",
    "bad": "red",
    "warn": "yellow",
    "removed": "strike",
    "added": "bold",
}


def show(console: Console, blocks: Sequence[Block]) -> None:
    """Print `blocks`; a pipe gets whole lines of text, and tables of 80 columns."""
    for depth, block in _drawn(blocks, 0):
        if isinstance(block, RichText) and not console.is_terminal:
            lines = block.split("\n", allow_blank=True)
            console.print(RichText("\n").join(RichText(INDENT * depth) + line for line in lines), soft_wrap=True)
        else:
            console.print(Padding(block, (0, 0, 0, len(INDENT) * depth)) if depth else block)


def lines(blocks: Sequence[Block]) -> str:
    """`blocks` as a pipe gets them."""
    file = StringIO()
    show(Console(file=file, highlight=False, force_terminal=False, force_jupyter=False), blocks)
    return file.getvalue()


def text(content: Inline, *, below: bool = False) -> RichText:
    """Texts in one line, without characters that control a terminal; what is small is in brackets, or `below`."""
    line = RichText()
    for piece in pieces(content):
        if not isinstance(piece, Bar):
            before, after = ("\n", "") if below else (" (", ")")
            before, after = (before, after) if piece.small and line.plain else ("", "")
            line.append(f"{before}{printable(piece.text)}{after}", style=STYLES.get(piece.tone, ""))
    return line


def _drawn(blocks: Sequence[Block], depth: int) -> Iterator[tuple[int, RenderableType]]:
    """What to print, each with its depth in folds."""
    for block in blocks:
        match block:
            case Fold():
                if not block.detail:
                    yield depth, text(block.title)
                    yield from _drawn(block.blocks, depth + 1)
            case SideBySide():
                for listed in block.lists:
                    yield from _drawn(listed, depth)
            case TableBlock():
                yield depth, _Fitted(block)
            case Heading():
                yield depth, RichText(printable(plain(block.text)), style="bold" if block.level < 3 else "")
            case _:
                yield from ((depth, line) for line in _lines(block))


def _lines(block: Block) -> Iterator[RichText]:
    """A block's lines of text."""
    match block:
        case Note():
            lead = f"{block.style}: " if block.style in ("note", "warning") else ""
            if block.style != "contents":
                yield RichText(lead) + text(block.text)
        case Items():
            if block.lead:
                yield RichText(printable(block.lead))
            for item in block.items:
                yield RichText("warning: " if block.warning else "- ") + text(item)
        case FactList():
            for name, value in block.facts:
                yield RichText(f"{printable(name)}: ") + text(value)
        case ResultCards():
            for card in block.cards:
                yield RichText(printable(f"{card.title}: {card.verdict}, {plain(card.figures)}. {plain(card.note)}"))
        case Figure():
            yield RichText(printable(f"{block.title}: {block.file or block.caption}"))
        case Quote():
            quote = "\n".join(map(printable, block.text.splitlines()))
            yield RichText(f"[{printable(block.title)}] {quote}" if block.title else quote, style="dim")


@dataclass(frozen=True, slots=True)
class _Fitted:
    """A table whose small texts are beside what they belong to if there is room, else below it in narrow columns."""

    table: TableBlock

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        drawn = _table(self.table, below=False)
        if Measurement.get(console, options.update(max_width=UNLIMITED), drawn).maximum > options.max_width:
            drawn = _table(self.table, below=True)
            columns = [column for column in self.table.columns if not column.extra]
            borders = 2 * len(columns) + 1
            for column, width in zip(drawn.columns, _widths(drawn, columns, options.max_width - borders), strict=True):
                column.width = width
        yield drawn


def _table(table: TableBlock, *, below: bool) -> RichTable:
    shown = [(place, column) for place, column in enumerate(table.columns) if not column.extra]
    name = RichText(printable(table.name)) if table.name else None
    drawn = RichTable(title=name, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for _, column in shown:
        title = text(column.title, below=below)
        drawn.add_column(title, justify="right" if column.number else "left", overflow="fold")
    for row in table.rows:
        cells = (_cell(row, place, below) for place, _ in shown)
        drawn.add_row(*cells, style="bold" if row.strong or row.group else "")
    return drawn


def _widths(drawn: RichTable, columns: Sequence[Column], room: int) -> list[int]:
    """Cells of each column: the widest give way, first their lines, then words of titles, but never a number."""
    widths, readable, least = [], [], []
    for column, shown in zip(drawn.columns, columns, strict=True):
        title, cells = str(column.header), "\n".join(map(str, column.cells))
        least.append(_longest(cells.splitlines()) if shown.number else min(WORD, _longest(cells.split())))
        readable.append(max(least[-1], min(WORD, _longest(title.split()))))
        widths.append(max(readable[-1], min(room, _longest([*title.splitlines(), *cells.splitlines()]))))
    for floor in (readable, least):
        while sum(widths) > room and widths != floor:
            widths[max(range(len(widths)), key=lambda place: (widths[place] > floor[place]) * widths[place])] -= 1
    return widths


def _longest(parts: Sequence[str]) -> int:
    return max(map(cell_len, parts), default=0)


def _cell(row: TableLine, place: int, below: bool) -> RichText:
    if place >= len(row.cells):
        return RichText()
    cell = row.cells[place]
    return text(cell.content if isinstance(cell, Cell) else cell, below=below)
