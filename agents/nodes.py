"""The nodes of the graph: what each role reads from the state and what it writes back, in one table."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from langgraph.runtime import Runtime

from agents.context import RunContext
from agents.findings import FINDINGS, Combination, Findings, combined, handed_over, weighed, with_findings
from agents.roles import (
    DESIGNER,
    PEER_REVIEWER,
    PRINCIPAL_INVESTIGATOR,
    REFINER,
    ROLES,
    SAFETY_OFFICER,
    Role,
    advisers_of,
    form_of,
)
from agents.routing import effective_severity, revisions_allowed, worst_severity
from agents.schemas import Answer, FinalDecision
from agents.state import ResearchState, Update, check_fields
from agents.supervisor import supervisor_node
from agents.visit.rules import broken
from agents.visit.sources import SourceText, given_sources, sources_seen, sources_within
from agents.visit.visits import Inputs, attempt_of, errors_of, visit, visits, visits_by_study
from chimera.config.roles import JUDGE, JUNIORS
from chimera.core.errors import ChimeraError, RoleError


class Node(Protocol):
    """The function that LangGraph calls with the state and the run's context; it returns an update of the state."""

    async def __call__(self, state: ResearchState, runtime: Runtime[RunContext]) -> Update: ...


@dataclass(frozen=True, slots=True)
class Desk:
    """Connects a role to the state: `reads` makes its prompt's payload, `writes` turns its answer into an update."""

    role: Role
    reads: Callable[[ResearchState, RunContext], Inputs]
    writes: Callable[[ResearchState, Any, RunContext], Update]


def _sources_if_given(context: RunContext) -> list[dict[str, str]] | None:
    return given_sources(context.brief) if context.config.evidence == "given" else None


def _feedback(state: ResearchState) -> dict[str, Any] | None:
    """The latest reviews, if they found anything; None if there are none."""
    reviews = {name: state[name] for name in ("peer_review", "safety_review") if name in state}
    feedback = {
        name: review for name, review in reviews.items() if review["issues"] or worst_severity(review) != "NONE"
    }
    return feedback or None


def _junior_reads(role: str) -> Callable[[ResearchState, RunContext], Inputs]:
    def reads(state: ResearchState, context: RunContext) -> Inputs:
        """In a debate the others' hypotheses, and what a junior wrote itself, with its evidence."""
        if form := form_of(context.config.graph, role):
            sent = state.get("searches", [{}])[-1]
            return {"form": form, "sources": _sources_if_given(context), "search": sent.get(role)}
        proposed = [dict(hypothesis) for hypothesis in state.get("initial_hypotheses", ()) if state.get("debates")]
        earlier = [{**hypothesis, "author": "you"} for hypothesis in proposed if hypothesis["author"] == role]
        others = [hypothesis for hypothesis in proposed if hypothesis["author"] != role]
        return {"sources": _sources_if_given(context), "hypotheses": earlier + others or None}

    return reads


def _junior_writes(role: str) -> Callable[[ResearchState, Answer, RunContext], Update]:
    def writes(state: ResearchState, answer: Answer, context: RunContext) -> Update:
        if not isinstance(answer, Findings):
            return {"initial_hypotheses": [{"author": role, **answer.model_dump()}]}
        earlier = [hypothesis for hypothesis in state.get("initial_hypotheses", ()) if hypothesis["author"] == role]
        return {"initial_hypotheses": [{"author": role, **with_findings(earlier, answer.model_dump())}]}

    return writes


def _refiner_reads(state: ResearchState, context: RunContext) -> Inputs:
    """The first visit reads the selected hypothesis. Revisions read the refined one, which the feedback is about."""
    hypothesis = state.get("refined_hypothesis", state["selected_hypothesis"])
    if form := form_of(context.config.graph, REFINER):
        findings = handed_over(weighed(state["initial_hypotheses"]))
        return {"form": form, "findings": findings, "feedback": _feedback(state)}
    return {
        "sources": _refiner_sources(state, context, hypothesis["evidence"]),
        "hypothesis": {key: value for key, value in hypothesis.items() if key != "author"},
        "justification": state["supervisor_justification"],
        "feedback": _feedback(state),
    }


