"""The society as a LangGraph graph: the order of the roles, their time limits and their retries.

The compiled graph holds no data of a run: brief, models and tools are passed as LangGraph's run context. So a process
compiles one graph for a configuration and uses it for every run.
"""

from collections.abc import Callable
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from langgraph.graph import END, START, StateGraph
from langgraph.graph.state import CompiledStateGraph
from langgraph.runtime import Runtime
from langgraph.types import RetryPolicy

from agents.context import RunContext
from agents.nodes import NODES, Node, adopt_node, debate_node, evaluation_node
from agents.person import PERSON, person_node
from agents.roles import (
    DESIGNER,
    PEER_REVIEWER,
    PRINCIPAL_INVESTIGATOR,
    REFINER,
    ROLES,
    SAFETY_OFFICER,
    SUPERVISOR,
    advisers_of,
)
from agents.routing import DESTINATIONS, Route, revisions_allowed, route, worst_severity
from agents.state import Question, ResearchState, Update
from agents.supervisor import combine_node, vote_node
from chimera.config.roles import JUNIORS
from chimera.config.sections.graph import GraphConfig
from chimera.config.sections.society import SocietyConfig
from chimera.core.errors import ModelError, RoleError
from chimera.core.rate_limits import TimeLimit

if TYPE_CHECKING:
    from langgraph.checkpoint.base import BaseCheckpointSaver

EVALUATION, DEBATE = "Evaluation", "Debate"
_FIRST_PASS = 8
_REVISION = 4

Graph = CompiledStateGraph[ResearchState, RunContext, ResearchState, ResearchState]


def step_limit(config: SocietyConfig) -> int:
    """The most steps a run can take, for LangGraph's recursion limit (whose default of 10,007 bounds nothing).

    The first pass takes eight: juniors, supervisor, refiner, designer, two reviewers, principal investigator and
    evaluation; one more for the person, if there is one, and two for each round of a debate and one for its end. Each
    revision adds at most four: refiner, designer, two reviewers. A role that advises adds one to each. LangGraph needs
    one more, because it checks the limit before it notices that no node is left.
    """
    advisers = sum(role.advises is not None for role in ROLES.values())
    revisions = (_REVISION + advisers) * revisions_allowed(config)
    return (
        _FIRST_PASS
        + advisers
        + bool(config.confirm)
        + 2 * config.graph.debate
        + bool(config.graph.debate)
        + (2 * (config.graph.searches - 1) if config.graph.choose == "combine" else 0)
        + revisions
        + 1
    )


IN_ORDER = (REFINER, DESIGNER, PEER_REVIEWER, SAFETY_OFFICER)
"""Who may work between the choice and the decision."""


def working(shape: GraphConfig) -> dict[str, Node]:
    """The nodes of a graph by name. What stands in the place of a role has the role's name."""
    left_out = {role for role in ROLES if not shape.plays(role)} - {SUPERVISOR, REFINER}
    nodes = {name: node for name, node in NODES.items() if not {name, ROLES[name].advises} & left_out}
    nodes |= {"vote": {SUPERVISOR: vote_node}, "combine": {SUPERVISOR: combine_node}}.get(shape.choose, {})
    nodes |= {} if shape.refine else {REFINER: adopt_node}
    nodes |= {DEBATE: debate_node} if shape.debate else {}
    return {**nodes, EVALUATION: evaluation_node}


def _after_search(state: ResearchState) -> list[str]:
    """The juniors that are sent to search once more, or the refiner."""
    return list(state["searches"][-1]) or [entrance(REFINER)]


def entrance(role: str) -> str:
    """The node at which the part of `role` begins: its first adviser, or itself."""
    return next(iter(advisers_of(role)), role)


def _retriable(error: Exception) -> bool:
    """True if a retriable model error made the role fail. Roles raise RoleError from the ModelError."""
    return isinstance(error.__cause__, ModelError) and error.__cause__.retriable


