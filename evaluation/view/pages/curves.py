"""The curves of a run: reward, its parts and right answers over rollouts, and figures of updates over their steps."""

from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Any

from chimera.show.blocks import Figure
from chimera.show.chart import Curve, Point, draw
from evaluation.scores.rewards import part_title
from evaluation.view.pages.choice import RolloutChoice
from evaluation.view.pages.figures import mean
from evaluation.view.pages.phases import updates
from evaluation.view.reading.rows import RolloutRow
from evaluation.view.reading.watched import Snapshot

POINTS = 72
"""About the most points of a curve. A point is the mean of some consecutive rollouts."""
LEAST = 4
"""The fewest rollouts of a point."""
WIDE = 1096.0
"""Pixels of the curve of rewards on a wide screen."""
FIGURES: Mapping[str, str] = {
    "branches/value": "worth of the answers",
    "reward": "reward",
    "alignment_rate": "answers right",
    "critic/score/mean": "credit of the calls",
    "loss": "loss",
    "actor/loss": "loss",
    "actor/entropy": "entropy",
    "actor/grad_norm": "gradient norm",
    "grad_norm": "gradient norm",
    "actor/ppo_kl": "KL divergence from before the update",
}
"""Figures of updates that are drawn, if a phase has them, with their titles."""
EACH = 4
"""The most charts of one phase's updates."""


def reward_drawings(snapshot: Snapshot, address: Callable[[str], str]) -> list[Figure]:
    """The curve of rewards in two widths, for wide and narrow screens.

    Args:
        address: Turns the query of a choice of rollouts into an address.
    """
    curves = _over(snapshot, lambda row: row.reward, "reward", address)
    rewards = [row.reward for row in snapshot.all_rows if row.reward is not None]
    note = f"{len(rewards):,} rollouts with a reward"
    drawn = (draw("Reward", curves, note=note, width=width, height=176.0) for width in (WIDE, 360.0))
    return [drawing for drawing in drawn if drawing is not None]


def outcome_drawings(snapshot: Snapshot, address: Callable[[str], str]) -> list[Figure]:
    """Small charts of rewards and of right answers."""
    drawn = (
        draw("Reward", _over(snapshot, lambda row: row.reward, "reward", address)),
        draw("Answers right", _over(snapshot, _right_in(snapshot), "right", address)),
    )
    return [drawing for drawing in drawn if drawing is not None]


def _right_in(snapshot: Snapshot) -> Callable[[RolloutRow], float | None]:
    """1 for a right answer, else 0; None in a stage whose rollouts all failed."""
    silent = {phase for phase, rows in snapshot.rows.items() if all(row.failed for row in rows)}
    return lambda row: None if row.phase in silent else float(row.right or False)


def part_drawings(snapshot: Snapshot, address: Callable[[str], str]) -> list[Figure]:
    """Small charts of the reward's parts that are not always the same."""
    charts: list[Figure] = []
    for part in snapshot.parts:
        values = {row.parts.get(part) or 0.0 for row in snapshot.all_rows}
        if len(values) > 1:
            curves = _over(snapshot, lambda row, part=part: row.parts.get(part), f"part:{part}", address)
            charts += [chart] if (chart := draw(part_title(part).capitalize(), curves)) else []
    return charts


def update_drawings(snapshot: Snapshot, address: Callable[[str], str]) -> list[tuple[str, list[Figure]]]:
    """Figures of each phase's updates over their steps; a point leads to the rollouts that the update learned from."""
    sections: list[tuple[str, list[Figure]]] = []
    for phase in dict.fromkeys(str(line.get("phase")) for line in snapshot.lines):
        lines = updates(snapshot, phase)
        drawn = (_of_updates(snapshot, phase, lines, key, address) for key in FIGURES) if len(lines) > 1 else ()
        if charts := list(islice((chart for chart in drawn if chart is not None), EACH)):
            sections.append((phase, charts))
    return sections


def _of_updates(
    snapshot: Snapshot, phase: str, lines: Sequence[Mapping[str, Any]], key: str, address: Callable[[str], str]
) -> Figure | None:
    points: list[Point] = []
    for line in lines:
        value, step = line.get(key), int(line["step"])
        if isinstance(value, int | float):
            there = (snapshot.run / "phases" / phase / f"tokens-{step}.jsonl.gz").is_file()
            href = address(RolloutChoice().address(update=f"{phase}/{step}")) if there else None
            points.append(Point(step, value, href, f"update {step}: {value:.4g}"))
    return draw(FIGURES[key].capitalize(), [Curve("", points)]) if len(points) > 1 else None


def _over(
    snapshot: Snapshot, value: Callable[[RolloutRow], float | None], sort: str, address: Callable[[str], str]
) -> list[Curve]:
    """One curve for each phase; a point is the mean of consecutive rollouts and leads to them."""
    size = max(LEAST, -(-len(snapshot.all_rows) // POINTS))
    curves: list[Curve] = []
    before = 0
    for phase, rows in snapshot.rows.items():
        points: list[Point] = []
        for start in range(0, len(rows), size):
            some = rows[start : start + size]
            if (middle := mean(number for row in some if (number := value(row)) is not None)) is not None:
                first, last = some[0].number, some[-1].number
                query = RolloutChoice().address(phase=phase, first=first, last=last, sort=sort)
                title = f"{phase}, rollouts {first} to {last}: {middle:.3f}"
                points.append(Point(before + start + len(some) / 2, middle, address(query), title))
        curves.append(Curve(phase, points, address(RolloutChoice().address(phase=phase))))
        before += len(rows)
    return curves
