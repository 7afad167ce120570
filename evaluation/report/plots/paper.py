"""Common parts of all plots: size, colours, and files that are legible on white and on black, large and small.

An SVG has no background and draws text, axes and grids in `currentColor`, so that it takes the page's colour. A PNG is
dark on white. Equal data give equal bytes.
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from io import StringIO
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

INK = "#1c2127"
"""The colour of text. In an SVG it becomes `currentColor`."""
BLUE, ORANGE, GREEN = "#2a7fc1", "#d9661f", "#12956f"
"""After Okabe and Ito (2008): colour-blind readers can distinguish them. Contrast at least 3:1 on white and black."""
WIDTH = 5.6
"""Width in inches. The text is legible when a phone shows the plot at 60 % of its size."""
DPI = 160
INKED = ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color", "grid.color")
STYLE: dict[Any, Any] = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans", "Verdana", "Arial", "Helvetica"],
    "font.size": 9.5,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "axes.labelsize": 9.5,
    "xtick.labelsize": 9,
    "ytick.labelsize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "grid.alpha": 0.15,
    "grid.linewidth": 0.8,
    "figure.constrained_layout.w_pad": 0.06,
    "figure.constrained_layout.h_pad": 0.06,
    "figure.facecolor": "white",
    "axes.facecolor": "none",
    "svg.fonttype": "none",
    "text.parse_math": False,  # A label of a user's data may hold dollar signs.
    **dict.fromkeys(INKED, INK),
}


@dataclass(frozen=True, slots=True)
class Drawing:
    """A finished figure, and how to read it."""

    figure: Figure
    caption: str


@contextmanager
def paper() -> Iterator[None]:
    """Use our style for drawing and saving."""
    with mpl.rc_context(STYLE):
        yield


def panels(count: int, columns: int, height: float) -> tuple[Figure, list[Axes]]:
    """A figure with `count` panels in rows of `columns`, each row `height` inches high."""
    rows = -(-count // columns)
    figure = Figure(figsize=(WIDTH, height * rows), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False)
    axes = list(np.ravel(grid))
    for unused in axes[count:]:
        unused.remove()
    return figure, axes[:count]


def stacked(rows: Sequence[int]) -> tuple[Figure, list[Axes]]:
    """A figure with panels one above the other. The height of a panel follows its number of `rows`."""
    heights = [0.62 + 0.25 * count for count in rows]
    figure = Figure(figsize=(WIDTH, sum(heights)), layout="constrained")
    grid = figure.subplots(len(rows), 1, squeeze=False, height_ratios=heights)
    return figure, list(np.ravel(grid))


Row = tuple[float, float | None, float | None]
"""A value with the ends of its interval; the ends are None if it has no interval."""


def intervals(axes: Axes, rows: Sequence[Row | None], colours: Sequence[str]) -> None:
    """Draw one point with its interval per row, the first at the top. A row that is None stays empty."""
    for place, (row, colour) in enumerate(zip(rows, colours, strict=True)):
        if row is None:
            continue
        value, low, high = row
        if low is not None and high is not None:
            axes.plot([low, high], [place, place], color=colour, linewidth=2.2, solid_capstyle="butt")
        axes.plot([value], [place], "o", color=colour, markersize=6)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.grid(axis="x")
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)


def save(drawing: Drawing, name: str, title: str, folder: Path) -> dict[str, str]:
    """Write `<name>.png` and `<name>.svg` into `folder`; returns their names by format."""
    files = {kind: f"{name}.{kind}" for kind in ("png", "svg")}
    drawing.figure.savefig(folder / files["png"], dpi=DPI, metadata={"Software": None})
    drawing.figure.set_layout_engine("none")  # The layout is found; to find it again takes as long as drawing.
    text = StringIO()
    with mpl.rc_context({"svg.hashsalt": name}):
        drawing.figure.savefig(text, format="svg", transparent=True, metadata={"Date": None})
    (folder / files["svg"]).write_text(_for_pages(text.getvalue(), name, title), encoding="utf-8")
    return files


def _for_pages(svg: str, name: str, title: str) -> str:
    """Prepare Matplotlib's SVG for a page with several SVGs: unique ids, no style for other elements, a title."""
    head = 'role="img" style="stroke-linejoin: round; stroke-linecap: butt"'
    svg = re.sub(r" <metadata>.*?</metadata>\n", "", svg, count=1, flags=re.DOTALL)
    svg = re.sub(r" <defs>\s*<style.*?</style>\s*</defs>\n", "", svg, count=1, flags=re.DOTALL)
    svg = re.sub(r"<svg ([^>]*)>", rf"<svg \1 {head}>\n <title>{escape(title)}</title>", svg, count=1)
    svg = re.sub(r'\b(?:d|x|y)="[^"]*"', lambda match: re.sub(r"(\.\d\d)\d+", r"\1", match[0]), svg)
    svg = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{name}-", svg)
    return svg.replace(INK, "currentColor")
