"""Draws the society with matplotlib: in layers by the order of nodes, wrapped into rows like text.

Revision loops are the edges that lead back to an earlier layer; they are dashed and carry their severity.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.typing import RcKeyType

START, END = "__start__", "__end__"

INK, QUIET = "#1f2937", "#6b7280"
LOOP_COLOURS = {"CRITICAL": "#dc2626", "MAJOR": "#ea580c"}
BOX_WIDTH, BOX_HEIGHT, PILL_WIDTH = 2.2, 0.74, 0.96
COLUMN_GAP, ROW_GAP, STACK_GAP = 2.86, 2.6, 0.96
COLUMNS = 4
PAD = 0.17
STYLE: "dict[RcKeyType, Any]" = {"svg.hashsalt": "society", "svg.fonttype": "path", "font.family": "DejaVu Sans"}
"""Settings with which the same picture has the same bytes on every machine."""


@dataclass(frozen=True, slots=True)
class Box:
    """One node: its title, its caption and its group."""

    name: str
    title: str
    caption: str
    group: str


@dataclass(frozen=True, slots=True)
class Group:
    """Boxes that share a model, with the label and the colour of their panel."""

    name: str
    label: str
    colour: str


@dataclass(frozen=True, slots=True)
class Edge:
    """An edge of the graph; conditional edges carry the route's name."""

    source: str
    target: str
    label: str | None = None


@dataclass(frozen=True, slots=True)
class Diagram:
    """The contents of the picture, from the compiled graph. START and END occur only in edges."""

    boxes: tuple[Box, ...]
    groups: tuple[Group, ...]
    edges: tuple[Edge, ...]

    def _repr_svg_(self) -> str:
        """The SVG picture, which notebooks show."""
        import matplotlib

        drawing = BytesIO()
        with matplotlib.rc_context(STYLE):
            _figure(self).savefig(drawing, format="svg", metadata={"Date": None})
        return drawing.getvalue().decode()


Point = tuple[float, float]


def loops(edges: Sequence[Edge]) -> set[Edge]:
    """The edges that lead back: to where START leads, or to a node on the way to their source (depth-first search)."""
    after: dict[str, list[Edge]] = defaultdict(list)
    for edge in edges:
        after[edge.source].append(edge)
    first = {edge.target for edge in after[START]}
    backward: set[Edge] = set()
    done: set[str] = set()

    def walk(node: str, way: frozenset[str]) -> None:
        for edge in after[node]:
            if edge.target in way or (node != START and edge.target in first):
                backward.add(edge)
            elif edge.target not in done:
                walk(edge.target, way | {edge.target})
        done.add(node)

    walk(START, frozenset({START}))
    return backward


def layers(edges: Sequence[Edge]) -> dict[str, int]:
    """The length of the longest path from START to each node, without loops; START is in layer 0."""
    forward = [edge for edge in edges if edge not in loops(edges)]
    depth = {START: 0}
    for _ in range(len(forward)):
        for edge in forward:
            if edge.source in depth:
                depth[edge.target] = max(depth.get(edge.target, 0), depth[edge.source] + 1)
    return depth


def positions(diagram: Diagram) -> dict[str, Point]:
    """The centre of each box, START and END included, in inches from the middle of the first row's start."""
    depth = layers(diagram.edges)
    stacks: dict[int, list[str]] = defaultdict(list)
    for box in diagram.boxes:
        stacks[depth[box.name] - 1].append(box.name)
    place: dict[str, Point] = {}
    for layer, names in stacks.items():
        row, column = divmod(layer, COLUMNS)
        x = COLUMN_GAP * (column if row % 2 == 0 else COLUMNS - 1 - column)
        for position, name in enumerate(names):
            place[name] = (x, -ROW_GAP * row - STACK_GAP * (position - (len(names) - 1) / 2))
    aside = BOX_WIDTH / 2 + PAD + PILL_WIDTH / 2 + 0.34
    place[START] = (-aside, 0.0)
    last_row = max(stacks) // COLUMNS
    last_x, last_y = place[stacks[max(stacks)][-1]]
    place[END] = (last_x + aside * (-1 if last_row % 2 else 1), last_y)
    return place


def draw(diagram: Diagram, paths: Sequence[Path], *, description: str) -> None:
    """Write the picture to all `paths`; their endings give the format. `description` is stored in the files."""
    import matplotlib

    with matplotlib.rc_context(STYLE):
        figure = _figure(diagram)
        for path in paths:
            undated = {"Date": None} if path.suffix == ".svg" else {}
            figure.savefig(path, metadata={"Description": description, **undated})


def _figure(diagram: Diagram) -> "Figure":
    from matplotlib.figure import Figure

    place = positions(diagram)
    xs, ys = zip(*place.values(), strict=True)
    left, right = min(xs) - 0.6, max(xs) + BOX_WIDTH / 2 + PAD + 0.1
    low, high = min(ys) - 0.9, max(ys) + 0.9
    figure = Figure(figsize=(right - left, high - low), dpi=160, facecolor="white")
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(left, right), ylim=(low, high), aspect="equal")
    axes.axis("off")
    _panels(axes, diagram, place)
    _edges(axes, diagram, place)
    _boxes(axes, diagram, place)
    return figure


