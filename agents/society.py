"""The society: takes a brief and returns the finished research state."""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from langgraph.runtime import Runtime
from langgraph.types import Command

from agents.context import AS_CONFIGURED, Evaluator, LearnedSociety, RunContext, Selector, SupervisorChoice, Tools
from agents.graph import Graph, build_graph, graph_of_nodes, step_limit
from agents.nodes import Node
from agents.person import PERSON
from agents.roles import SUPERVISOR
from agents.state import ResearchState, Update, without
from agents.visit.record import CallRecord, Observer, Operation, no_observer, no_operation
from chimera.config.roles import JUNIORS, RolesConfig
from chimera.config.sections.society import SocietyConfig
from chimera.core.errors import ConfigError
from chimera.core.types import Brief, shown_options
from chimera.serving.client import Model

if TYPE_CHECKING:
    from langgraph.checkpoint.base import BaseCheckpointSaver


WAITS = "waits_for"
"""The key under which `Society.stream` yields what a person has to confirm."""


@dataclass(frozen=True, slots=True)
class Saved:
    """Where the state of one question is kept.

    Attributes:
        verdict: A person's verdict as plain data, or `agents.person.SKIP`, to continue a state that waits for one.
    """

    saver: "BaseCheckpointSaver[Any]"
    thread: str
    verdict: Mapping[str, Any] | str | None = None


@dataclass(frozen=True, slots=True)
class Start:
    """Where a run begins that goes on from a recorded one.

    Attributes:
        state: What `Society.before` returned for `role`.
        records: The calls that it took, for the reward.
    """

    role: str
    state: ResearchState
    records: Sequence[CallRecord]


