"""The families of Holm's correction: which tests are corrected for each other, as the configuration declares it.

A family is a list of patterns `comparison/metric`, such as `main/reward`, `base:sft/*` or `*/part_*`. `main` is the
comparison that the report is about. A test belongs to the first family that has a pattern for it, and what no family
has a pattern for is a family of its own. A run's ledger records the families at its start, before there is any result.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Any

from chimera.config.tree import Config
from chimera.core.errors import ConfigError
from chimera.run.directory import Run
from evaluation.measures.metrics import metrics_of

MAIN = "main"
OTHERS = "everything else"
PLANNED = "planned"
"""The ledger's event at the start of a run that holds its families."""

Families = Mapping[str, Sequence[str]]


@dataclass(frozen=True, slots=True)
class Declaration:
    """The families that a run's ledger recorded first, and when."""

    time: str
    families: Families


def check(config: Config) -> None:
    """Refuse a metric that there is none of, by name.

    Raises:
        ConfigError: A pattern of `evaluation.families` matches no metric.
    """
    known = [metric.name for metric in metrics_of(config)]
    for family, patterns in config.evaluation.families.items():
        for pattern in patterns:
            wanted = pattern.rpartition("/")[2]
            if not any(fnmatchcase(name, wanted) for name in known):
                near = get_close_matches(wanted, known, n=1)
                hint = f"did you mean {near[0]!r}?" if near else f"the metrics are {', '.join(known)}"
                raise ConfigError(f"evaluation.families.{family}: {pattern!r} names no metric {wanted!r}: {hint}")


def family_of(pair: str, metric: str, families: Families, main: str | None) -> str:
    """The family of one test.

    Args:
        pair: The comparison, as "<before>:<after>".
        metric: The metric's name.
        families: As configured.
        main: The comparison that the report is about, named as `pair`; None without one.
    """
    names = {pair, MAIN} if pair == main else {pair}
    for family, patterns in families.items():
        for pattern in patterns:
            comparison, _, wanted = pattern.rpartition("/")
            if fnmatchcase(metric, wanted) and any(fnmatchcase(name, comparison) for name in names):
                return family
    return OTHERS


def declared(run: Run) -> Declaration | None:
    """The families that the run declared before its first phase; None if its ledger holds none."""
    for event in run.events():
        if event["event"] == PLANNED and "families" in event:
            return Declaration(event["time"], event["families"])
    return None


def about(run: Run, config: Config, sizes: Mapping[str, int]) -> dict[str, Any]:
    """What a report says of its families: patterns and number of tests of each, and when the run declared which.

    Args:
        run: Its ledger holds the declaration.
        config: Has the families that the report used.
        sizes: Tests by family.
    """
    found, used = declared(run), config.evaluation.families
    names = dict.fromkeys((*used, *sizes))
    return {
        "used": {name: {"patterns": list(used.get(name, ())), "tests": sizes.get(name, 0)} for name in names},
        "declared": None if found is None else found.time,
        "as_declared": found is not None and _plain(found.families) == _plain(used),
    }


def note(about_families: Mapping[str, Any]) -> str | None:
    """The warning that a report needs whose families were not declared before the run; None if they were."""
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
    """With their order, because the first family that matches takes a test."""
    return [(name, list(patterns)) for name, patterns in families.items()]
