"""A card as a piece of HTML, for notebooks: a table that reads well without any style sheet, in light and dark."""

import html
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from chimera.show.ask import Card

COLOURS = {
    "green": "#15803d",
    "red": "#dc2626",
    "yellow": "#ca8a04",
    "blue": "#2563eb",
    "cyan": "#0891b2",
    "magenta": "#a21caf",
    "dark_orange3": "#b45309",
    "white": "#64748b",
}
"""What a terminal's colour names are on a page; each has contrast on white and on black."""
CELL = "text-align: left; vertical-align: top; white-space: normal; padding: 0.1em 0.8em"


def card_html(card: "Card") -> str:
    """`card` as a table: its headline, then one row for each line. What models wrote is text, never markup."""
    rows = "".join(
        f'<tr><td style="{CELL}; opacity: 0.7">{escaped(label)}</td><td style="{CELL}">{escaped(text)}</td></tr>'
        for label, text in card.lines
    )
    return (
        f'<table style="border-left: 4px solid {COLOURS[card.colour]}; margin: 0 0 1em 0">'
        f'<thead><tr><th colspan="2" style="{CELL}">{escaped(card.headline)}</th></tr></thead>'
        f"<tbody>{rows}</tbody></table>"
    )


def escaped(text: str) -> str:
    """`text` without the characters that would be markup."""
    return html.escape(text, quote=True)
