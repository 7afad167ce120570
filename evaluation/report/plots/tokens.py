"""Plots of right answers against tokens and against studies, of the society and of what stands beside it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from evaluation.baselines import simple as baselines
from evaluation.baselines import standing
from evaluation.measures.metrics import answer_metrics, answers_by_baseline
from evaluation.measures.statistics import Mean
from evaluation.records.study import Study
from evaluation.report.plots.paper import BLUE, GREEN, INK, ORANGE, WIDTH, Drawing
from evaluation.report.plots.stages import StageMeans

SHORT: Mapping[str, str] = {
    baselines.UNREVIEWED: "the society without its board",
    baselines.JUNIOR_VOTE: "majority of the juniors",
    baselines.BY_RULE: "the juniors' findings by the rule",
    baselines.AGENT: "one agent with all tools",
    baselines.AGENT_VOTE: "majority of such agents",
    baselines.MAP_REDUCE: "a call for each study, one to combine",
    baselines.CONSISTENCY: "majority of single calls",
    baselines.SINGLE: "one sampled call",
    baselines.GREEDY: "one greedy call",
    baselines.LABELS: "fine-tuned on the labels alone",
    baselines.READER: "a rule without a language model",
}
"""Names of baselines that are short enough for a legend."""

NEAR = 1.1
"""Points whose tokens differ by less than this factor have their numbers one above the other."""


@dataclass(frozen=True, slots=True)
class PricedAnswers:
    """One way to answer: its name, its tokens a task, its share of right answers."""

    title: str
    tokens: float
    right: Mean
    society: bool


def tokens(study: Study, means: StageMeans) -> Drawing | str:
    """Right answers against tokens; a sentence if nothing that used tokens has answered."""
    points = _points(study, means)
    paid = sorted((point for point in points if point.tokens > 0), key=lambda point: point.tokens)
    if not paid:
        return "No recorded answer took tokens."
    free = max((point for point in points if point.tokens == 0), key=lambda point: point.right.mean, default=None)
    figure = Figure(figsize=(WIDTH, 2.6 + 0.17 * len(paid)), layout="constrained")
    axes = figure.subplots()
    axes.set_xscale("log")
    for number, point in enumerate(paid, start=1):
        colour = BLUE if point.society else ORANGE
        right = 100 * point.right.mean
        _interval(axes, point.tokens, (point.right.low, point.right.high), colour)
        axes.plot([point.tokens], [right], "o", color=colour, markersize=7, label=f"{number}  {point.title}")
        near = [other for other in paid[: number - 1] if point.tokens / other.tokens < NEAR]
        place = (6, 4 + 10 * (len(near) % 4))
        axes.annotate(str(number), (point.tokens, right), place, textcoords="offset points", fontsize=8.5)
    best = frontier(paid)
    axes.step([point.tokens for point in best], [100 * point.right.mean for point in best], where="post", color=INK,
              linewidth=1, alpha=0.6)  # fmt: skip
    if free is not None:
        axes.axhline(100 * free.right.mean, color=INK, linewidth=0.9, alpha=0.5, linestyle=":", label=free.title)
    for which in (axes.xaxis.set_major_formatter, axes.xaxis.set_minor_formatter):
        which(lambda cost, _: f"{cost:,.0f}" if f"{cost:.0e}"[0] in "125" else "")
    _label(figure, axes, "tokens a task")
    return Drawing(
        figure,
        f"Blue the society, orange what stands beside it, with {_confidence(study)} intervals, on the same tasks. The "
        "line is the frontier: the best share of right answers that so many tokens buy. Dotted: the best that uses no "
        "model. Whether two differ is told by the paired comparisons, not by whether their intervals overlap.",
    )


def frontier(points: Sequence[PricedAnswers]) -> list[PricedAnswers]:
    """Of points in the order of their tokens those that are better than all cheaper ones."""
    best: list[PricedAnswers] = []
    for point in points:
        if not best or point.right.mean > best[-1].right.mean:
            best.append(point)
    return best


def studies(study: Study) -> Drawing | None:
    """Right answers against the number of studies; None where not at least two numbers occur."""
    by_studies = standing.by_studies(study)
    if not by_studies:
        return None
    figure = Figure(figsize=(WIDTH, 2.9), layout="constrained")
    axes = figure.subplots()
    counts, systems = by_studies["counts"], by_studies["systems"]
    apart = 0.02 * (max(map(int, counts)) - min(map(int, counts)))
    for place, (name, colour) in enumerate(zip(systems, (BLUE, ORANGE, GREEN), strict=False)):
        rights = {int(count): row["right"][name] for count, row in counts.items() if name in row["right"]}
        across = [count + apart * (place - (len(systems) - 1) / 2) for count in rights]  # Intervals side by side.
        for x, right in zip(across, rights.values(), strict=True):
            _interval(axes, x, (right["low"], right["high"]), colour)
        title = f"the society, {study.plan.final.title}" if name == study.plan.final.name else _title(study, name)
        shares = [100 * right["mean"] for right in rights.values()]
        axes.plot(across, shares, "os^"[place], linestyle="-", color=colour, markersize=6, label=title)
    axes.set_xticks([int(count) for count in counts])
    _label(figure, axes, "studies of a task")
    return Drawing(
        figure,
        f"Shares of right answers with {_confidence(study)} intervals, over the tasks with so many studies. Whether "
        "two differ is told by their paired difference, not by whether their intervals overlap.",
    )


def _interval(axes: Axes, x: float, ends: Sequence[float | None], colour: str) -> None:
    """Draws the interval between two shares, if there is one."""
    if shares := [100 * end for end in ends if end is not None]:
        axes.plot([x] * len(shares), shares, color=colour, linewidth=1.6, alpha=0.7)


def _label(figure: Figure, axes: Axes, across: str) -> None:
    axes.set_xlabel(across)
    axes.set_ylabel("answers right, %")
    axes.grid(axis="y")
    figure.legend(loc="outside lower left", frameon=False, fontsize=8.5)


def _confidence(study: Study) -> str:
    return f"{100 * study.config.evaluation.confidence:.4g} %"


def _title(study: Study, name: str) -> str:
    """A baseline's short name, and its stage if that is not the last."""
    kind, _, stage = name.partition("@")
    of_stage = f", {stage}" if stage and stage != study.plan.final.name else ""
    return f"{SHORT.get(kind, kind)}{of_stage}"


def _points(study: Study, means: StageMeans) -> list[PricedAnswers]:
    """The base, the end, and what the first screen shows beside them."""
    spent, answered = standing.work(study), answers_by_baseline(study.baselines)
    points: list[PricedAnswers] = []
    for stage in study.plan.ends:
        cost, mean = spent[stage.name]["tokens"], means[stage.name].get("alignment")
        if cost is not None and mean is not None:
            points.append(PricedAnswers(f"the society, {stage.title}", cost, mean, society=True))
    for name in standing.beside(study)[1:]:
        if (cost := spent[name]["tokens"]) is not None and name in answered:
            right = answer_metrics(answered[name], study.plan, study.config)["alignment"]
            points.append(PricedAnswers(_title(study, name), cost, right, society=False))
    return points