def _refiner_sources(state: ResearchState, context: RunContext, quotes: Sequence[str]) -> list[SourceText] | None:
    """The passages that the refiner checks the hypothesis against; None if it has to trust the hypothesis."""
    if context.config.evidence == "given" or not (limit := context.config.refiner_max_chars):
        return _sources_if_given(context)
    return sources_within(state["selection"]["sources"], quotes, limit) or None


def _refiner_writes(state: ResearchState, answer: Answer, context: RunContext) -> Update:
    hypothesis = answer.model_dump()
    if isinstance(answer, Combination):
        hypothesis = combined(hypothesis, weighed(state["initial_hypotheses"]))
    update: Update = {"refined_hypothesis": hypothesis}
    if "refined_hypothesis" in state:
        return {**update, "critical_revisions": 1}
    return {**update, "unreviewed_hypothesis": hypothesis}


def _designer_reads(state: ResearchState, context: RunContext) -> Inputs:
    return {"hypothesis": state["refined_hypothesis"], "feedback": _feedback(state)}


def _designer_writes(state: ResearchState, answer: Answer, context: RunContext) -> Update:
    """A visit after the first is a MAJOR revision, unless the refiner's CRITICAL one led to it."""
    update: Update = {"experimental_protocol": answer.model_dump()}
    counted = state.get("critical_revisions", 0) + state.get("major_revisions", 0)
    return {**update, "major_revisions": 1} if visits(state["messages"], DESIGNER) > counted else update


def _peer_reads(state: ResearchState, context: RunContext) -> Inputs:
    combines = form_of(context.config.graph, REFINER)
    return {
        "sources": sources_seen(state["messages"]),
        "hypothesis": state["refined_hypothesis"],
        "protocol": state["experimental_protocol"],
        "findings": handed_over(weighed(state["initial_hypotheses"])) if combines else None,
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
        "protocol": state.get("experimental_protocol"),
        "peer_review": state.get("peer_review"),
        "safety_review": state.get("safety_review"),
        "revisions": {"used": used, "allowed": revisions_allowed(context.config)},
    }


def _principal_writes(state: ResearchState, answer: FinalDecision, context: RunContext) -> Update:
    """An unresolved CRITICAL review and a broken hard rule turn GO into NO-GO, and the rationale says so. The answer
    stays as it is."""
    decision, rationale = answer.decision, answer.rationale
    protocol = {**state.get("experimental_protocol", {}), "amendments": list(answer.amendments)}
    review, rule = veto_of(state), broken(context.config.hard_rules(), protocol)
    veto = "; ".join(filter(None, (review, rule and f"hard rule: {rule}"))) or None
    if decision == "GO" and veto is not None:
        decision = "NO-GO"
        reason = f"the protocol breaks the hard rule {rule}" if rule else "a CRITICAL review is unresolved"
        rationale = f"GO was overridden: {reason}. The principal investigator wrote: {rationale}"
    return {
        "final_protocol": protocol,
        "final_answer": answer.answer,
        "final_decision": decision,
        "final_veto": veto,
        "final_rationale": rationale,
    }


def veto_of(reviews: Mapping[str, Any]) -> str | None:
    """The CRITICAL reviews in a state or in a rollout's outputs, each with its first issue; None if there are none."""
    names = {"peer_review": "peer review", "safety_review": "safety review"}
    given_reviews = {name: reviews[key] for key, name in names.items() if key in reviews}
    critical = {name: review for name, review in given_reviews.items() if effective_severity(review) == "CRITICAL"}
    vetoes = [f"{name}: {next(iter(review['issues']), 'no issue named')}" for name, review in critical.items()]
    return "; ".join(vetoes) or None


