"""Renders blocks for a terminal, readable at 80 columns and in a pipe."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from rich import box
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text as RichText

from chimera.show.blocks import (
    Bar,
    Block,
    Cell,
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
    for one in _drawn(blocks):
        console.print(one, soft_wrap=isinstance(one, RichText) and not console.is_terminal)


def text(content: Inline, *, below: bool = False) -> RichText:
    """Texts in one line, without characters that control a terminal; what is small is in brackets, or `below`."""
    line = RichText()
    for one in pieces(content):
        if not isinstance(one, Bar):
            before, after = ("\n", "") if below else (" (", ")")
            before, after = (before, after) if one.small and line.plain else ("", "")
            line.append(f"{before}{printable(one.text)}{after}", style=STYLES.get(one.tone, ""))
    return line


def _drawn(blocks: Sequence[Block]) -> Iterator[RenderableType]:
    for block in blocks:
        yield from _block(block)


def _block(block: Block) -> Iterator[RenderableType]:
    match block:
        case Heading():
            yield RichText(printable(plain(block.text)), style="bold" if block.level < 3 else "")
        case Note():
            if block.style != "contents":
                lead = RichText("warning: " if block.style == "warning" else "")
                yield lead + RichText(printable(plain(block.text)))
        case Items():
            if block.lead:
                yield RichText(printable(block.lead))
            lead = "warning: " if block.warning else "- "
            for item in block.items:
                yield RichText(f"{lead}{printable(plain(item))}")
        case FactList():
            for name, value in block.facts:
                yield RichText(f"{printable(name)}: {printable(plain(value))}")
        case ResultCards():
            for one in block.cards:
                yield RichText(printable(f"{one.title}: {one.verdict}, {plain(one.figures)}. {plain(one.note)}"))
        case TableBlock():
            yield _Fitted(block)
        case Figure():
            yield RichText(printable(f"{block.title}: {block.file or block.caption}"))
        case Quote():
            yield RichText(printable(f"[{block.title}] {block.text}" if block.title else block.text), style="dim")
        case Fold():
            if not block.detail:
                yield text(block.title)
                for one in _drawn(block.blocks):
                    yield Padding(one, (0, 0, 0, 2))
        case SideBySide():
            for blocks in block.lists:
                yield from _drawn(blocks)


@dataclass(frozen=True, slots=True)
class _Fitted:
    """A table whose small texts are beside what they belong to if there is room, else below it."""

    table: TableBlock

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        beside = _table(self.table, below=False)
        width = Measurement.get(console, options.update(max_width=UNLIMITED), beside).maximum
        yield beside if width <= options.max_width else _table(self.table, below=True)


def _table(table: TableBlock, *, below: bool) -> RichTable:
    shown = [place for place, column in enumerate(table.columns) if not column.extra]
    name = RichText(printable(table.name)) if table.name else None
    drawn = RichTable(title=name, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for place in shown:
        column = table.columns[place]
        title = text(column.title, below=below)
        justify = "right" if column.number else "left"
        drawn.add_column(title, justify=justify, no_wrap=column.number, overflow="fold")
    for row in table.rows:
        cells = (_cell(row, place, below) for place in shown)
        drawn.add_row(*cells, style="bold" if row.strong or row.group else "")
    return drawn


def _cell(row: TableLine, place: int, below: bool) -> RichText:
    if place >= len(row.cells):
        return RichText()
    cell = row.cells[place]
    return text(cell.content if isinstance(cell, Cell) else cell, below=below)
