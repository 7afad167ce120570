"""The report as one self-contained HTML page: no network, readable without scripts, for light, dark and paper.

This module decides the content of the tables, and the template only places it. The template escapes everything but
the SVG of the plots, so text that a model wrote stays text.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import groupby
from operator import itemgetter
from typing import Any

import jinja2
from markupsafe import Markup

from evaluation.causes.lost import TITLES
from evaluation.measures.metrics import NONE
from evaluation.records.recorded import side_file
from evaluation.records.study import Plan
from evaluation.report.conversations import file_of, linked
from evaluation.report.figures import (
    ablation_rows,
    amount,
    answered,
    beside_strongest,
    between,
    change,
    change_between,
    data_words,
    equals,
    families_words,
    played,
    probability,
    sampled_words,
    sentence,
    shown,
    signed,
    slug,
    stage_titles,
    standing,
    standing_words,
    titled,
    two,
    veto_words,
)
from evaluation.report.gave import WAYS, gave, gave_rows, gave_words, lost_rollouts, lost_words
from evaluation.report.repairs import HEAD, blame_rows, blame_words
from evaluation.report.repairs import WORDS as REPAIRS_WORDS
from evaluation.report.text import BASELINES_WORDS, LOST_WORDS
from evaluation.scores.judge import CRITERIA
from evaluation.scores.rewards import part_title
from evaluation.verify.impossible import PART

Report = Mapping[str, Any]
OUTCOME, PARTS, SCORES, WORK = "Outcome", "Parts of the reward", "The judge's scores", "Work"
OUTCOMES = ("success", "reward", "alignment", "macro_f1", "decision_alignment", "decision_two_way", "vetoed")


def page(report: Report, drawings: Mapping[str, str]) -> str:
    """The page of `report` (from `evaluation.report.build.build`). `drawings`: SVG text of each plot by name."""
    plan = Plan.load(report["plan"])
    return _template().render(
        report=report,
        titles=stage_titles(report),
        final=plan.final.name,
        audit_file=side_file(plan.split, "audit"),
        canaries_file=side_file(plan.split, "canaries"),
        data=data_words(report),
        sampled=sampled_words(report),
        percent=f"{100 * report['settings']['confidence']:g}",
        played=played(report),
        vetoes=veto_words(report),
        standing=standing(report),
        standing_words=standing_words(report),
        gave=gave(report),
        gave_words=gave_words(report),
        ways=WAYS,
        gave_rows=gave_rows(report),
        lost=lost_words(report),
        lost_words=LOST_WORDS,
        lost_titles=TITLES,
        lost_rollouts=lost_rollouts(report),
        blame=blame_words(report),
        blame_head=HEAD,
        blame_rows=blame_rows(report),
        blame_words=REPAIRS_WORDS,
        answered=answered(report),
        baselines_words=BASELINES_WORDS,
        cards=_cards(report),
        groups=_groups(report),
        comparisons=_comparisons(report),
        others=_others(report),
        ablation=_ablation(report),
        rollouts={stage: _rollouts(stage, found) for stage, found in report["outcomes"].items()},
        first_rollouts={
            stage: {row["task"]: row["id"] for row in reversed(found["rollouts"])}
            for stage, found in report["outcomes"].items()
        },
        columns=_columns(report),
        linked=linked(report),
        plots=[{**plot, "svg": inlined(drawings.get(plot["name"]), plot["name"])} for plot in report["plots"]],
        side_by_side=[{**pair, "sections": _sections(pair["rows"])} for pair in report["side_by_side"]],
    )


@lru_cache(maxsize=1)
def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("evaluation", "assets"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "titled": titled,
        "slug": slug,
        "probability": probability,
        "equals": equals,
        "sentence": sentence,
    }
    environment.globals |= {
        "families_words": families_words,
        "part_title": part_title,
        "shown": shown,
        "signed": signed,
        "two": two,
        "file_of": file_of,
        "amount": amount,
        "change": change,
        "between": between,
        "change_between": change_between,
    }
    return environment.get_template("report.html.j2")


def inlined(drawing: str | None, name: str) -> Markup | None:
    """An SVG file for the page: only its root element, with unique ids, as wide as the page allows."""
    if drawing is None:
        return None
    start = drawing.index("<svg")
    body = drawing[start:].rstrip()
    head, rest = body.split(">", 1)
    head = re.sub(r'\s(?:width|height)="[^"]*"', "", head)
    text = f"{head}>{rest}"
    text = re.sub(r'\bid="([^"]+)"', rf'id="{name}-\1"', text)
    text = re.sub(r'href="#([^"]+)"', rf'href="#{name}-\1"', text)
    return Markup(re.sub(r"url\(#([^()]+)\)", rf"url(#{name}-\1)", text))


def _cards(report: Report) -> list[dict[str, Any]]:
    """The comparisons of the first screen: reward and right answers of the verdict, and the strongest baseline."""
    pair, strongest = report["verdict"]["comparison"], beside_strongest(report)
    wanted = [] if pair is None else [("Answers right", pair, "alignment"), ("Reward", pair, "reward")]
    if strongest is not None:
        wanted.append(("Answers right, beside the strongest baseline of at most its tokens", strongest, "alignment"))
    return [
        {
            **row,
            "name": name,
            "pair": pair,
            "sides": pair.split(":"),
            "title": title,
            "unit": report["metrics"][name]["unit"],
            "words": {"reward": "", "alignment": "points"}[name],
            "sign": {"reward": "", "alignment": " %"}[name],
            "tokens": [report["work"][side]["tokens"] for side in pair.split(":")] if pair == strongest else None,
            "bar": bar(row["low"], row["difference"], row["high"], _span([row])),
        }
        for title, pair, name in wanted
        if (row := report["comparisons"][pair].get(name)) is not None
    ]


def _groups(report: Report) -> list[dict[str, Any]]:
    """All metrics that some stage has, in groups for display."""
    groups: dict[str, list[dict[str, Any]]] = {OUTCOME: [], PARTS: [], SCORES: [], WORK: []}
    for name, metric in report["metrics"].items():
        means = [(stage, metrics.get(name)) for stage, metrics in report["stages"].items()]
        if any(mean for _, mean in means):
            # A title does not repeat the group: "reward part: novelty" is "novelty" among the parts.
            title = metric["title"].rpartition(": ")[2]
            groups[_group(name)].append({**metric, "name": name, "title": title, "means": means})
    return [{"title": title, "metrics": metrics} for title, metrics in groups.items() if metrics]


def _group(name: str) -> str:
    if name in OUTCOMES:
        return OUTCOME
    return PARTS if name.startswith(PART) else SCORES if name in CRITERIA else WORK


def _comparisons(report: Report) -> list[dict[str, Any]]:
    """One table for each primary metric, whose rows share a scale."""
    tables: list[dict[str, Any]] = []
    for name, metric in report["metrics"].items():
        rows = [(pair, found[name]) for pair, found in report["comparisons"].items() if name in found]
        if not metric["primary"] or not rows:
            continue
        span = _span([row for _, row in rows])
        tables.append(
            {
                "name": name,
                **metric,
                "rows": [
                    {
                        **row,
                        "pair": pair,
                        "sides": pair.split(":"),
                        "bar": bar(row["low"], row["difference"], row["high"], span),
                    }
                    for pair, row in rows
                ],
            }
        )
    return tables


def _others(report: Report) -> list[dict[str, Any]]:
    """The other metrics of the comparisons, one table for each pair of stages."""
    metrics = report["metrics"]
    found: list[dict[str, Any]] = []
    for pair, rows in report["comparisons"].items():
        others = [{**row, "metric": metrics[name], "name": name} for name, row in rows.items() if not row["primary"]]
        if others:
            found.append({"pair": pair, "sides": pair.split(":"), "rows": others})
    return found


def _ablation(report: Report) -> list[dict[str, Any]]:
    rows = [
        {**row, "found": {name: report["comparisons"][row["comparison"]].get(name) for name in ("reward", "alignment")}}
        for row in ablation_rows(report)
    ]
    spans = {
        name: _span([row["found"][name] for row in rows if row["found"][name]]) for name in ("reward", "alignment")
    }
    for row in rows:
        row["bars"] = {
            name: bar(one["low"], one["difference"], one["high"], spans[name])
            for name, one in row["found"].items()
            if one
        }
    return rows


def _columns(report: Report) -> list[dict[str, Any]]:
    """The metrics that single rollouts have, for the tables of rollouts."""
    used = {name for found in report["outcomes"].values() for row in found["rollouts"] for name in row["values"]}
    return [{"name": name, **metric} for name, metric in report["metrics"].items() if name in used]


def _rollouts(stage: str, found: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A stage's rollouts sorted by label and answer, failed ones first, so that each cell of the confusion matrix is a
    block of rows. The first row of a block has its anchors."""
    labels, answers = list(found["confusion"]), list(next(iter(found["confusion"].values())))

    def key(row: Mapping[str, Any]) -> tuple[bool, int, int]:
        return row["status"] != "failed", labels.index(row["label"]), answers.index(_answered(row))

    rows: list[dict[str, Any]] = []
    known: set[str] = set()
    for row in sorted(found["rollouts"], key=key):
        anchors = [one for one in _anchors(stage, row) if one not in known]
        known.update(anchors)
        rows.append({**row, "anchors": anchors, "shown_answer": _answered(row)})
    return rows


