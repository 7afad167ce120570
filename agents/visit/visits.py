"""One visit of a role, as a graph node makes it: inside an operation span, with an answer or an error as its result."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from langgraph.runtime import Runtime

from agents.context import RunContext
from agents.roles import Role
from agents.schemas import Answer, SafetyReview
from agents.state import ResearchState
from agents.visit.prompting import Message, opening
from agents.visit.quoting import quotable
from agents.visit.react import Turn, Visit
from chimera.core.errors import ChimeraError, RoleError

Inputs = dict[str, Any]
"""The payload of a role's first message, without the goal."""


def visits(messages: Mapping[str, Sequence[Mapping[str, Any]]], role: str) -> int:
    """Number of earlier visits of `role`: each visit begins with a system message."""
    return sum(message["role"] == "system" for message in messages.get(role, ()))


def attempt_of(runtime: Runtime[RunContext]) -> int:
    """Number of LangGraph's current attempt at this node, from 1."""
    return runtime.execution_info.node_attempt if runtime.execution_info else 1


@contextmanager
def errors_of(role: str) -> Iterator[None]:
    """Turn every `ChimeraError` into a `RoleError` of that role."""
    try:
        yield
    except RoleError:
        raise
    except ChimeraError as error:
        raise RoleError(role, str(error)) from error


async def visit(
    role: Role, inputs: Inputs, state: ResearchState, context: RunContext, *, number: int, attempt: int
) -> tuple[Answer, list[Message]]:
    """Make visit `number` of `role` inside one operation span; returns its answer and its messages.

    Raises:
        RoleError: The answer was still unreadable after the repair.
        ModelError: The model's server failed.
    """
    attributes = {"role": role.name, "model": context.slots[role.name], "visit": number, "attempt": attempt}
    with context.operation(role.name, attributes):
        guidance = context.told(role.name)
        shown = {**guidance.payload(), **inputs, "sources": quotable(inputs.get("sources"), context.config.quotes)}
        guided = replace(role, prompt=guidance.prompt) if guidance.prompt else role
        messages = opening(guided, state["research_goal"], options=state.get("options"), **shown)
        turn = await Visit(role, context, number, attempt, messages).run()
        return _answer(role, turn), turn.messages


def _answer(role: Role, turn: Turn) -> Answer:
    """The turn's answer. An unreadable safety review counts as a CRITICAL review, which blocks the protocol."""
    if turn.answer is not None:
        return turn.answer
    if role.schema is SafetyReview:
        issue = f"the safety review could not be read: {turn.error}"[:160]
        return SafetyReview(issues=[issue], severity="CRITICAL", verdict="REVISE")
    raise RoleError(role.name, f"its answer could not be read, even after one repair: {turn.error}")
