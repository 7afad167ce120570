"""The families of Holm's correction: which tests the configuration corrects together.

A family is a list of patterns `comparison/metric`, such as `main/reward`, `base:sft/*` or `*/part_*`. `main` is the
report's main comparison. A test belongs to the first family with a pattern that matches it. A test that no pattern
matches is a family of its own. A run's ledger records the families at its start, before there is any result.
"""

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from chimera.config.tree import Config
from chimera.core.errors import ConfigError, suggestion
from chimera.run.directory import Run
from evaluation.measures.metrics import metrics_of

MAIN = "main"
OTHERS = "everything else"
PLANNED = "planned"
"""The ledger's event that records the families at the start of a run."""

Families = Mapping[str, Sequence[str]]


def check(config: Config) -> None:
    """Refuse patterns with unknown metrics.

    Raises:
        ConfigError: A pattern of `evaluation.families` matches no metric.
    """
    names = [metric.name for metric in metrics_of(config)]
    for family, patterns in config.evaluation.families.items():
        for pattern in patterns:
            metric_pattern = pattern.rpartition("/")[2]
            if not any(fnmatchcase(name, metric_pattern) for name in names):
                hint = suggestion(metric_pattern, names, f"the metrics are {', '.join(names)}")
                raise ConfigError(
                    f"evaluation.families.{family}: {pattern!r} names no metric {metric_pattern!r}: {hint}"
                )


def family_of(pair: str, metric: str, families: Families, main: str | None) -> str:
    """The family of one test.

    Args:
        pair: The comparison, as "<before>:<after>".
        main: The report's main comparison, named as `pair`; None if it has none.
    """
    names = {pair, MAIN} if pair == main else {pair}
    for family, patterns in families.items():
        for pattern in patterns:
            comparison, _, metric_pattern = pattern.rpartition("/")
            if fnmatchcase(metric, metric_pattern) and any(fnmatchcase(name, comparison) for name in names):
                return family
    return OTHERS


def declared(run: Run) -> Mapping[str, Any] | None:
    """The ledger's first event with the run's "families", which holds its "time" too; None if there is none."""
    return next((event for event in run.events() if event["event"] == PLANNED and "families" in event), None)


def about(run: Run, config: Config, sizes: Mapping[str, int]) -> dict[str, Any]:
    """The report's facts on its families: patterns and number of tests of each, and the run's declaration."""
    declaration, used = declared(run), config.evaluation.families
    names = dict.fromkeys((*used, *sizes))
    return {
        "used": {name: {"patterns": list(used.get(name, ())), "tests": sizes.get(name, 0)} for name in names},
        "declared": None if declaration is None else declaration["time"],
        "as_declared": declaration is not None and _plain(declaration["families"]) == _plain(used),
    }


def note(about_families: Mapping[str, Any]) -> str | None:
    """A warning if the report's families were not declared before the run, else None."""
    if about_families["as_declared"]:
        return None
    if about_families["declared"] is None:
        return (
            "The run's ledger declares no families of tests, so those of Holm's correction here (evaluation.families) "
            "may have been chosen after results were seen."
        )
    return (
        "The families of Holm's correction in this report (evaluation.families) are not those that the run declared at "
        f"its start, {about_families['declared']}: they may have been chosen after results were seen."
    )


def _plain(families: Families) -> list[tuple[str, list[str]]]:
    """Families as a list: their order counts, because a test belongs to the first family that matches."""
    return [(name, list(patterns)) for name, patterns in families.items()]
