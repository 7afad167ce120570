"""The nodes of the graph: what each role reads from the state and what it writes back, in one table."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from langgraph.runtime import Runtime

from agents.context import Choice, RunContext
from agents.prompting import opening
from agents.react import Turn, Visit
from agents.roles import JUNIORS, ROLES, Role
from agents.routing import revisions_allowed, worst_severity
from agents.schemas import Answer, FinalDecision, SafetyReview, Selection, selection_of
from agents.sources import given_sources, sources_seen
from agents.state import ResearchState, Update
from chimera.errors import ChimeraError, RoleError

Inputs = dict[str, Any]


class Node(Protocol):
    """What LangGraph calls: the state and the run's context in, an update out."""

    async def __call__(self, state: ResearchState, runtime: Runtime[RunContext]) -> Update:
        """Do one visit."""
        ...


@dataclass(frozen=True, slots=True)
class Desk:
    """Where a role works: `reads` gives its prompt's payload, `writes` the state's update from its answer.

    `prepare` gives the desk of one visit where that depends on the state.
    """

    role: Role
    reads: Callable[[ResearchState, RunContext], Inputs]
    writes: Callable[[ResearchState, Any, RunContext], Update]
    prepare: "Callable[[ResearchState, RunContext], Desk] | None" = None


def _sources_if_given(context: RunContext) -> list[dict[str, str]] | None:
    return given_sources(context.brief) if context.config.evidence == "given" else None


def _feedback(state: ResearchState) -> dict[str, Any] | None:
    """The last reviews that found anything; None before the first review."""
    reviews = {name: state[name] for name in ("peer_review", "safety_review") if name in state}
    found = {name: review for name, review in reviews.items() if review["issues"] or worst_severity(review) != "NONE"}
    return found or None


def _junior_reads(state: ResearchState, context: RunContext) -> Inputs:
    return {"sources": _sources_if_given(context)}


def _junior_writes(role: str) -> Callable[[ResearchState, Answer, RunContext], Update]:
    def writes(state: ResearchState, answer: Answer, context: RunContext) -> Update:
        return {"initial_hypotheses": [{"author": role, **answer.model_dump()}]}

    return writes


def _supervisor_desk(state: ResearchState, context: RunContext) -> Desk:
    """The supervisor's desk for one visit: when a policy has chosen, the answer's form allows that choice only."""
    hypotheses, role = state["initial_hypotheses"], ROLES["Supervisor"]
    choice = context.select.propose(hypotheses, context.brief, context.seed)
    if choice is None:
        return Desk(role, _supervisor_reads, _supervisor_writes)
    _check_author(choice, hypotheses)
    return Desk(
        replace(role, schema=selection_of(choice.author)),
        lambda state, context: {**_supervisor_reads(state, context), "chosen": choice.author},
        lambda state, answer, context: _selected(state, choice, None, answer.justification),
    )


def _supervisor_reads(state: ResearchState, context: RunContext) -> Inputs:
    return {"hypotheses": state["initial_hypotheses"]}


def _supervisor_writes(state: ResearchState, answer: Selection, context: RunContext) -> Update:
    """The selector has the last word; where it departs from the supervisor's model, the justification says so."""
    hypotheses = state["initial_hypotheses"]
    choice = context.select.select(hypotheses, context.brief, answer.choice, context.seed)
    _check_author(choice, hypotheses)
    justification = answer.justification
    if choice.author != answer.choice:
        justification = f"Chosen by policy {choice.policy!r}; the supervisor preferred {answer.choice}: {justification}"
    return _selected(state, choice, answer.choice, justification)


def _check_author(choice: Choice, hypotheses: Sequence[Mapping[str, Any]]) -> None:
    authors = [hypothesis["author"] for hypothesis in hypotheses]
    if choice.author not in authors:
        reason = f"the policy {choice.policy!r} chose {choice.author!r}, not one of {', '.join(authors)}"
        raise RoleError("Supervisor", reason)


def _selected(state: ResearchState, choice: Choice, preferred: str | None, justification: str) -> Update:
    propensities = choice.propensities
    return {
        "selected_hypothesis": next(h for h in state["initial_hypotheses"] if h["author"] == choice.author),
        "supervisor_justification": justification,
        "selection": {
            "author": choice.author,
            "preferred": preferred,
            "policy": choice.policy,
            "propensities": None if propensities is None else dict(propensities),
        },
    }


def _refiner_reads(state: ResearchState, context: RunContext) -> Inputs:
    """First the selected hypothesis; on a return the refined one, because the feedback is about that."""
    hypothesis = state.get("refined_hypothesis", state["selected_hypothesis"])
    return {
        "sources": _sources_if_given(context),
        "hypothesis": {key: value for key, value in hypothesis.items() if key != "author"},
        "justification": state["supervisor_justification"],
        "feedback": _feedback(state),
    }


def _refiner_writes(state: ResearchState, answer: Answer, context: RunContext) -> Update:
    update: Update = {"refined_hypothesis": answer.model_dump()}
    return {**update, "critical_revisions": 1} if "refined_hypothesis" in state else update


def _designer_reads(state: ResearchState, context: RunContext) -> Inputs:
    return {"hypothesis": state["refined_hypothesis"], "feedback": _feedback(state)}


