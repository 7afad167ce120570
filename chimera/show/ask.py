"""What a person sees of the society: each step as one card, in colour on a terminal, plain text or HTML elsewhere."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from chimera.core.quotes import occurs
from chimera.core.types import SOURCE_NAMES, Decision, ResearchTask
from chimera.run.policies import BY_MODEL
from chimera.show.card import card_html

if TYPE_CHECKING:
    from rich.console import Console

DECISION_COLOURS: Mapping[str, str] = {"GO": "green", "NO-GO": "red", "UNDECIDED": "yellow"}
SEVERITY_COLOURS: Mapping[str, str] = {"NONE": "green", "MINOR": "green", "MAJOR": "yellow", "CRITICAL": "red"}

BORDER = 6
"""Columns of a panel's first line that its title cannot use."""

Texts = Sequence[tuple[str, str]]
"""Passages as (where it is from, text)."""


class Source(Protocol):
    """A source that was read (see `evaluation.conduct.grounds.Read`)."""

    @property
    def where(self) -> str:
        """Where it is from, in words."""
        ...

    @property
    def title(self) -> str:
        """Title; may be empty."""
        ...

    @property
    def url(self) -> str | None:
        """Address, if there is one."""
        ...


@dataclass(frozen=True, slots=True)
class Card:
    """One step: a headline and labelled lines."""

    headline: str
    lines: tuple[tuple[str, str], ...]
    colour: str = "blue"

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        return card_html(self)


def cards(update: Mapping[str, Any], texts: Texts) -> Iterator[Card]:
    """What there is to see in one node's update; quotes are looked up in `texts`, the passages seen so far."""
    for hypothesis in update.get("initial_hypotheses", ()):
        yield Card(f"{hypothesis['author']}: {hypothesis['answer']}", hypothesis_lines(hypothesis, texts))
    if "selection" in update:
        selection = update["selection"]
        by = "" if selection["policy"] == BY_MODEL else f" by {selection['policy']}"
        chosen = f"Supervisor selects the hypothesis of the {selection['author']}{by}"
        yield Card(chosen, (("why", update["supervisor_justification"]),), "dark_orange3")
    if "refined_hypothesis" in update:
        refined = update["refined_hypothesis"]
        again = " (revised after a CRITICAL review)" if update.get("critical_revisions") else ""
        yield Card(f"Refined hypothesis: {refined['answer']}{again}", hypothesis_lines(refined, texts), "magenta")
    if "experimental_protocol" in update:
        again = " (revised after a MAJOR review)" if update.get("major_revisions") else ""
        yield Card(f"Protocol{again}", _fields(update["experimental_protocol"]), "magenta")
    for field, name in (("peer_review", "Peer review"), ("safety_review", "Safety review")):
        if field in update:
            review = update[field]
            issues = tuple(("issue", issue) for issue in review["issues"]) or (("issues", "none"),)
            colour = SEVERITY_COLOURS[review["severity"]]
            yield Card(f"{name}: {review['verdict']}, severity {review['severity']}", issues, colour)
    if "final_decision" in update:
        yield _decision(update)
    if "final_evaluation" in update:
        yield Card("Judge", _scores(update["final_evaluation"]), "white")


def task_card(task: ResearchTask) -> Card:
    """A task for a reader: its question, its abstract, and its answer key, which no role ever sees."""
    level = () if task.level is None else (("level", str(task.level)),)
    sections = tuple((section.label.lower(), section.text) for section in task.context)
    return Card(task.goal, (("data", SOURCE_NAMES[task.source]), *level, *sections, ("answer key", task.label)), "cyan")


def hypothesis_lines(hypothesis: Mapping[str, Any], texts: Texts) -> tuple[tuple[str, str], ...]:
    """A hypothesis' lines; each quote with the id of the passage it stands in, or that it stands in none."""
    quotes = tuple(("evidence", f"“{quote}” {_origin(quote, texts)}") for quote in hypothesis["evidence"])
    return (*quotes, ("comparison", hypothesis["comparison"]), ("claim", hypothesis["claim"]))


def source_lines(sources: Sequence[Source]) -> tuple[tuple[str, str], ...]:
    """One line for each source that was read: where it is from, then its title and address."""
    found: dict[str, str] = {}
    for one in sources:
        found.setdefault(one.where, " · ".join(filter(None, (one.title, one.url))))
    return tuple(found.items()) or (("none", "the society found no passage"),)


def show(console: "Console", card: Card) -> None:
    """Print a card: a panel on a terminal, indented plain lines elsewhere."""
    lines = [(printable(label), printable(text)) for label, text in card.lines]
    headline = printable(card.headline)
    if not console.is_terminal:
        width = max((len(label) for label, _ in lines), default=0)
        print(headline, *(f"  {label:<{width}}  {text}" for label, text in lines), "", sep="\n", file=console.file)
        console.file.flush()
        return
    from rich.console import Group
    from rich.panel import Panel
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column()
    for label, text in lines:
        table.add_row(Text(label), Text(text))
    title = Text(headline, style=f"bold {card.colour}")
    if len(headline) > console.width - BORDER:  # A panel would cut its title.
        console.print(Panel(Group(title, table), border_style=card.colour, padding=(0, 1)))
    else:
        console.print(Panel(table, title=title, title_align="left", border_style=card.colour, padding=(0, 1)))


def printable(text: str) -> str:
    """`text` without characters that a terminal would obey: models and web pages wrote it."""
    return "".join(letter if letter.isprintable() else " " for letter in text)


def _decision(update: Mapping[str, Any]) -> Card:
    decision: Decision = update["final_decision"]
    if withheld := update.get("final_withheld"):
        return Card(f"UNDECIDED: {update['final_rationale']}", _withheld(withheld), DECISION_COLOURS["UNDECIDED"])
    grounds = tuple(("rests on", f"“{quote}” [{where}]") for quote, where in update.get("final_grounds", ()))
    amendments = tuple(("amendment", text) for text in update["final_protocol"]["amendments"])
    caution = (("caution", text),) if (text := update.get("final_caution")) else ()
    veto = (("veto", update["final_veto"]),) if update["final_veto"] else ()
    lines = (*grounds, *caution, ("protocol", decision), *veto, ("rationale", update["final_rationale"]), *amendments)
    return Card(f"Answer: {update['final_answer']}; protocol: {decision}", lines, DECISION_COLOURS[decision])


def _withheld(society: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """Why a decision does not count, and what it was."""
    return (
        ("answer", "none"),
        ("why", society["why"]),
        ("set aside", f"the society's own answer {society['answer']} and its decision {society['decision']}"),
    )


def _scores(evaluation: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    scores = ((name, "not scored" if score is None else f"{score:.2f}") for name, score in evaluation["scores"].items())
    error = evaluation.get("error")
    return (*scores, ("error", error)) if error else tuple(scores)


def _fields(protocol: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    return tuple((name.replace("_", " "), str(value)) for name, value in protocol.items())


def _origin(quote: str, texts: Texts) -> str:
    ids = dict.fromkeys(id for id, text in texts if occurs(quote, [text]))
    return f"[{', '.join(ids)}]" if ids else "[in no source]"
