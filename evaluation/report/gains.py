"""What each phase gave, for the first screen of a report."""

from collections.abc import Mapping
from typing import Any

WAYS: Mapping[str, str] = {
    "sequence": "in the run's order",
    "alone": "alone on the base",
    "left out": "left out of the end",
    "shapley": "Shapley value",
}
"""The ways to say what a phase gave, with their titles."""
SEQUENCE_WORDS = "In the run's order: each phase beside what was live before it."
GAIN_WORDS = (
    "Left out of the end: the end beside the end without it. "
    "Shapley value: the mean gain over all orders in which the phases could have been added; these sum to the whole. "
    "At base: the end beside the end with this slot's weights, this choice or this guidance as the run began. "
    "A policy without those that it was learned with is in a society that it did not train in."
)
TOGETHER = "all together"
"""The row of the whole gain from the first to the last stage."""


AT_BASE = "{} at base"
"""The row of the end beside the end with a slot, the choice or the guidance back at base."""


def gain_tables(report: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What each phase gave, one table for each of right answers and reward; empty if no phase was evaluated.

    Each table has "name", "title" and "unit" of its metric, "ways" (keys of `WAYS`), and "rows": "phase" (or the
    title of a place back at base), "learner" (who learned; empty for all together) and "cells", for each way a
    difference with "low", "high", "verdict" and "comparison", or None. A way that only repeats comparisons of the
    run's order is left out.
    """
    return [_gain_table(report, name) for name in ("alignment", "reward")] if report["ablation"] else []


def gain_rows(report: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The tables of `gain_tables` as one, if they tell only what each phase gave in the run's order; else empty.

    A row has "phase", "learner", and "cells": the differences of right answers and of reward.
    """
    tables = gain_tables(report)
    if any(table["ways"] != ["sequence"] for table in tables):
        return []
    pairs = zip(*(table["rows"] for table in tables), strict=True)
    return [{**right, "cells": [right["cells"][0], reward["cells"][0]]} for right, reward in pairs]


def gains_words(report: Mapping[str, Any]) -> str:
    """How to read the tables of `gain_tables`, and the phases whose policy a later one replaced."""
    words = [SEQUENCE_WORDS] if gain_rows(report) else [SEQUENCE_WORDS, GAIN_WORDS]
    return " ".join([*words, *replaced(report)])


def replaced(report: Mapping[str, Any]) -> list[str]:
    """A sentence on each phase whose policy a later phase replaced, so that leaving it out of the end is no stage."""
    learned = report["plan"]["learned"]
    last = {(policy["part"], policy["target"]): phase for phase, policy in learned.items()}
    later = {phase: last[policy["part"], policy["target"]] for phase, policy in learned.items()}
    return [
        f"What {new} learned replaced what {phase} learned, so without {phase} the end is the same: {phase} counts "
        f"only where {new} is not."
        for phase, new in later.items()
        if phase != new
    ]


def _gain_table(report: Mapping[str, Any], name: str) -> dict[str, Any]:
    cells: dict[tuple[str, str], dict[str, Any]] = {}
    for row in report["ablation"]:
        if (comparison := report["comparisons"][row["comparison"]].get(name)) is not None:
            back = row["kind"] == "at base"
            title, way = (AT_BASE.format(row["learner"]), "left out") if back else (row["phase"], row["kind"])
            cells[title, way] = _difference(comparison, row["comparison"])
    shares = report["shapley"].get(name)
    if shares is not None:
        cells |= {(phase, "shapley"): _difference(share) for phase, share in shares["phases"].items()}
        cells[TOGETHER, "shapley"] = _difference(shares["total"])
    whole = report["verdict"]["comparison"]
    if whole is not None and (comparison := report["comparisons"][whole].get(name)) is not None:
        cells[TOGETHER, "sequence"] = _difference(comparison, whole)
    ways = [way for way in WAYS if any(kind == way and _new(cells, title, way) for title, kind in cells)]
    back = [AT_BASE.format(row["learner"]) for row in report["ablation"] if row["kind"] == "at base"]
    in_order = [row["phase"] for row in report["ablation"] if row["kind"] == "sequence"]
    titles_in_order = dict.fromkeys((*in_order, *report["plan"]["learned"], *back))
    titles = [title for title in titles_in_order if any((title, way) in cells for way in ways)]
    learners = {row["phase"]: row["learner"] for row in report["ablation"] if row["kind"] == "sequence"}
    rows = [
        {"phase": title, "learner": learners.get(title, ""), "cells": [cells.get((title, way)) for way in ways]}
        for title in (*titles, TOGETHER)
    ]
    return {"name": name, **GAINS[name], "ways": ways, "rows": rows}


def _new(cells: Mapping[tuple[str, str], Mapping[str, Any]], title: str, way: str) -> bool:
    """True unless the run's order has the same comparison for this phase."""
    usual = cells.get((title, "sequence"))
    return way == "sequence" or usual is None or usual["comparison"] != cells[title, way]["comparison"]


GAINS: Mapping[str, Mapping[str, str]] = {
    "alignment": {"title": "right, points", "unit": "share"},
    "reward": {"title": "reward", "unit": "points"},
}


def _difference(estimate: Mapping[str, Any], comparison: str | None = None) -> dict[str, Any]:
    """A comparison or a Shapley value as a cell."""
    value = estimate["difference"] if "difference" in estimate else estimate["mean"]
    ends = {"low": estimate["low"], "high": estimate["high"]}
    return {"difference": value, **ends, "verdict": estimate.get("verdict"), "comparison": comparison}
