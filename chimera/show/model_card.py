"""The README.md of an exported folder: what was learned, from what, and what it gave by the run's report."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

METRICS: Mapping[str, tuple[str, float, str]] = {
    "alignment": ("answers right", 100, " points"),
    "macro_f1": ("macro-F1", 100, " points"),
    "reward": ("reward", 1, ""),
}
"""The metrics of the card: title, scale and unit of a difference."""
NOT_MEASURED = "not measured"
LICENCE_UNKNOWN = "not known: see the licence of the base model"


@dataclass(frozen=True, slots=True)
class Gain:
    """One comparison of the report: its title in words, and the report's figures by metric."""

    title: str
    figures: Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class CardFacts:
    """What a model card says.

    Attributes:
        version: The policy's version in the run.
        roles: All roles that use the same weights; only the role for a policy.
        base: The model that training began with.
        licence: An identifier of the licence, or None if it is not known.
        learned: The algorithm and what it changed, in words.
        warning: What a reader must know first; empty if there is nothing.
        measured: Which tasks the report's figures are from, in words; None if there is no report.
        alone: True if the report compares the stage right after this policy went live.
        confidence: Coverage of the report's intervals.
        use: How to load the folder, as Markdown.
        made: Version, commit and time of the run, in words.
    """

    name: str
    version: str
    run: str
    role: str
    roles: Sequence[str]
    base: str
    licence: str | None
    learned: str
    data: str
    warning: str
    measured: str | None
    alone: bool
    gains: Sequence[Gain]
    confidence: float
    use: str
    command: str
    made: str


def model_card(facts: CardFacts) -> str:
    """The card as Markdown, with the front matter that the Hugging Face hub reads."""
    parts = [
        _front(facts),
        f"# {facts.name}\n",
        f"**{facts.warning}**\n" if facts.warning else "",
        f"`{facts.version}` of the run `{facts.run}`, exported for the role {facts.role}.\n",
        "| | |\n| --- | --- |",
        f"| plays | {', '.join(facts.roles)} |",
        f"| base model | {facts.base} |",
        f"| learned by | {facts.learned} |",
        f"| data | {facts.data} |",
        f"| licence | {facts.licence or LICENCE_UNKNOWN} |",
        f"| made with | {facts.made} |\n",
        "## Measured gain\n",
        _gain(facts),
        "## Use\n",
        facts.use,
        "## Command\n",
        f"```bash\n{facts.command}\n```\n",
    ]
    return "\n".join(part for part in parts if part)


def _front(facts: CardFacts) -> str:
    lines = ["---", f"license: {facts.licence or 'other'}"]
    lines += [] if facts.licence else ["license_name: see-base-model"]
    lines += ["tags:", "- chimera", "---", ""]
    return "\n".join(lines)


def _gain(facts: CardFacts) -> str:
    if facts.measured is None:
        command = f"`python -m chimera eval --run {facts.run}`"
        return f"{NOT_MEASURED}: the run has no report. {command} makes one; export again after it.\n"
    if not facts.gains:
        return f"{NOT_MEASURED}: the run's report does not compare the stage of this policy with another one.\n"
    rows = [
        f"Paired on {facts.measured}, with {100 * facts.confidence:.4g} % intervals, as in the run's report.\n",
        "| comparison | measure | before | after | difference | n | verdict |",
        "| --- | --- | ---: | ---: | ---: | ---: | --- |",
    ]
    for gain in facts.gains:
        rows += [_row(gain.title, METRICS[name], figure) for name, figure in gain.figures.items()]
    if not facts.alone:
        rows.append("\nThe report has no stage of this policy, so its own gain is not measured.")
    return "\n".join(rows) + "\n"


def _row(title: str, metric: tuple[str, float, str], figure: Mapping[str, Any]) -> str:
    words, scale, unit = metric
    digits = 1 if scale == 100 else 3
    around = "no interval"
    if figure["low"] is not None:
        around = f"[{scale * figure['low']:+z.{digits}f}, {scale * figure['high']:+z.{digits}f}]"
    before, after = (
        f"{scale * figure[side]:z.{digits}f}{' %' if scale == 100 else ''}" for side in ("before", "after")
    )
    change = f"{scale * figure['difference']:+z.{digits}f}{unit} {around}"
    return f"| {title} | {words} | {before} | {after} | {change} | {figure['n']} | {figure['verdict'] or '–'} |"
