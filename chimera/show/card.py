"""A card shows one step: as a rich panel on a terminal and in a notebook, as plain lines elsewhere."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.jupyter import JupyterMixin

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

BORDER = 6
"""Number of columns of a panel's first line that its title cannot use."""


@dataclass(frozen=True, slots=True)
class Card(JupyterMixin):
    """One step: a headline and labelled lines."""

    headline: str
    lines: tuple[tuple[str, str], ...]
    colour: str = "dodger_blue2"

    def __str__(self) -> str:
        """The card as plain indented lines."""
        width = max((len(printable(label)) for label, _ in self.lines), default=0)
        lines = (f"  {printable(label):<{width}}  {printable(text)}" for label, text in self.lines)
        return "\n".join([printable(self.headline), *lines, ""])

    def __rich_console__(self, console: "Console", options: "ConsoleOptions") -> "RenderResult":
        from rich.console import Group
        from rich.panel import Panel
        from rich.table import Table
        from rich.text import Text

        table = Table.grid(padding=(0, 2))
        table.add_column(style="dim", no_wrap=True)
        table.add_column()
        for label, text in self.lines:
            table.add_row(Text(printable(label)), Text(printable(text)))
        title = Text(printable(self.headline), style=f"bold {self.colour}")
        if len(title) > options.max_width - BORDER:  # A panel would cut its title.
            yield Panel(Group(title, table), border_style=self.colour)
        else:
            yield Panel(table, title=title, title_align="left", border_style=self.colour)


def show(console: "Console", shown: object) -> None:
    """Print a card or an outline: drawn by rich on a terminal, as plain lines elsewhere."""
    if console.is_terminal:
        console.print(shown)
    else:
        print(shown, file=console.file, flush=True)


def printable(text: str) -> str:
    """`text` without characters that control a terminal, because models and web pages wrote it."""
    return "".join(letter if letter.isprintable() else " " for letter in text)
