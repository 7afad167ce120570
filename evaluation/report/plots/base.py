"""All plots of a report, as PNG and SVG files. If there is nothing to draw, a sentence says why."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from evaluation.records.study import Study

if TYPE_CHECKING:
    from evaluation.measures.comparison import Comparisons
    from evaluation.report.plots.curves import Line


@dataclass(frozen=True, slots=True)
class Plot:
    """One plot of a report.

    Attributes:
        name: Its file name without ending.
        files: File names by format ("png", "svg"), relative to the plots' folder; empty without a plot.
        caption: How to read it, and its limits.
        missing: Why there is no plot; None if there is one.
    """

    name: str
    title: str
    files: Mapping[str, str] = field(default_factory=dict)
    caption: str = ""
    missing: str | None = None


TITLES = {
    "tokens": "What right answers cost",
    "reward": "Reward of every rollout",
    "parts": "Parts of the reward over time",
    "stages": "Stages compared",
    "confusion": "Answers and labels",
}
"""The plots of every report with their titles, in order. One plot for each phase that learns follows."""
STUDIES = "Right answers and the number of studies"
"""The title of a plot that only reports on tasks of different numbers of studies have."""


def draw_all(
    study: Study,
    lines: Sequence["Line"],
    comparisons: "Comparisons",
    folder: Path,
) -> list[Plot]:
    """Draw every plot of `study`. A plot without data has no files and says why.

    Args:
        lines: The run's metrics, from its metrics.jsonl or from W&B.
        comparisons: The report's comparisons, by "<before>:<after>" and metric.
    """
    # Import Matplotlib late: it is slow, and only drawing needs it.
    from evaluation.measures.metrics import stage_metrics
    from evaluation.report.plots import bandit as plots_bandit
    from evaluation.report.plots import stages as plots_stages
    from evaluation.report.plots import tokens as plots_tokens
    from evaluation.report.plots import training as plots_training
    from evaluation.report.plots.paper import paper, save

    means = {name: stage_metrics(answers, study.plan, study.config) for name, answers in study.answers.items()}
    folder.mkdir(parents=True, exist_ok=True)
    with paper():
        drawings = {
            "tokens": plots_tokens.tokens(study, means),
            "reward": plots_training.reward(lines),
            "parts": plots_training.parts(lines),
            "stages": plots_stages.stages(study, means, comparisons),
            "confusion": plots_stages.confusion(study),
        }
        titles = dict(TITLES)
        if (by_studies := plots_tokens.studies(study)) is not None:
            titles["studies"], drawings["studies"] = STUDIES, by_studies
        for phase, part in _learning(study).items():
            if part == "choice":
                titles[phase] = f"What {phase} expected of itself, and what happened"
                drawings[phase] = plots_bandit.reliability(study, phase, lines, means, comparisons)
            else:
                titles[phase] = f"{phase}, step by step"
                drawings[phase] = plots_training.steps(lines, phase)
        return [
            Plot(name, title, missing=drawn)
            if isinstance(drawn := drawings[name], str)
            else Plot(name, title, save(drawn, name, title, folder), drawn.caption)
            for name, title in titles.items()
        ]


def _learning(study: Study) -> dict[str, str]:
    """The part that each phase with roles learns, by phase; that of one that has not run is taken for weights."""
    learned = {event["phase"]: event["policy"]["part"] for event in study.run.events() if "policy" in event}
    return {name: learned.get(name, "weights") for name, phase in study.config.pipeline.items() if phase.roles}
