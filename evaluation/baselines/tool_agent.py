"""One researcher with all tools: a ReAct agent without other roles, review or refinement."""

from typing import cast

from agents.context import Evaluator, RunContext, SupervisorChoice, Tools
from agents.roles import form_of
from agents.state import ResearchState
from agents.visit.record import CallRecord, count, no_operation
from agents.visit.sources import given_sources
from agents.visit.visits import visit
from chimera.config.roles import OWN_TOOLS, RolesConfig
from chimera.config.tree import Config
from chimera.core.errors import ChimeraError, UnreachableError
from chimera.core.types import ResearchTask, shown_options
from chimera.serving.client import Model
from evaluation.baselines.single_agent import ROLE
from evaluation.records.study import BaselineAnswer


def all_tools(roles: RolesConfig) -> tuple[str, ...]:
    """The names of the tools that any role has, Chimera's own first and in their order."""
    named = dict.fromkeys(name for names in roles.tool_names().values() for name in names)
    own_tools = [name for name in OWN_TOOLS if name in named]
    return (*own_tools, *(name for name in named if name not in own_tools))


async def tool_agent(
    model: Model, toolbox: Tools, config: Config, task: ResearchTask, *, name: str, repeat: int, seed: int, sample: int
) -> BaselineAnswer:
    """Let one agent search and answer: one visit, as a junior makes it, with every role's tools.

    It may make `evaluation.agent_tool_calls` calls. An unreadable answer counts as no answer.

    Args:
        task: The task. The agent gets only its brief, and the abstract only with `society.evidence=given`.
        repeat: The repeat of the society's rollout that this is compared with, from 0.
        seed: Seed of sampling. An answer has the sum of this seed and its number.
        sample: Number of the answer, from 0.

    Raises:
        UnreachableError: The model's server cannot be reached.
    """
    records: list[CallRecord] = []
    brief = task.brief()
    context = RunContext(
        brief=brief,
        seed=seed + sample,
        config=config.society.model_copy(update={"max_tool_calls": config.evaluation.agent_tool_calls}),
        slots={ROLE.name: config.slot(ROLE.name)},
        tools={ROLE.name: all_tools(config.roles)},
        model=model,
        toolbox=toolbox,
        evaluate=_nothing,
        select=SupervisorChoice(),
        operation=no_operation,
        observe=records.append,
        guidance={},
    )
    state = {"research_goal": brief.goal, "options": shown_options(brief.options) or None}
    sources = given_sources(brief) if config.society.evidence == "given" else None
    answer, error = None, None
    try:
        inputs = {"form": form_of(config.society.graph, ROLE.name), "sources": sources}
        hypothesis, _ = await visit(ROLE, inputs, cast(ResearchState, state), context, number=1, attempt=1)
        answer = hypothesis.stance
    except UnreachableError:
        raise
    except ChimeraError as fault:
        error = str(fault)
    used = count(records)
    tokens = used["prompt_tokens"], used["completion_tokens"]
    return BaselineAnswer(name, task.id, repeat, answer, error, used["model_calls"], *tokens, sample)


_nothing = cast(Evaluator, None)
"""An agent's answer is compared with the label, so it has no evaluator."""