class Society:
    """Nine roles that answer briefs, one or many at once. It keeps no state between runs.

    Args:
        config: How the society works: evidence, limits of revisions.
        roles: The slot whose model plays each role, and the tools that it may call.
        evaluate: Scores each finished state; fills `final_evaluation`.
        operation: Opens a span around each visit of a role, with attributes role, model, visit and attempt.
        select: Selects the hypothesis, unless `run` is given a selector. Default: the supervisor's model.
        timeout_s: Seconds that a whole run may take; one visit of a role may take three fifths of it.
    """

    def __init__(
        self,
        model: Model,
        toolbox: Tools,
        config: SocietyConfig,
        roles: RolesConfig,
        *,
        evaluate: Evaluator,
        operation: Operation = no_operation,
        observe: Observer = no_observer,
        timeout_s: float = 300.0,
    ) -> None:
        self._model = model
        self._toolbox = toolbox
        self._config = config
        self._slots = roles.slots()
        self._tools = roles.tool_names()
        self._evaluate = evaluate
        self._operation = operation
        self._observe = observe
        self._visit_s = timeout_s * 3 / 5
        build_graph(config)  # Compiled once in a process, before anything is asked.

    async def run(
        self,
        brief: Brief,
        seed: int | None = None,
        *,
        select: Selector | None = None,
        learned: LearnedSociety = AS_CONFIGURED,
        start: Start | None = None,
    ) -> ResearchState:
        """Answer `brief` and return the final state. Every model call gets a seed derived from `seed`, if given.

        Args:
            brief: The question, and what the agents may see of its task.
            select: Selects the hypothesis in this run, instead of the society's selector.
            learned: What was learned for the society as a whole.
            start: Where the run begins; None for the whole task.

        Raises:
            RoleError: A role failed or ran out of time; the message names it.
        """
        context = self._context(brief, seed, select, learned)
        if start is None:
            return await self._invoke(build_graph(context.config), _input(brief), context)
        return await self._invoke(build_graph(context.config, start.role), start.state, context)

    async def before(
        self,
        role: str,
        brief: Brief,
        seed: int | None = None,
        *,
        select: Selector | None = None,
        learned: LearnedSociety = AS_CONFIGURED,
    ) -> ResearchState:
        """Run until just before the first visit of `role`; returns the state.

        Juniors work at the same time, so the state before one junior holds the other juniors' hypotheses.

        Raises:
            RoleError: As for `run`.
            ConfigError: Juniors debate, and `role` is one.
        """
        stop = SUPERVISOR if role in JUNIORS else role
        context = self._context(brief, seed, select, learned)
        if role in JUNIORS and context.config.graph.debate:
            raise ConfigError(
                f"{role} debates (society.graph.debate), so there is no state before it alone: name another"
            )
        graph = build_graph(context.config)
        state = await self._invoke(graph, _input(brief), context, interrupt_before=[stop])
        return without(state, role) if role in JUNIORS else state

    async def stream(
        self,
        brief: Brief,
        seed: int | None = None,
        *,
        select: Selector | None = None,
        learned: LearnedSociety = AS_CONFIGURED,
        saved: Saved | None = None,
    ) -> AsyncIterator[tuple[str, Mapping[str, Any]]]:
        """Yield (node name, its update of the state) as each node ends; arguments and errors as for `run`.

        With `saved`, the state is kept after each node. If a person has to confirm the decision, the last pair is
        (`agents.person.PERSON`, the fields to confirm): call it again with a verdict.
        """
        context = self._context(brief, seed, select, learned)
        graph, entry, limits = build_graph(context.config), _input(brief), _limits(context.config)
        if saved is not None:
            graph = build_graph(context.config, saver=saved.saver)
            limits |= {"configurable": {"thread_id": saved.thread}}
            if saved.verdict is not None:
                entry = Command(resume=saved.verdict)
            elif (await saved.saver.aget_tuple({"configurable": {"thread_id": saved.thread}})) is not None:
                entry = None  # Go on behind the last node that ended.
        # By default LangGraph saves a state while the next node works, so that a kill would lose a node's work.
        durability: dict[str, Any] = {} if saved is None else {"durability": "sync"}
        updates = graph.astream(entry, limits, context=context, stream_mode="updates", **durability)
        async for step in updates:
            for node, update in step.items():
                if node == "__interrupt__":
                    yield PERSON, {WAITS: update[0].value}
                else:
                    yield node, update or {}

    def standing(self, brief_of: Callable[[str], Brief]) -> Graph:
        """The graph for a server that gives it only a question, such as LangGraph Studio's.

        Its input is {"research_goal": text}. Its nodes find the brief anew, so that a state can be edited and gone on
        from anywhere.

        Args:
            brief_of: Finds the brief by the text; raises a ChimeraError if there is none.
        """

        def change(node: Node) -> Node:
            async def standing_node(state: ResearchState, runtime: Runtime[Any]) -> Update:
                brief = brief_of(state["research_goal"])
                research = cast(ResearchState, {**state, **_input(brief)})
                return await node(research, runtime.override(context=self._context(brief, None, None, AS_CONFIGURED)))

            return standing_node

        return graph_of_nodes(self._config, change)

    async def _invoke(self, graph: Graph, entry: Any, context: RunContext, **options: Any) -> ResearchState:
        return cast(ResearchState, await graph.ainvoke(entry, _limits(context.config), context=context, **options))

    def _context(self, brief: Brief, seed: int | None, select: Selector | None, learned: LearnedSociety) -> RunContext:
        changed = {} if learned.graph is None else {"graph": learned.graph}
        return RunContext(
            brief=brief,
            seed=seed,
            config=self._config.model_copy(update=changed) if changed else self._config,
            slots=self._slots,
            tools=self._tools,
            model=self._model,
            toolbox=self._toolbox,
            evaluate=self._evaluate,
            select=select or SupervisorChoice(),
            operation=self._operation,
            observe=self._observe,
            guidance=learned.guidance,
            visit_s=self._visit_s,
            fallback=self._config.fallbacks(),
        )


def _limits(config: SocietyConfig) -> Any:
    return {"recursion_limit": step_limit(config)}


def _input(brief: Brief) -> Any:
    options = {"options": shown_options(brief.options)} if brief.options else {}
    return {"research_goal": brief.goal, **options}
