"""The society's state: what the nodes of one run read and write.

Nodes return updates and never change the state they were given: LangGraph drops changes in place. Every field has one
writing node; only the fields with a reducer have several, because the three juniors write them in the same step, and
without a reducer LangGraph refuses that (InvalidUpdateError). Values are plain JSON: a state can be logged as it is.
"""

import operator
from collections.abc import Mapping
from typing import Annotated, Any, TypedDict

from agents.prompting import Message
from chimera.config.roles import JUNIORS

Channels = dict[str, list[Message]]
"""The chat messages of each role, by role name; no role sees another's channel."""


def append_messages(channels: Mapping[str, list[Message]], new: Mapping[str, list[Message]]) -> Channels:
    """Reducer of `messages`: new messages go to the end of their own role's channel."""
    return {**channels, **{role: [*channels.get(role, ()), *added] for role, added in new.items()}}


def latest(_old: str, new: str) -> str:
    """Reducer of `sender`: the last writer stays."""
    return new


def by_author(hypotheses: list[dict[str, Any]], new: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Reducer of `initial_hypotheses`: all of them, in the order of `JUNIORS` whichever finished first."""
    return sorted([*hypotheses, *new], key=lambda hypothesis: JUNIORS.index(hypothesis["author"]))


Update = dict[str, Any]
"""What a node returns: the fields of `ResearchState` that it writes."""


class ResearchState(TypedDict):
    """The state of one run; a field is missing until its writer has written it.

    Attributes:
        messages: Chat messages by role, all visits one after another. Writer: every role, its own channel.
        research_goal: The question. Writer: the run's input.
        sender: The role that wrote last. Writer: every role.
        turn_count: Visits of roles so far (revisions count again, the evaluation is no role). Writer: every role.
        initial_hypotheses: {"author", "evidence", "comparison", "claim", "answer"} of each. Writers: the juniors.
        selected_hypothesis: The chosen one of them. Writer: Supervisor.
        supervisor_justification: Why it was chosen. Writer: Supervisor.
        selection: {"author", "preferred", "policy", "propensities", "sources"}: the choice, what the supervisor's model
            preferred (None when a policy chose before it was asked), who decided, the probability that each author had
            when it is known, else None, and the passages that the juniors had seen. Writer: Supervisor.
        refined_hypothesis: A `Hypothesis`. Writer: HypothesisRefiner.
        unreviewed_hypothesis: The refined hypothesis of the first visit, before any review. Writer: HypothesisRefiner.
        experimental_protocol: An `ExperimentProtocol`. Writer: ProtocolDesigner.
        peer_review: A `Review`. Writer: PeerReviewer.
        safety_review: A `Review`. Writer: SafetyOfficer.
        critical_revisions: Returns to the hypothesis refiner so far. Writer: HypothesisRefiner.
        major_revisions: Returns to the protocol designer so far. Writer: ProtocolDesigner.
        final_protocol: The protocol with its "amendments". Writer: PrincipalInvestigator.
        final_answer: yes, no or maybe: what the evidence says. Writer: PrincipalInvestigator.
        final_decision: GO, NO-GO or UNDECIDED: whether the protocol may run. Writer: PrincipalInvestigator.
        final_veto: The CRITICAL reviews that are unresolved and so forbid GO, with the first issue of each; None when
            there is none. Writer: PrincipalInvestigator.
        final_rationale: Why. Writer: PrincipalInvestigator.
        final_evaluation: What the injected evaluator returned. Writer: Evaluation.
    """

    messages: Annotated[Channels, append_messages]
    research_goal: str
    sender: Annotated[str, latest]
    turn_count: Annotated[int, operator.add]
    initial_hypotheses: Annotated[list[dict[str, Any]], by_author]
    selected_hypothesis: dict[str, Any]
    supervisor_justification: str
    selection: dict[str, Any]
    refined_hypothesis: dict[str, Any]
    unreviewed_hypothesis: dict[str, Any]
    experimental_protocol: dict[str, Any]
    peer_review: dict[str, Any]
    safety_review: dict[str, Any]
    critical_revisions: Annotated[int, operator.add]
    major_revisions: Annotated[int, operator.add]
    final_protocol: dict[str, Any]
    final_answer: str
    final_decision: str
    final_veto: str | None
    final_rationale: str
    final_evaluation: dict[str, Any]


def without(state: ResearchState, junior: str) -> ResearchState:
    """`state` as if `junior` had not worked yet; nothing that came after the juniors may be in it."""
    return {
        **state,
        "messages": {role: messages for role, messages in state["messages"].items() if role != junior},
        "initial_hypotheses": [one for one in state["initial_hypotheses"] if one["author"] != junior],
        "turn_count": state["turn_count"] - 1,
    }
