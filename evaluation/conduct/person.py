"""Puts a decision to the person at the terminal."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from chimera.core.types import DECISIONS
from chimera.show.card import Card, show

if TYPE_CHECKING:
    from rich.console import Console

    from agents.person import PersonVerdict


def ask_person(console: "Console", state: Mapping[str, Any]) -> "PersonVerdict":
    """The person's verdict. Questions that have no usable answer are asked again.

    Args:
        state: The society's state, with the decision that waits.
    """
    from pydantic import ValidationError
    from rich.prompt import Prompt

    from agents.person import PersonVerdict, refused

    lines = (("answer", str(state["final_answer"])), ("protocol", state["final_decision"]))
    show(console, Card("Does this decision take effect?", (*lines, ("why", state["final_rationale"])), "yellow"))
    while True:
        action = Prompt.ask("your verdict", choices=["approve", "edit", "reject"], console=console)
        fields: dict[str, Any] = {"action": action}
        if action == "edit":
            current = state["final_decision"]
            decision = Prompt.ask("decision", choices=list(DECISIONS), default=current, console=console)
            answer = Prompt.ask("answer", default=state["final_answer"], console=console)
            fields |= {"decision": decision if decision != current else None}
            fields |= {"answer": answer if answer != state["final_answer"] else None}
        if action != "approve":
            fields["reason"] = Prompt.ask("why", console=console)
        try:
            verdict = PersonVerdict(**fields)
        except ValidationError as error:
            console.print(error.errors()[0]["msg"].removeprefix("Value error, "))
            continue
        if reason := refused(verdict, state):
            console.print(reason)
            continue
        return verdict
