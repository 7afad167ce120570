"""Plots that compare the stages: means, differences from the base, and confusion matrices."""

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from chimera.core.types import Label
from evaluation.measures.comparison import Comparisons
from evaluation.measures.metrics import NONE, outcomes
from evaluation.measures.statistics import Mean
from evaluation.records.study import BASE, Plan, Stage, Study
from evaluation.report.plots.paper import BLUE, INK, ORANGE, Drawing, intervals, panels

StageMeans = Mapping[str, Mapping[str, Mean]]
"""Means by stage, then by metric."""
Confusion = Mapping[Label, Mapping[str, int]]
"""Number of rollouts by label and answer."""

METRICS = {"reward": "reward", "alignment": "share of answers right", "macro_f1": "macro-F1"}
"""The metrics that are drawn, with their titles."""
FULL = 0.55
"""Opacity of a cell with all tasks of its row. Text on it is legible on a white and on a black page."""


def stages(study: Study, means: StageMeans, comparisons: Comparisons) -> Drawing | str:
    """Means of each stage with intervals, and paired differences from the base; a sentence if there is no stage."""
    shown = _shown(study.plan)
    names = [name for name in METRICS if any(name in means[stage.name] for stage in shown)]
    if not names:
        return "No stage has a reward or an answer."
    figure, grid = panels(2 * len(names), 2, 0.5 + 0.27 * len(shown))
    colours = [ORANGE if _never_live(stage) else BLUE for stage in shown]
    for number, name in enumerate(names):
        left, right = grid[2 * number : 2 * number + 2]
        rows = [means[stage.name].get(name) for stage in shown]
        differences = [comparisons.get(f"{BASE}:{stage.name}", {}).get(name) for stage in shown]
        intervals(left, [row and (row.mean, row.low, row.high) for row in rows], colours)
        intervals(right, [row and (row.difference, row.low, row.high) for row in differences], colours)
        left.set_yticks(range(len(shown)), [stage.name for stage in shown])
        left.set_title(METRICS[name])
        right.axvline(0, color=INK, linewidth=0.9, alpha=0.6)
        right.set_yticks([])
        right.set_title("difference from the base")
    confidence = f"{100 * study.config.evaluation.confidence:.4g} %"
    never_live = " Orange: what was never live, such as one learned policy alone, or failing tools."
    alone = never_live if any(map(_never_live, shown)) else ""
    return Drawing(
        figure,
        "Left the mean of each stage, right its paired difference from the base on the same tasks and seeds, with "
        f"{confidence} intervals. Whether a stage is better can be seen on the right: pairing takes out the tasks' own "
        f"difficulty, which widens the intervals on the left.{alone}",
    )


def _shown(plan: Plan) -> list[Stage]:
    """The stages that are drawn: without coalitions, of which there can be many."""
    return [stage for stage in plan.stages if stage.kind != "coalition"]


def confusion(study: Study) -> Drawing | str:
    """Confusion matrix of each stage; a sentence if there are no rollouts."""
    answers = [study.answers[stage.name] for stage in _shown(study.plan)]
    if not any(stage_answers.records for stage_answers in answers):
        return "No rollout is recorded, so no answer met a label."
    counts: dict[str, Confusion] = {
        stage_answers.stage.name: outcomes(stage_answers, study.plan.labels)["confusion"] for stage_answers in answers
    }
    failed = any(row[NONE] for matrix in counts.values() for row in matrix.values())
    labels = study.plan.labels
    columns = [*labels, *([NONE] if failed else [])]
    rows = [label for label in labels if any(any(matrix[label].values()) for matrix in counts.values())]
    figure, grid = panels(len(answers), 2, 0.6 + 0.36 * len(rows))
    for axes, (name, matrix) in zip(grid, counts.items(), strict=True):
        _matrix(axes, matrix, rows, columns)
        axes.set_title(name)
    unread = f" '{NONE}' is a rollout that failed." if failed else ""
    return Drawing(
        figure,
        "Rollouts by label (rows) and answer (columns). The framed cells are right; the deeper the colour, the "
        f"larger the share of the row.{unread}",
    )


def _matrix(axes: Axes, counts: Confusion, rows: Sequence[Label], columns: Sequence[str]) -> None:
    for y, label in enumerate(rows):
        total = sum(counts[label].values())
        for x, answer in enumerate(columns):
            count = counts[label][answer]
            share = count / total if total else 0.0
            place = (x - 0.5, y - 0.5)
            axes.add_patch(Rectangle(place, 1, 1, facecolor=BLUE, alpha=FULL * share, linewidth=0))
            if label == answer:
                axes.add_patch(Rectangle(place, 1, 1, fill=False, edgecolor=INK, linewidth=1.2))
            axes.text(x, y, str(count), ha="center", va="center")
    axes.set_xlim(-0.55, len(columns) - 0.45)
    axes.set_ylim(len(rows) - 0.45, -0.55)
    axes.set_xticks(range(len(columns)), columns)
    axes.set_yticks(range(len(rows)), rows)
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)


def _never_live(stage: Stage) -> bool:
    return stage.kind != "sequence"
