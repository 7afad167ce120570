"""Wrong answers that were replayed with their first wrong step made right, in words and as a table."""

from collections.abc import Mapping
from typing import Any

from evaluation.report.figures import between, sentence, shown, stage_titles

WORDS = (
    "Each wrong answer was replayed with its first wrong step made right, and the rest of the society worked on: of "
    "the juniors one that was right in a rollout of this task, for the supervisor a junior that was right, for the "
    "refiner the selected hypothesis as it was. Mended: the answer became right, so this step alone lost it. The share "
    "is of all wrong answers that were examined. No right value is known where no junior was right in any rollout of "
    "the task."
)
HEAD = ("step made right", "wrong answers that it lost", "replayed", "mended", "mended share of the examined, %")
TITLES: Mapping[str, str] = {
    "juniors": "juniors: one of them right",
    "supervisor": "supervisor: a right junior selected",
    "refiner": "refiner: the selected answer kept",
}


def blame_words(report: Mapping[str, Any]) -> str:
    """What repairing one step would mend, in one sentence; empty if no wrong answer was examined."""
    found = report["blame"]
    if found is None or not found["examined"]:
        return ""
    steps = [
        f"{step} {one['mended']} of {one['lost']}"
        for step, one in found["steps"].items()
        if one["lost"] or one["mended"]
    ]
    title = sentence(stage_titles(report)[found["stage"]])
    return (
        f"{title}, of {found['examined']} wrong answers {found['mended']} become right when their first wrong step is "
        f"made right ({', '.join(steps) or 'none can be'}); {found['replays']} replays were made."
    )


def blame_rows(report: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """The rows below `HEAD`; empty if no wrong answer was examined."""
    found = report["blame"]
    if found is None or not found["examined"]:
        return []
    rows = [_row(TITLES[step], one, one["lost"]) for step, one in found["steps"].items()]
    return [*rows, _row("any of them", found, found["examined"])]


def _row(title: str, one: Mapping[str, Any], lost: int) -> tuple[str, ...]:
    share = one["share"]
    failed = f" ({one['failed']} failed)" if one.get("failed") else ""
    mean = f"{shown(share['mean'], 'share')} ({between(share['low'], share['high'], 'share')})"
    return title, str(lost), f"{one['replays']}{failed}", str(one["mended"]), mean