def _in_time(name: str, node: Node) -> Node:
    """`node` with a time limit, which stands still while a server's rate limit is waited for; LangGraph's would not."""

    async def limited(state: ResearchState, runtime: Runtime[RunContext]) -> Update:
        deadline = TimeLimit(limit := runtime.context.visit_s)
        try:
            async with deadline:
                return await node(state, runtime)
        except TimeoutError as error:
            if not deadline.expired():
                raise
            text = f"took longer than {limit:g} s: raise rollouts.timeout_s or use a faster model"
            raise RoleError(name, text) from error

    return limited


def build_graph(
    config: SocietyConfig, start: str | None = None, saver: "BaseCheckpointSaver[Any] | None" = None
) -> Graph:
    """The society for `config`, compiled once in a process. With `start`, only the part from that role on.

    With a `saver`, the state is saved after each node, so that the graph can wait for a person and go on later.
    """
    if saver is not None:
        return _graph(config, start).compile(checkpointer=saver)
    return _compile(config, start)  # pyright: ignore[reportArgumentType] - pyright misses the hash of frozen pydantic models


def graph_of_nodes(config: SocietyConfig, change: Callable[[Node], Node]) -> Graph:
    """The society for `config` with every node changed, for callers that cannot pass LangGraph's run context."""
    return _graph(config, None, change).compile()


@cache
def _compile(config: SocietyConfig, start: str | None) -> Graph:
    return _graph(config, start).compile()


def _graph(
    config: SocietyConfig, start: str | None, change: Callable[[Node], Node] | None = None
) -> "StateGraph[ResearchState, RunContext, ResearchState, ResearchState]":
    def after_reviews(state: ResearchState) -> Route:
        return route(
            worst_severity(state["peer_review"], state["safety_review"]),
            critical_used=state.get("critical_revisions", 0),
            major_used=state.get("major_revisions", 0),
            config=config,
        )

    def after_round(state: ResearchState) -> list[str]:
        """The juniors again, until the rounds of the debate are used up."""
        return juniors if state["debates"] <= shape.debate else [SUPERVISOR]

    # The model client has already waited between its own tries, so a role is tried again after a short wait.
    retry = RetryPolicy(initial_interval=0.1, jitter=False, max_attempts=config.node_retries + 1, retry_on=_retriable)
    schema: Any = {"input_schema": Question} if change else {"context_schema": RunContext}
    graph: Any = StateGraph(ResearchState, **schema)
    for name, node in working(config.graph).items():
        limited = _in_time(name, node)
        graph.add_node(name, change(limited) if change else limited, retry_policy=retry)

    shape, juniors = config.graph, list(config.graph.juniors)
    for first in juniors if start is None else (start,):
        graph.add_edge(START, first)
    combines = shape.choose == "combine"
    if combines:
        for junior in juniors:
            graph.add_edge(junior, SUPERVISOR)
        graph.add_conditional_edges(SUPERVISOR, _after_search, [*juniors, entrance(REFINER)])
    else:
        # One edge with a list of sources: what follows waits for all juniors and runs once.
        graph.add_edge([start] if start in JUNIORS else juniors, DEBATE if shape.debate else SUPERVISOR)
    if shape.debate:
        graph.add_conditional_edges(DEBATE, after_round, [*juniors, SUPERVISOR])
    order = [role for role in IN_ORDER if role in working(shape)]
    for role in order:
        for adviser, following in pairwise((*advisers_of(role), role)):
            graph.add_edge(adviser, following)
    chooser, last = () if combines else (SUPERVISOR,), () if shape.reviewed else (PRINCIPAL_INVESTIGATOR,)
    for role, following in pairwise((*chooser, *order, *last)):
        graph.add_edge(role, entrance(following))
    if shape.reviewed:
        graph.add_conditional_edges(
            SAFETY_OFFICER, after_reviews, {route: entrance(role) for route, role in DESTINATIONS.items()}
        )
    if config.confirm:
        graph.add_node(PERSON, person_node(config))
        graph.add_edge(PRINCIPAL_INVESTIGATOR, PERSON)
        graph.add_edge(PERSON, EVALUATION)
    else:
        graph.add_edge(PRINCIPAL_INVESTIGATOR, EVALUATION)
    graph.add_edge(EVALUATION, END)
    return graph
