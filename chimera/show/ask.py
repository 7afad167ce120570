"""Shows the society's work: each node's step as cards."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from chimera.core.quotes import occurs
from chimera.core.types import SOURCE_NAMES, Decision, Option, ResearchTask
from chimera.run.policies import BY_MODEL
from chimera.show.card import Card

# All colours of cards are readable on a white and on a black background.
DECISION_COLOURS: Mapping[str, str] = {"GO": "green", "NO-GO": "red3", "UNDECIDED": "yellow"}
SEVERITY_COLOURS: Mapping[str, str] = {"NONE": "green", "MINOR": "green", "MAJOR": "yellow", "CRITICAL": "red3"}

Texts = Sequence[tuple[str, str]]
"""Passages as (origin, text)."""


def cards(update: Mapping[str, Any], texts: Texts) -> Iterator[Card]:
    """The cards of one node's update. Quotes are looked up in `texts`, the passages seen so far."""
    for hypothesis in update.get("initial_hypotheses", ()):
        yield Card(f"{hypothesis['author']}: {hypothesis['answer']}", hypothesis_lines(hypothesis, texts))
    for choice in update.get("choices", ())[-1:]:
        who = chooser(choice)
        yield Card(f"{who[:1].upper()}{who[1:]} chooses: {choice['author']}", _fields(choice["cues"]), "dark_orange3")
    if "selection" in update:
        selection, who = update["selection"], chooser(update["selection"])
        headline = f"{who[:1].upper()}{who[1:]} selects the hypothesis of the {selection['author']}"
        why = choice_reason(selection, update["supervisor_justification"])
        yield Card(f"{headline}: {update['selected_hypothesis']['answer']}", (("why", why),), "dark_orange3")
    if "refined_hypothesis" in update:
        refined = update["refined_hypothesis"]
        again = " (revised after a CRITICAL review)" if update.get("critical_revisions") else ""
        yield Card(
            f"Refined hypothesis: {refined['answer']}{again}", hypothesis_lines(refined, texts), "medium_orchid3"
        )
    if "advice" in update:
        adviser = update["sender"]
        yield Card(f"{adviser} advises", _fields(update["advice"][adviser]), "medium_orchid3")
    if "experimental_protocol" in update:
        again = " (revised after a MAJOR review)" if update.get("major_revisions") else ""
        yield Card(f"Protocol{again}", _fields(update["experimental_protocol"]), "medium_orchid3")
    for field, name in (("peer_review", "Peer review"), ("safety_review", "Safety review")):
        if field in update:
            review = update[field]
            issues = tuple(("issue", issue) for issue in review["issues"]) or (("issues", "none"),)
            colour = SEVERITY_COLOURS[review["severity"]]
            yield Card(f"{name}: {review['verdict']}, severity {review['severity']}", issues, colour)
    if "confirmation" in update:
        yield _confirmation(update["confirmation"])
    if "final_decision" in update:
        yield _decision(update)
    if "final_evaluation" in update:
        yield Card("Judge", _scores(update["final_evaluation"]), "bright_black")


def chooser(selection: Mapping[str, Any]) -> str:
    """Who chose in a recorded selection, or in a choice whether juniors search once more (which has cues)."""
    policy = str(selection["policy"])
    if policy == BY_MODEL:
        usual = "the rule" if "cues" in selection else "the supervisor's model"
        return usual if chosen_by_model(selection) else "a random draw (exploration)"
    return f"the bandit ({policy})" if "@" in policy else f"the policy {policy!r}"


def chosen_by_model(selection: Mapping[str, Any]) -> bool:
    """True if the supervisor's model preferred what was chosen; its justification is then the reason of the choice."""
    return selection["preferred"] == selection["author"]


def choice_reason(selection: Mapping[str, Any], justification: str) -> str:
    """The reason of a choice. The model's sentence on a choice that it was given is no reason."""
    if chosen_by_model(selection):
        return justification
    share = (selection["propensities"] or {}).get(selection["author"])
    drawn = "" if share is None else f"with a probability of {share:.0%}, "
    if selection["preferred"] is None:
        return f"chosen {drawn}before the supervisor's model was asked"
    return f"chosen {drawn}though the supervisor's model preferred the {selection['preferred']}"


def task_card(task: ResearchTask) -> Card:
    """The card of a task: its question, its abstract, and its answer key, which no role ever sees."""
    level = () if task.level is None else (("level", str(task.level)),)
    sections = tuple((section.label.lower(), section.text) for section in task.context)
    about = (("data", SOURCE_NAMES[task.source]), *level, *sections, *option_lines(task.options))
    return Card(task.goal, (*about, ("answer key", task.label)), "cyan")


def option_lines(options: Iterable[Option]) -> tuple[tuple[str, str], ...]:
    """One line for each answer that a task offers."""
    return tuple((f"option {option.name}", option.text) for option in options)


def hypothesis_lines(hypothesis: Mapping[str, Any], texts: Texts) -> tuple[tuple[str, str], ...]:
    """A hypothesis' lines; each quote with the id of the passage that holds it, or a note that none does."""
    quotes = tuple(("evidence", f"“{quote}” {_origin(quote, texts)}") for quote in hypothesis["evidence"])
    return (*quotes, ("comparison", hypothesis["comparison"]), ("claim", hypothesis["claim"]))


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


def _confirmation(confirmation: Mapping[str, Any]) -> Card:
    did = {"approve": "approved", "edit": "changed", "reject": "rejected"}[confirmation["action"]]
    why = (("why", confirmation["reason"]),) if confirmation["reason"] else ()
    before = f"answer {confirmation['before']['final_answer']}, protocol {confirmation['before']['final_decision']}"
    return Card(f"A person {did} the decision", (("it was", before), *why), "yellow")


def _withheld(society: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """Lines for a withheld decision: why it does not count, and what it was."""
    return (
        ("answer", "none"),
        ("why", society["why"]),
        ("set aside", f"the society's own answer {society['answer']} and its decision {society['decision']}"),
    )


def _scores(evaluation: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    scores = ((name, "not scored" if score is None else f"{score:.2f}") for name, score in evaluation["scores"].items())
    error = evaluation.get("error")
    return (*scores, ("error", error)) if error else tuple(scores)


def _fields(answer: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    return tuple((name.replace("_", " "), str(value)) for name, value in answer.items())


def _origin(quote: str, texts: Texts) -> str:
    ids = dict.fromkeys(id for id, text in texts if occurs(quote, [text]))
    return f"[{', '.join(ids)}]" if ids else "[in no source]"
