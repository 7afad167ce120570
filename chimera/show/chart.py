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


def draw(
    title: str, curves: Sequence[Curve], *, note: str = "", width: float = 360.0, height: float = 132.0
) -> Figure | None:
    """A chart of `curves`, which share the scale and lie side by side; None if there is no point.

    Values that are not finite are left out.
    """
    curves = [Curve(curve.name, [dot for dot in curve.points if math.isfinite(dot.y)], curve.href) for curve in curves]
    curves = [curve for curve in curves if curve.points]
    if not curves:
        return None
    points = [point for curve in curves for point in curve.points]
    first, last = min(point.x for point in points), max(point.x for point in points)
    ticks = round_ticks(min(point.y for point in points), max(point.y for point in points))
    low, high = ticks[0], ticks[-1]

    def across(x: float) -> float:
        return LEFT + (width - LEFT - RIGHT) * ((x - first) / (last - first) if last > first else 0.5)

    def down(y: float) -> float:
        return height - BOTTOM - (height - TOP - BOTTOM) * (y - low) / (high - low)

    inside = [_tick(width, round(down(tick), 1), _number(tick, high - low)) for tick in ticks]
    starts = [LEFT, *(across(curve.points[0].x) for curve in curves[1:]), width - RIGHT]
    for place, (curve, (start, end)) in enumerate(zip(curves, pairwise(starts), strict=True)):
        placed = [Point(round(across(dot.x), 1), round(down(dot.y), 1), dot.href, dot.title) for dot in curve.points]
        drawn = _stretch(Curve(curve.name, placed, curve.href), start, max(end - start, 0.0), height)
        inside.append(f'<g class="stretch{"" if place % 2 else " even"}">{drawn}</g>')
    box = f"0 0 {width} {height}"
    svg = f'<svg class="chart" viewBox="{box}" role="img" aria-label="{escape(title)}">{"".join(inside)}</svg>'
    return Figure(title, note, svg)


def _tick(width: float, y: float, text: str) -> str:
    line = f'<line class="grid" x1="{LEFT}" x2="{width - RIGHT}" y1="{y}" y2="{y}"></line>'
    return f'{line}<text class="tick" x="{LEFT - 5}" y="{y + 3.5}">{escape(text)}</text>'


def _stretch(curve: Curve, left: float, width: float, height: float) -> str:
    """A curve in pixels, on the part of the chart that it fills, with its name if there is room for it."""
    name, size = escape(curve.name), f'height="{height - BOTTOM - TOP}"'
    ground = f'<rect x="{left}" width="{width}" y="{TOP:g}" {size}><title>{name}</title></rect>' if name else ""
    line = " ".join(f"{dot.x:g},{dot.y:g}" for dot in curve.points)
    label = f'<text class="name" x="{left + 2}" y="{height - 5}">{name}</text>'
    shown = _linked(curve.href, label) if name and len(curve.name) <= int(width / LETTER) else ""
    return f'{ground}<polyline points="{line}"></polyline>{"".join(map(_point, curve.points))}{shown}'


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
