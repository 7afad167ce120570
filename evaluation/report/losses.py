"""Who lost the wrong answers, and which become right when their first wrong step is made right, in words."""

from collections.abc import Mapping
from typing import Any

from evaluation.causes.lost import Step
from evaluation.report.formats import between, sentence, shown, stage_titles

LOST_WORDS = (
    "The first wrong step of each rollout whose answer is wrong, from its record. The refined answer is that of the "
    "refiner's last visit. A later step could have mended the answer; it is not to blame for an earlier one."
)
BLAME_WORDS = (
    "Each wrong answer was replayed with its first wrong step made right, and the rest of the society worked on: of "
    "the juniors one that was right in a rollout of this task (or with whose findings all say what is right), for the "
    "supervisor a junior that was right, for the refiner the selected hypothesis as it was. Mended: the answer became "
    "right, so this step alone lost it. The share is of all wrong answers that were examined. No right value is known "
    "where no junior was right in any rollout of the task, and nobody can tell a vote what is right."
)
BLAME_HEAD = ("step made right", "wrong answers that it lost", "replayed", "mended", "mended share of the examined, %")
TITLES: Mapping[str, str] = {
    "juniors": "juniors: one of them right",
    "supervisor": "supervisor: a right junior selected",
    "refiner": "refiner: the selected answer kept",
}


def blame_words(report: Mapping[str, Any]) -> str:
    """What repairing one step would mend, in one sentence; empty if no wrong answer was examined."""
    blame = report["blame"]
    if blame is None or not blame["examined"]:
        return ""
    steps = [
        f"{step} {step_row['mended']} of {step_row['lost']}"
        for step, step_row in blame["steps"].items()
        if step_row["lost"] or step_row["mended"]
    ]
    title = sentence(stage_titles(report)[blame["stage"]])
    return (
        f"{title}, of {blame['examined']} wrong answers {blame['mended']} become right when their first wrong step is "
        f"made right ({', '.join(steps) or 'none can be'}); {blame['replays']} replays were made."
    )


def blame_rows(report: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """The rows below `BLAME_HEAD`; empty if no wrong answer was examined."""
    blame = report["blame"]
    if blame is None or not blame["examined"]:
        return []
    rows = [_row(TITLES[step], step_row, step_row["lost"]) for step, step_row in blame["steps"].items()]
    return [*rows, _row("any of them", blame, blame["examined"])]


def _row(title: str, counts: Mapping[str, Any], lost: int) -> tuple[str, ...]:
    share = counts["share"]
    failed = f" ({counts['failed']} failed)" if counts.get("failed") else ""
    mean = f"{shown(share['mean'], 'share')} ({between(share['low'], share['high'], 'share')})"
    return title, str(lost), f"{counts['replays']}{failed}", str(counts["mended"]), mean


def lost_words(report: Mapping[str, Any]) -> str:
    """Who lost the wrong answers of the last stage, in one sentence; empty if its rollouts do not say so."""
    stage = report["standing"][0]
    loss = report["lost"].get(stage)
    if loss is None:
        return ""
    steps = [f"{LOST_AT[step]} {count}" for step, count in loss["steps"].items() if count]
    vetoed = f"; {loss['vetoed']} right ones were vetoed" if loss["vetoed"] else ""
    who = f", lost by {', '.join(steps)}" if steps else ""
    title = sentence(stage_titles(report)[stage])
    return f"{title}, {loss['wrong']} of {loss['rollouts']} answers are wrong{who}{vetoed}."


def lost_rollouts(report: Mapping[str, Any]) -> dict[Step, list[str]]:
    """Ids of the last stage's rollouts with a wrong answer, by their first wrong step."""
    final = report["standing"][0]
    if final not in report["lost"]:
        return {}
    rows = report["outcomes"][final]["rollouts"]
    by_step: dict[Step, list[str]] = {step: [row["id"] for row in rows if row["lost"] == step] for step in LOST_AT}
    return {step: ids for step, ids in by_step.items() if ids}


LOST_AT: Mapping[Step, str] = {
    "juniors": "the juniors (nothing right handed on)",
    "supervisor": "the supervisor (another junior right)",
    "refiner": "the refiner (selected right)",
    "review": "board or principal (refined right)",
    "failed": "failed rollouts",
}
"""The steps of `evaluation.causes.lost` in a sentence."""