def _designer_writes(state: ResearchState, answer: Answer, context: RunContext) -> Update:
    """A visit straight from the safety officer is a MAJOR revision; one after the refiner belongs to a CRITICAL one."""
    update: Update = {"experimental_protocol": answer.model_dump()}
    return {**update, "major_revisions": 1} if state["sender"] == "SafetyOfficer" else update


def _peer_reads(state: ResearchState, context: RunContext) -> Inputs:
    return {
        "sources": sources_seen(state["messages"]),
        "hypothesis": state["refined_hypothesis"],
        "protocol": state["experimental_protocol"],
    }


def _safety_reads(state: ResearchState, context: RunContext) -> Inputs:
    return {
        "protocol": state["experimental_protocol"],
        "hypothesis": state["refined_hypothesis"],
        "peer_review": state["peer_review"],
    }


def _principal_reads(state: ResearchState, context: RunContext) -> Inputs:
    used = state.get("critical_revisions", 0) + state.get("major_revisions", 0)
    return {
        "hypothesis": state["refined_hypothesis"],
        "protocol": state["experimental_protocol"],
        "peer_review": state["peer_review"],
        "safety_review": state["safety_review"],
        "revisions": {"used": used, "allowed": revisions_allowed(context.config)},
    }


def _principal_writes(state: ResearchState, answer: FinalDecision, context: RunContext) -> Update:
    """An unresolved CRITICAL review turns GO into NO-GO, and the rationale says so."""
    decision, rationale = answer.decision, answer.rationale
    if decision == "GO" and worst_severity(state["peer_review"], state["safety_review"]) == "CRITICAL":
        decision = "NO-GO"
        rationale = f"GO was overridden: a CRITICAL review is unresolved. The principal investigator wrote: {rationale}"
    return {
        "final_protocol": {**state["experimental_protocol"], "amendments": list(answer.amendments)},
        "final_decision": decision,
        "final_rationale": rationale,
    }


def _store(field: str) -> Callable[[ResearchState, Answer, RunContext], Update]:
    def writes(state: ResearchState, answer: Answer, context: RunContext) -> Update:
        return {field: answer.model_dump()}

    return writes


DESKS: dict[str, Desk] = {
    desk.role.name: desk
    for desk in (
        *(Desk(ROLES[name], _junior_reads, _junior_writes(name)) for name in JUNIORS),
        Desk(ROLES["Supervisor"], _supervisor_reads, _supervisor_writes, _supervisor_desk),
        Desk(ROLES["HypothesisRefiner"], _refiner_reads, _refiner_writes),
        Desk(ROLES["ProtocolDesigner"], _designer_reads, _designer_writes),
        Desk(ROLES["PeerReviewer"], _peer_reads, _store("peer_review")),
        Desk(ROLES["SafetyOfficer"], _safety_reads, _store("safety_review")),
        Desk(ROLES["PrincipalInvestigator"], _principal_reads, _principal_writes),
    )
}


def _answer(role: Role, turn: Turn) -> Answer:
    """The turn's answer. An unreadable safety review is not an error but a CRITICAL review: it blocks the protocol.

    Raises:
        RoleError: Any other role's answer stayed unreadable.
    """
    if turn.answer is not None:
        return turn.answer
    if role.schema is SafetyReview:
        issue = f"the safety review could not be read: {turn.error}"[:160]
        return SafetyReview(issues=[issue], severity="CRITICAL", verdict="REVISE")
    raise RoleError(role.name, f"its answer could not be read, even after one repair: {turn.error}")


def _visits(messages: Mapping[str, Sequence[Mapping[str, Any]]], role: str) -> int:
    """Earlier visits of `role`: each one opened with a system message."""
    return sum(message["role"] == "system" for message in messages.get(role, ()))


def _attempt(runtime: Runtime[RunContext]) -> int:
    """Which try of this visit LangGraph is making, from 1."""
    return runtime.execution_info.node_attempt if runtime.execution_info else 1


def role_node(desk: Desk) -> Node:
    """The graph node of one role: one visit inside one operation span, returned as one update."""
    role = desk.role

    async def node(state: ResearchState, runtime: Runtime[RunContext]) -> Update:
        context = runtime.context
        number = _visits(state["messages"], role.name) + 1
        attempt = _attempt(runtime)
        attributes = {"role": role.name, "model": role.model, "visit": number, "attempt": attempt}
        with context.operation(role.name, attributes):
            try:
                at = desk if desk.prepare is None else desk.prepare(state, context)
                messages = opening(role, state["research_goal"], **at.reads(state, context))
                turn = await Visit(at.role, context, number, attempt, messages).run()
                update = at.writes(state, _answer(role, turn), context)
            except RoleError:
                raise
            except ChimeraError as error:
                raise RoleError(role.name, str(error)) from error
        return {**update, "messages": {role.name: turn.messages}, "sender": role.name, "turn_count": 1}

    return node


async def evaluation_node(state: ResearchState, runtime: Runtime[RunContext]) -> Update:
    """The last node: hands the finished state to the injected evaluator."""
    context = runtime.context
    attributes = {"role": "Evaluation", "model": "judge", "visit": 1, "attempt": _attempt(runtime)}
    with context.operation("Evaluation", attributes):
        try:
            scores = await context.evaluate(state, context.brief)
        except ChimeraError as error:
            raise RoleError("Evaluation", str(error)) from error
    return {"final_evaluation": dict(scores)}
