"""The society's state: what the nodes of one run read and write.

Nodes return updates and never change the state they were given: LangGraph drops changes in place. Every field has one
writing node, except `advice`, whose writers work one after another, the decision, which a person may change, and the
fields with a reducer: the three juniors write these in the same step, which LangGraph refuses without a reducer
(InvalidUpdateError). Values are plain JSON, so a state can be logged unchanged.
"""

import operator
from collections.abc import Mapping
from typing import Annotated, Any

from typing_extensions import TypedDict  # pydantic, which LangGraph's servers ask for the schema, needs it below 3.12.

from agents.visit.prompting import Message
from chimera.config.roles import JUNIORS
from chimera.core.errors import RoleError
from chimera.core.types import ShownOptions

Channels = dict[str, list[Message]]
"""The chat messages of each role, by role name. No role sees another role's channel."""


def append_messages(channels: Mapping[str, list[Message]], new: Mapping[str, list[Message]]) -> Channels:
    """Reducer of `messages`: new messages go to the end of their own role's channel."""
    return {**channels, **{role: [*channels.get(role, ()), *added] for role, added in new.items()}}


def latest(_old: str, new: str) -> str:
    """Reducer of `sender`: the last value counts."""
    return new


def by_author(hypotheses: list[dict[str, Any]], new: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Reducer of `initial_hypotheses`: the latest of each junior, in the order of `JUNIORS`."""
    latest_by_author = {hypothesis["author"]: hypothesis for hypothesis in (*hypotheses, *new)}
    return sorted(latest_by_author.values(), key=lambda hypothesis: JUNIORS.index(hypothesis["author"]))


Update = dict[str, Any]
"""What a node returns: the fields of `ResearchState` that it writes."""


class Question(TypedDict):
    """What a server gives the graph (`agents.society.Society.standing`)."""

    research_goal: str


class ResearchState(TypedDict):
    """The state of one run; a field is missing until its writer has written it.

    Attributes:
        messages: Chat messages by role, all visits in sequence. Writer: every role, to its own channel.
        research_goal: The question. Writer: the run's input.
        options: The answers to choose from; missing if they are yes, no and maybe. Writer: the run's input.
        sender: The role that wrote last. Writer: every role.
        turn_count: Visits of roles so far; revisions count, the evaluation does not. Writer: every role.
        initial_hypotheses: Each {"author", "evidence", "comparison", "claim", "answer"}; where findings are combined,
            with the "findings" that it follows from and the next name to "search". Writers: the juniors.
        selected_hypothesis: The selected one of the initial hypotheses. Writer: Supervisor.
        supervisor_justification: Why it was selected. Writer: Supervisor.
        selection: {"author", "preferred", "policy", "propensities", "sources"}: the selected author; the author that
            the supervisor's model preferred (None if it was not asked); the version of the policy that chose; the
            probability of each author (None if not known); the passages that the juniors saw. Writer: Supervisor.
        searches: Of each round of searches after the first, the name that each junior was sent to search for; the last
            is empty. Writer: Supervisor, where findings are combined.
        choices: Of each time that juniors could search once more, who chose whether they do, as in `selection`, and
            the "cues" that it rested on (`agents.findings.search_cues`). Writer: Supervisor, where findings are
            combined.
        refined_hypothesis: A `Hypothesis`. Writer: HypothesisRefiner.
        unreviewed_hypothesis: The refined hypothesis of the first visit, before any review. Writer: HypothesisRefiner.
        advice: Answers of the roles that advise others, by the adviser's name; missing without such roles. Writers: the
            advisers.
        experimental_protocol: An `ExperimentProtocol`. Writer: ProtocolDesigner.
        peer_review: A `Review`. Writer: PeerReviewer.
        safety_review: A `Review`. Writer: SafetyOfficer.
        critical_revisions: Revisions by the hypothesis refiner so far. Writer: HypothesisRefiner.
        major_revisions: Revisions by the protocol designer so far (MAJOR only). Writer: ProtocolDesigner.
        debates: Rounds of debate so far. Writer: the node between two rounds.
        final_protocol: The protocol with its "amendments"; these alone if none was designed. Writer:
            PrincipalInvestigator.
        final_answer: yes, no or maybe, or one of the options: what the evidence says. Writer: PrincipalInvestigator.
        final_decision: GO, NO-GO or UNDECIDED: whether the protocol may run. Writer: PrincipalInvestigator.
        final_veto: The unresolved CRITICAL reviews, which forbid GO, each with its first issue; None if there are none.
            Writer: PrincipalInvestigator.
        final_rationale: Reasons for the decision. Writer: PrincipalInvestigator.
        confirmation: A person's verdict on the decision (`agents.person.PersonVerdict`) with the fields as they were
            "before". Writer: the person's node, which may also change final_answer, final_decision and final_rationale.
        final_evaluation: What the injected evaluator returned. Writer: Evaluation.
    """

    messages: Annotated[Channels, append_messages]
    research_goal: str
    options: ShownOptions
    sender: Annotated[str, latest]
    turn_count: Annotated[int, operator.add]
    initial_hypotheses: Annotated[list[dict[str, Any]], by_author]
    selected_hypothesis: dict[str, Any]
    supervisor_justification: str
    selection: dict[str, Any]
    searches: list[dict[str, str]]
    choices: list[dict[str, Any]]
    refined_hypothesis: dict[str, Any]
    unreviewed_hypothesis: dict[str, Any]
    advice: dict[str, Any]
    experimental_protocol: dict[str, Any]
    peer_review: dict[str, Any]
    safety_review: dict[str, Any]
    debates: int
    critical_revisions: Annotated[int, operator.add]
    major_revisions: Annotated[int, operator.add]
    final_protocol: dict[str, Any]
    final_answer: str
    final_decision: str
    final_veto: str | None
    final_rationale: str
    confirmation: dict[str, Any]
    final_evaluation: dict[str, Any]


def check_fields(role: str, update: Mapping[str, Any]) -> None:
    """Make sure that the state has every field that a role writes; LangGraph would drop others without a word.

    Raises:
        RoleError: A field is unknown.
    """
    if unknown := sorted(set(update) - set(ResearchState.__annotations__)):
        raise RoleError(
            role,
            f"it writes {', '.join(unknown)}, which the society's state does not have, so it would be lost: add the "
            "field to ResearchState in agents/state.py",
        )


def without(state: ResearchState, junior: str) -> ResearchState:
    """`state` without the work of `junior`; it must hold the work of juniors only."""
    return {
        **state,
        "messages": {role: messages for role, messages in state["messages"].items() if role != junior},
        "initial_hypotheses": [
            hypothesis for hypothesis in state["initial_hypotheses"] if hypothesis["author"] != junior
        ],
        "turn_count": state["turn_count"] - 1,
    }
