"""A person who confirms the principal investigator's decision before it takes effect.

After the principal investigator, the graph stops (LangGraph's `interrupt`) if the decision is one of `society.confirm`.
The person's verdict resumes it, in the same process or, from a saved state, in a later one. An unresolved CRITICAL
review forbids GO to the person too.
"""

from collections.abc import Mapping
from typing import Any, Literal, Self

from langgraph.types import interrupt
from pydantic import BaseModel, ConfigDict, Field, model_validator

from agents.state import ResearchState, Update
from chimera.config.sections.society import SocietyConfig
from chimera.core.errors import ConfigError
from chimera.core.types import LABELS, Decision

PERSON = "Seat"
"""The node's name, as in saved states."""
SKIP = "skip"
"""Said instead of a verdict when there is nothing to confirm, because the decision is withheld from the person."""
SHOWN = ("final_answer", "final_decision", "final_rationale", "final_veto")
"""Fields of the state that the person decides about."""


class PersonVerdict(BaseModel):
    """What a person says to a decision.

    Attributes:
        action: approve it, edit it, or reject it, which leaves the protocol undecided.
        decision: edit: the decision instead.
        answer: edit: the answer instead; None keeps it.
        reason: Why; needed to edit or reject.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    action: Literal["approve", "edit", "reject"]
    decision: Decision | None = None
    answer: str | None = Field(default=None, min_length=1, max_length=160)
    reason: str = Field(default="", max_length=2000)

    @model_validator(mode="after")
    def _is_complete(self) -> Self:
        changed = self.decision is not None or self.answer is not None
        if self.action == "edit" and not changed:
            raise ValueError("an edit names another decision or another answer")
        if self.action != "edit" and changed:
            raise ValueError(f"{self.action} changes nothing: only an edit names a decision or an answer")
        if self.action != "approve" and not self.reason.strip():
            raise ValueError(f"{self.action} needs a reason")
        return self


def refused(verdict: PersonVerdict, state: Mapping[str, Any]) -> str | None:
    """Why `verdict` cannot take effect in `state`; None if it can."""
    if verdict.decision == "GO" and state["final_veto"] is not None:
        return f"GO is not possible while a CRITICAL review or a broken rule stands: {state['final_veto']}"
    options = tuple(state.get("options") or LABELS)
    if verdict.answer is not None and verdict.answer not in options:
        return f"the answer {verdict.answer!r} is none of {', '.join(options)}"
    return None


def person_node(config: SocietyConfig) -> Any:
    """The node that waits for the person; without effect if the decision is not one of `config.confirm`."""

    def node(state: ResearchState) -> Update:
        if state["final_decision"] not in config.confirm:
            return {}
        verdict = interrupt({name: state.get(name) for name in SHOWN})
        return {} if verdict == SKIP else taken(state, PersonVerdict.model_validate(verdict))

    return node


def taken(state: Mapping[str, Any], verdict: PersonVerdict) -> Update:
    """The fields that a verdict changes; raises ValueError if it cannot take effect in this state."""
    if reason := refused(verdict, state):
        raise ValueError(reason)
    before = {name: state.get(name) for name in SHOWN}
    update: Update = {"confirmation": {**verdict.model_dump(), "before": before}}
    if verdict.action == "approve":
        return update
    did = {"edit": "changed", "reject": "rejected"}[verdict.action]
    reason = f"A person {did} the decision: {verdict.reason.rstrip('. ')}. The principal investigator wrote: "
    update["final_rationale"] = reason + state["final_rationale"]
    if verdict.action == "reject":
        return {**update, "final_decision": "UNDECIDED"}
    return {
        **update,
        "final_decision": verdict.decision or state["final_decision"],
        "final_answer": verdict.answer or state["final_answer"],
    }


def check_unattended(config: SocietyConfig) -> None:
    """Raise ConfigError if the society would wait for a person, whom training and evaluation do not have."""
    if config.confirm:
        raise ConfigError(
            f"society.confirm={list(config.confirm)} waits for a person at each such decision: only `python -m chimera "
            "ask` can wait; leave society.confirm out"
        )