def _store(field: str) -> Callable[[ResearchState, Answer, RunContext], Update]:
    def writes(state: ResearchState, answer: Answer, context: RunContext) -> Update:
        return {field: answer.model_dump()}

    return writes


def _advises(role: str) -> Callable[[ResearchState, Answer, RunContext], Update]:
    def writes(state: ResearchState, answer: Answer, context: RunContext) -> Update:
        return {"advice": {**state.get("advice", {}), role: answer.model_dump()}}

    return writes


def _adviser_reads(advised: str) -> Callable[[ResearchState, RunContext], Inputs]:
    return lambda state, context: {**_OF_THE_NINE[advised].reads(state, context), "form": None}


_OF_THE_NINE: dict[str, Desk] = {
    desk.role.name: desk
    for desk in (
        *(Desk(ROLES[name], _junior_reads(name), _junior_writes(name)) for name in JUNIORS),
        Desk(ROLES[REFINER], _refiner_reads, _refiner_writes),
        Desk(ROLES[DESIGNER], _designer_reads, _designer_writes),
        Desk(ROLES[PEER_REVIEWER], _peer_reads, _store("peer_review")),
        Desk(ROLES[SAFETY_OFFICER], _safety_reads, _store("safety_review")),
        Desk(ROLES[PRINCIPAL_INVESTIGATOR], _principal_reads, _principal_writes),
    )
}
DESKS: dict[str, Desk] = {
    **_OF_THE_NINE,
    **{
        role.name: Desk(role, _adviser_reads(role.advises), _advises(role.name))
        for role in ROLES.values()
        if role.advises is not None
    },
}


def role_node(desk: Desk) -> Node:
    """The graph node of one role: one visit, or one for each study that it finds, returned as one update."""
    role = desk.role

    async def node(state: ResearchState, runtime: Runtime[RunContext]) -> Update:
        context = runtime.context
        number = visits(state["messages"], role.name) + 1
        with errors_of(role.name):
            inputs = desk.reads(state, context)
            if advisers := advisers_of(role.name):
                inputs = {**inputs, "advice": {name: state["advice"][name] for name in advisers}}
            working = visits_by_study if inputs.get("form") == FINDINGS else visit
            answer, messages = await working(role, inputs, state, context, number=number, attempt=attempt_of(runtime))
            update = desk.writes(state, answer, context)
            check_fields(role.name, update)
        return {**update, "messages": {role.name: messages}, "sender": role.name, "turn_count": 1}

    return node


async def adopt_node(state: ResearchState, runtime: Runtime[RunContext]) -> Update:
    """In place of the refiner: the selected hypothesis goes on as it is. A return to it counts as one."""
    if "refined_hypothesis" in state:
        return {"critical_revisions": 1}
    hypothesis = {name: value for name, value in state["selected_hypothesis"].items() if name != "author"}
    return {"refined_hypothesis": hypothesis, "unreviewed_hypothesis": hypothesis}


async def debate_node(state: ResearchState, runtime: Runtime[RunContext]) -> Update:
    """Between two rounds of a debate."""
    return {"debates": state.get("debates", 0) + 1}


NODES: dict[str, Node] = {name: role_node(DESKS[name]) if name in DESKS else supervisor_node for name in ROLES}
"""The graph node of every role. The supervisor has a node function of its own, because a policy may choose for it."""


async def evaluation_node(state: ResearchState, runtime: Runtime[RunContext]) -> Update:
    """The last node: hands the finished state to the injected evaluator."""
    context = runtime.context
    if "experimental_protocol" not in state:
        return {"final_evaluation": {"scores": {}, "error": "no protocol is designed (society.graph.design)"}}
    attributes = {"role": "Evaluation", "model": context.slots[JUDGE], "visit": 1, "attempt": attempt_of(runtime)}
    with context.operation("Evaluation", attributes):
        try:
            scores = await context.evaluate(state, context.brief)
        except ChimeraError as error:
            raise RoleError("Evaluation", str(error)) from error
    return {"final_evaluation": dict(scores)}