def _panels(axes: "Axes", diagram: Diagram, place: Mapping[str, Point]) -> None:
    for group in diagram.groups:
        points = [place[box.name] for box in diagram.boxes if box.group == group.name]
        left = min(x for x, _ in points) - BOX_WIDTH / 2 - PAD
        right = max(x for x, _ in points) + BOX_WIDTH / 2 + PAD
        low = min(y for _, y in points) - BOX_HEIGHT / 2 - PAD
        high = max(y for _, y in points) + BOX_HEIGHT / 2 + PAD
        style = {"facecolor": group.colour + "14", "edgecolor": "none", "zorder": 0}
        _rounded(axes, (left, low), right - left, high - low, 0.16, **style)
        above = max(y for _, y in points) > -ROW_GAP / 2
        at = (left + right) / 2, high + 0.07 if above else low - 0.08
        _words(axes, at, group.label, 11, group.colour, va="bottom" if above else "top", fontweight="bold")


def _boxes(axes: "Axes", diagram: Diagram, place: Mapping[str, Point]) -> None:
    colours = {group.name: group.colour for group in diagram.groups}
    for box in diagram.boxes:
        x, y = place[box.name]
        style = {"facecolor": "white", "edgecolor": colours[box.group], "linewidth": 1.6, "zorder": 3}
        _rounded(axes, (x - BOX_WIDTH / 2, y - BOX_HEIGHT / 2), BOX_WIDTH, BOX_HEIGHT, 0.12, **style)
        lift = 0.13 if box.caption else 0.0
        _words(axes, (x, y + lift), box.title, 11.5, INK, fontweight="bold", zorder=4)
        _words(axes, (x, y - 0.16), box.caption, 9.5, QUIET, zorder=4)
    for node, text in ((START, "question"), (END, "decision")):
        style = {"boxstyle": "round,pad=0.45,rounding_size=0.9", "facecolor": INK, "edgecolor": INK}
        _words(axes, place[node], text, 11, "white", bbox=style, zorder=4)


def _edges(axes: "Axes", diagram: Diagram, place: Mapping[str, Point]) -> None:
    from matplotlib.patches import FancyArrowPatch
    from matplotlib.path import Path as Curve

    back = loops(diagram.edges)
    for edge in diagram.edges:
        is_loop = edge in back
        colour = LOOP_COLOURS.get(edge.label or "", QUIET) if is_loop else QUIET
        points = _curve(place, edge)
        axes.add_patch(
            FancyArrowPatch(
                path=Curve(points, [Curve.MOVETO, Curve.CURVE4, Curve.CURVE4, Curve.CURVE4]),
                arrowstyle="-|>,head_length=0.5,head_width=0.22",
                mutation_scale=13,
                linewidth=1.8 if is_loop else 1.5,
                linestyle=(0, (4, 2.5)) if is_loop else "solid",
                color=colour,
                zorder=2,
            )
        )
        if is_loop and edge.label:
            (x1, y1), (x2, y2), (x3, y3), (x4, y4) = points
            middle = (x1 + 3 * x2 + 3 * x3 + x4) / 8, (y1 + 3 * y2 + 3 * y3 + y4) / 8
            style = {"boxstyle": "round,pad=0.25", "facecolor": "white", "edgecolor": "none"}
            _words(axes, middle, edge.label, 10, colour, fontweight="bold", bbox=style, zorder=5)


def _rounded(axes: "Axes", corner: Point, width: float, height: float, radius: float, **style: Any) -> None:
    from matplotlib.patches import FancyBboxPatch

    boxstyle = f"round,pad=0,rounding_size={radius}"
    axes.add_patch(FancyBboxPatch(corner, width, height, boxstyle=boxstyle, **style))


def _words(axes: "Axes", at: Point, text: str, size: float, colour: str, *, va: str = "center", **style: Any) -> None:
    axes.text(*at, text, ha="center", va=va, fontsize=size, color=colour, **style)


def _curve(place: Mapping[str, Point], edge: Edge) -> tuple[Point, Point, Point, Point]:
    """A cubic Bezier curve that leaves and enters boxes at a right angle; between rows from top to bottom."""
    (x1, y1), (x2, y2) = place[edge.source], place[edge.target]
    if abs(y2 - y1) > ROW_GAP / 2:
        up = 1 if y2 > y1 else -1
        # Arrows to another column start beside the middle, so that they do not overlap the straight arrow.
        lean = BOX_WIDTH * (0 if x1 == x2 else 0.3 if x2 > x1 else -0.3)
        start, end = (x1 + lean, y1 + up * BOX_HEIGHT / 2), (x2 - lean, y2 - up * BOX_HEIGHT / 2)
        half = (end[1] - start[1]) / 2
        bow = -0.35 if up == 1 and x1 == x2 else 0.0
        return start, (start[0] + bow, start[1] + half), (end[0] + bow, end[1] - half), end
    right = 1 if x2 > x1 else -1
    start = (x1 + right * _half_width(edge.source), y1)
    end = (x2 - right * _half_width(edge.target), y2)
    half = (end[0] - start[0]) * 0.6
    return start, (start[0] + half, start[1]), (end[0] - half, end[1]), end


def _half_width(node: str) -> float:
    return PILL_WIDTH / 2 if node in (START, END) else BOX_WIDTH / 2
