"""Renders blocks as Markdown, with every text escaped: for a pull request, a notebook or a paper's appendix."""

from collections.abc import Iterator, Mapping, Sequence

from chimera.show.blocks import (
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
    Text,
    plain,
)

SPECIAL = ("\\", "|", "`", "<", "*", "_", "[", "]", "#")
TONES: Mapping[str, str] = {"strong": "**", "removed": "~~", "added": "**"}
"""The marks around texts of a tone."""


def render(blocks: Sequence[Block]) -> str:
    """`blocks` as one document. Bars, links inside the page, and details that only pages have room for are left out."""
    return "\n\n".join(_parts(blocks)) + "\n"


def escaped(text: str) -> str:
    """`text` in one line, with marks that Markdown would read escaped."""
    words = " ".join(text.split())
    for mark in SPECIAL:
        words = words.replace(mark, f"\\{mark}")
    return words


def _parts(blocks: Sequence[Block]) -> Iterator[str]:
    for block in blocks:
        yield from _block(block)


def _block(block: Block) -> Iterator[str]:
    match block:
        case Heading():
            yield f"{'#' * block.level} {_inline(block.text)}"
        case Note():
            if block.style != "contents":
                yield (
                    f"**{block.style}:** {_inline(block.text)}"
                    if block.style in ("note", "warning")
                    else _inline(block.text)
                )
        case Items():
            lead = f"{escaped(block.lead)}\n\n" if block.lead else ""
            mark = "**warning:** " if block.warning else ""
            yield lead + _listed(f"{mark}{_inline(part)}" for part in block.items)
        case FactList():
            yield _listed(f"{escaped(name)}: {_inline(value)}" for name, value in block.facts)
        case ResultCards():
            yield _listed(
                f"{escaped(part.title)}: **{escaped(part.verdict)}**, {_inline(part.figures)}. {_inline(part.note)}"
                for part in block.cards
            )
        case TableBlock():
            yield _table(block)
        case Figure():
            if block.file:
                yield f"![{escaped(block.title)}]({block.file})"
            yield f"*{escaped(block.title)}.* {escaped(block.caption)}"
        case Quote():
            if block.title:
                yield escaped(block.title)
            yield "\n".join(f"    {line}" for line in block.text.splitlines())
        case Fold():
            if not block.detail:
                yield f"**{escaped(plain(block.title))}**"
                yield from _parts(block.blocks)
        case SideBySide():
            for blocks in block.lists:
                yield from _parts(blocks)


def _table(table: TableBlock) -> str:
    width = len(table.columns)
    head = [escaped(plain(column.title)) for column in table.columns]
    lines = [head, ["---:" if column.number else "---" for column in table.columns]]
    for row in table.rows:
        cells = [_inline(content.content if isinstance(content, Cell) else content) for content in row.cells]
        cells = [f"**{cell}**" if cell and (row.group or row.strong) else cell for cell in cells]
        lines.append(cells + [""] * (width - len(cells)))
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _listed(items: Iterator[str]) -> str:
    return "\n".join(f"- {item}" for item in items)


def _inline(content: Inline) -> str:
    return plain(content, _text)


def _text(text: Text) -> str:
    if text.tone == "code" and "`" not in text.text:
        words = f"`{' '.join(text.text.split())}`".replace("|", "\\|")
    else:
        mark = TONES.get(text.tone, "")
        body = text.text.strip()
        before, after = (" " if side.isspace() else "" for side in (text.text[:1], text.text[-1:]))
        words = f"{before}{mark}{escaped(body)}{mark}{after}" if body else " "
    return f"[{words}]({text.href})" if text.href and not text.href.startswith("#") else words
