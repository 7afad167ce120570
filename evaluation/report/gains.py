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
    "At base: the end beside the end with this slot's weights, or this choice, as the run began. "
    "A policy without those that it was learned with is in a society that it did not train in."
)
TOGETHER = "all together"
"""The row of the whole gain from the first to the last stage."""


AT_BASE = "{} at base"
"""The row of the end beside the end with a slot, or the choice, back at base."""


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
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for row in report["ablation"]:
        if (one := report["comparisons"][row["comparison"]].get(name)) is not None:
            back = row["kind"] == "at base"
            title, way = (AT_BASE.format(row["learner"]), "left out") if back else (row["phase"], row["kind"])
            found[title, way] = _difference(one, row["comparison"])
    shares = report["shapley"].get(name)
    if shares is not None:
        found |= {(phase, "shapley"): _difference(one) for phase, one in shares["phases"].items()}
        found[TOGETHER, "shapley"] = _difference(shares["total"])
    whole = report["verdict"]["comparison"]
    if whole is not None and (one := report["comparisons"][whole].get(name)) is not None:
        found[TOGETHER, "sequence"] = _difference(one, whole)
    ways = [way for way in WAYS if any(kind == way and _new(found, title, way) for title, kind in found)]
    back = [AT_BASE.format(row["learner"]) for row in report["ablation"] if row["kind"] == "at base"]
    in_order = [row["phase"] for row in report["ablation"] if row["kind"] == "sequence"]
    known = dict.fromkeys((*in_order, *report["plan"]["learned"], *back))
    titles = [title for title in known if any((title, way) in found for way in ways)]
    learners = {row["phase"]: row["learner"] for row in report["ablation"] if row["kind"] == "sequence"}
    rows = [
        {"phase": title, "learner": learners.get(title, ""), "cells": [found.get((title, way)) for way in ways]}
        for title in (*titles, TOGETHER)
    ]
    return {"name": name, **GAINS[name], "ways": ways, "rows": rows}


def _new(found: Mapping[tuple[str, str], Mapping[str, Any]], title: str, way: str) -> bool:
    """True unless the run's order has the same comparison for this phase."""
    usual = found.get((title, "sequence"))
    return way == "sequence" or usual is None or usual["comparison"] != found[title, way]["comparison"]


GAINS: Mapping[str, Mapping[str, str]] = {
    "alignment": {"title": "right, points", "unit": "share"},
    "reward": {"title": "reward", "unit": "points"},
}


def _difference(found: Mapping[str, Any], comparison: str | None = None) -> dict[str, Any]:
    """A comparison or a Shapley value as a cell."""
    value = found["difference"] if "difference" in found else found["mean"]
    ends = {"low": found["low"], "high": found["high"]}
    return {"difference": value, **ends, "verdict": found.get("verdict"), "comparison": comparison}