def _answered(row: Mapping[str, Any]) -> str:
    return NONE if row["status"] == "failed" else row["answer"] or NONE


def _anchors(stage: str, row: Mapping[str, Any]) -> Iterator[str]:
    yield slug(f"{stage}.{row['label']}.{_answered(row)}")
    if row["status"] == "failed":
        yield slug(f"{stage}.failed")


def _sections(rows: Sequence[Mapping[str, Any]]) -> list[tuple[str, list[Mapping[str, Any]]]]:
    return [(section, list(found)) for section, found in groupby(rows, key=itemgetter("section"))]


Span = tuple[float, float]


def _span(rows: Sequence[Mapping[str, Any]]) -> Span:
    """The range of the scale: all intervals and zero, with a margin."""
    ends = [value for row in rows for value in (row["low"], row["difference"], row["high"]) if value is not None]
    low, high = min([0.0, *ends]), max([0.0, *ends])
    room = 0.06 * (high - low) or 1.0
    return low - room, high + room


def bar(low: float | None, middle: float, high: float | None, span: Span) -> dict[str, float]:
    """Positions of an interval, its middle and zero on a scale, in per cent of the scale's width."""
    first, last = span

    def place(value: float) -> float:
        return round(100 * (value - first) / (last - first), 2)

    left, right = place(middle if low is None else low), place(middle if high is None else high)
    return {"left": left, "width": round(right - left, 2), "middle": place(middle), "zero": place(0.0)}
