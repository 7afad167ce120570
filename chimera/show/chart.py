"""Line charts as SVG: each point can be a link to what is behind it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise

from chimera.show.blocks import Figure

LEFT, RIGHT, TOP, BOTTOM = 40.0, 8.0, 16.0, 18.0
"""Room for numbers and names around the lines, in pixels."""
FLAT = 1e-9
"""Values whose differences are smaller than this, beside them or beside 1, are drawn as equal."""
LETTER = 5.6
"""About how wide a letter of a name is, in pixels."""


@dataclass(frozen=True, slots=True)
class Point:
    """A point of a curve.

    Attributes:
        href: The address of what is behind it; None if nothing is.
        title: What it says when it is pointed at.
    """

    x: float
    y: float
    href: str | None
    title: str


@dataclass(frozen=True, slots=True)
class Curve:
    """Points that a line joins: those of one stretch, such as a phase."""

    name: str
    points: Sequence[Point]
    href: str | None = None


@dataclass(frozen=True, slots=True)
class Stretch:
    """A curve in pixels, with the part of the chart that it fills and its name, if there is room for it."""

    left: float
    width: float
    name: str
    shown: str
    href: str | None
    line: str
    points: Sequence[Point]


@dataclass(frozen=True, slots=True)
class LineChart:
    """A chart in pixels.

    Attributes:
        note: The latest value, or what else is worth a word.
        ticks: Heights with their numbers.
    """

    title: str
    note: str
    width: float
    height: float
    ticks: Sequence[tuple[float, str]]
    stretches: Sequence[Stretch]


def draw(
    title: str, curves: Sequence[Curve], *, note: str = "", width: float = 360.0, height: float = 132.0
) -> LineChart | None:
    """A chart of `curves`, which share the scale and lie side by side; None if there is no point.

    Values that are not finite are left out.
    """
    curves = [Curve(curve.name, [dot for dot in curve.points if math.isfinite(dot.y)], curve.href) for curve in curves]
    points = [point for curve in curves for point in curve.points]
    if not points:
        return None
    first, last = min(point.x for point in points), max(point.x for point in points)
    ticks = round_ticks(min(point.y for point in points), max(point.y for point in points))
    low, high = ticks[0], ticks[-1]

    def across(x: float) -> float:
        return LEFT + (width - LEFT - RIGHT) * ((x - first) / (last - first) if last > first else 0.5)

    def down(y: float) -> float:
        return height - BOTTOM - (height - TOP - BOTTOM) * (y - low) / (high - low)

    drawn = [curve for curve in curves if curve.points]
    ends = [across(curve.points[0].x) for curve in drawn] + [width - RIGHT]
    stretches = []
    for curve, (start, end) in zip(drawn, pairwise([LEFT, *ends[1:]]), strict=True):
        placed = [Point(round(across(dot.x), 1), round(down(dot.y), 1), dot.href, dot.title) for dot in curve.points]
        line = " ".join(f"{dot.x:g},{dot.y:g}" for dot in placed)
        fits = int((end - start) / LETTER)
        shown = curve.name if len(curve.name) <= fits else ""
        stretches.append(Stretch(start, max(end - start, 0.0), curve.name, shown, curve.href, line, placed))
    labels = [(round(down(tick), 1), _number(tick, high - low)) for tick in ticks]
    return LineChart(title, note, width, height, labels, stretches)


def figure(chart: LineChart) -> Figure:
    """The chart as a block."""
    box = f"0 0 {chart.width} {chart.height}"
    inside = "".join(_tick(chart, y, text) for y, text in chart.ticks)
    inside += "".join(_stretch(chart, stretch, even=place % 2 == 0) for place, stretch in enumerate(chart.stretches))
    svg = f'<svg class="chart" viewBox="{box}" role="img" aria-label="{escape(chart.title)}">{inside}</svg>'
    return Figure(chart.title, chart.note, svg)


def _tick(chart: LineChart, y: float, text: str) -> str:
    line = f'<line class="grid" x1="{LEFT}" x2="{chart.width - RIGHT}" y1="{y}" y2="{y}"></line>'
    return f'{line}<text class="tick" x="{LEFT - 5}" y="{y + 3.5}">{escape(text)}</text>'


def _stretch(chart: LineChart, stretch: Stretch, *, even: bool) -> str:
    name, size = escape(stretch.name), f'height="{chart.height - BOTTOM - TOP}"'
    ground = f'<rect x="{stretch.left}" width="{stretch.width}" y="{TOP:g}" {size}><title>{name}</title></rect>'
    points = "".join(map(_point, stretch.points))
    label = f'<text class="name" x="{stretch.left + 2}" y="{chart.height - 5}">{escape(stretch.shown)}</text>'
    linked = _linked(stretch.href, label) if stretch.shown else ""
    line = f'<polyline points="{stretch.line}"></polyline>'
    return f'<g class="stretch{" even" if even else ""}">{ground if name else ""}{line}{points}{linked}</g>'


def _point(point: Point) -> str:
    place, title = f'cx="{point.x}" cy="{point.y}"', f"<title>{escape(point.title)}</title>"
    if point.href is None:
        return f'<circle {place} r="2">{title}</circle>'
    hit = f'<circle class="hit" {place} r="7">{title}</circle>'
    return _linked(point.href, f'{hit}<circle {place} r="2"></circle>')


def _linked(href: str | None, drawn: str) -> str:
    return drawn if href is None else f'<a href="{escape(href)}">{drawn}</a>'


def round_ticks(low: float, high: float) -> list[float]:
    """Three to six round numbers, in equal steps, of which the first is at most `low` and the last at least `high`."""
    span = high - low
    if span < FLAT * max(abs(low), abs(high), 1.0):
        span = max(abs(high), 1.0)
    size = 10 ** math.floor(math.log10(span / 3))
    step = next(size * factor for factor in (1, 2, 2.5, 5, 10) if span / (size * factor) <= 3.5)
    start, end = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [step * number for number in range(start, max(end, start + 1) + 1)]


def _number(value: float, span: float) -> str:
    digits = max(0, min(6, 1 - math.floor(math.log10(span / 2)))) if span > 0 else 2
    text = f"{value:.{digits}f}"
    text = text.rstrip("0").rstrip(".") if "." in text else text
    return "0" if text in ("-0", "") else text.replace("-", "\N{MINUS SIGN}")
