"""One visit of a role, as a graph node makes it: inside an operation span, with an answer or an error as its result.

A role that hands over findings reads each study in a visit of its own.
"""

import asyncio
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, cast

from langgraph.runtime import Runtime

from agents.context import RunContext, Tools
from agents.findings import MOST_FINDINGS, Findings
from agents.roles import Role
from agents.schemas import Answer, SafetyReview
from agents.state import ResearchState
from agents.tools.result import ToolResult
from agents.tools.text.excerpts import PARAGRAPH
from agents.tools.text.passages import Passage
from agents.visit.prompting import Message, opening
from agents.visit.quoting import passages_read, quotable
from agents.visit.react import Reply, Visit
from chimera.core.errors import ChimeraError, RoleError
from chimera.core.types import Brief

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
        # A task from which examples were learned must not be shown its own answer.
        others = tuple(example for example in guidance.examples if example.get("goal") != state["research_goal"])
        guidance = guidance.model_copy(update={"examples": others})
        shown = {**guidance.payload(), **inputs, "sources": quotable(inputs.get("sources"), context.config.quotes)}
        guided = replace(role, prompt=guidance.prompt) if guidance.prompt else role
        messages = opening(guided, state["research_goal"], options=state.get("options"), **shown)
        return _answer(role, await Visit(role, context, number, attempt, messages).run()), messages


def _answer(role: Role, reply: Reply) -> Answer:
    """The answer of a visit. An unreadable safety review counts as a CRITICAL review, which blocks the protocol."""
    if reply.answer is not None:
        return reply.answer
    if role.schema is SafetyReview:
        issue = f"the safety review could not be read: {reply.error}"[:160]
        return SafetyReview(issues=[issue], severity="CRITICAL", verdict="REVISE")
    raise RoleError(role.name, f"its answer could not be read, even after one repair: {reply.error}")


async def visits_by_study(
    role: Role, inputs: Inputs, state: ResearchState, context: RunContext, *, number: int, attempt: int
) -> tuple[Findings, list[Message]]:
    """Visits of `role` from `number` on, each of which reads one study; returns the findings and messages of all.

    The first one searches, and is shown the first study of each search. The others are given a study each that it was
    not shown or had no room for, without tools, and are made at the same time: beside others a small model overlooks
    what is wrong with a study. What the role has read in earlier visits is not shown again.

    Raises:
        RoleError, ModelError: As `visit` does, of the first visit that fails. The others are broken off.
    """
    earlier = {passage["id"] for passage in passages_read(state["messages"].get(role.name, ()))}
    tools = _FirstPassages(context.toolbox, earlier)
    turns = [await visit(role, inputs, state, replace(context, toolbox=tools), number=number, attempt=attempt)]
    read = earlier | {passage["id"] for passage in passages_read(turns[0][1])[:MOST_FINDINGS]}
    unread = _one_of_each(passage for result in tools.found for passage in result if passage.id not in read)
    reading = replace(context, tools={**context.tools, role.name: ()})
    tasks: list[asyncio.Task[tuple[Answer, list[Message]]]] = []
    try:
        async with asyncio.TaskGroup() as group:
            for place, passage in enumerate(unread, start=1):
                shown = {**inputs, "sources": [{"id": passage.id, "text": passage.text}]}
                further = visit(role, shown, state, reading, number=number + place, attempt=attempt)
                tasks.append(group.create_task(further))
    except ExceptionGroup as failures:
        first, *_ = failures.exceptions
        raise first from first.__cause__
    turns += [task.result() for task in tasks]
    answers = [cast(Findings, answer) for answer, _ in turns]
    return Findings.joined(answers), [message for _, messages in turns for message in messages]


class _FirstPassages:
    """Tools that show only the first study of each result that is not `read` already.

    Attributes:
        found: What each result holds of studies that are not, in the order of the calls.
    """

    def __init__(self, tools: Tools, read: Collection[str]) -> None:
        self._tools = tools
        self._read = read
        self.found: list[Sequence[Passage]] = []

    def specs(self, names: Sequence[str]) -> list[dict[str, Any]]:
        return self._tools.specs(names)

    async def call(self, name: str, arguments: Mapping[str, Any], *, brief: Brief) -> ToolResult:
        place = len(self.found)
        self.found.append(())
        result = await self._tools.call(name, arguments, brief=brief)
        self.found[place] = unread = _one_of_each(hit for hit in result.passages if hit.id not in self._read)
        note = result.note if unread or not result.passages else "all that was found has been read already"
        return replace(result, passages=unread[:1], note=note)


def _one_of_each(passages: Iterable[Passage]) -> tuple[Passage, ...]:
    """The passages with all texts of each id in one: tools may return a study in pieces."""
    by_id: dict[str, Passage] = {}
    for passage in passages:
        first = by_id.setdefault(passage.id, passage)
        if passage.text not in first.text:
            by_id[passage.id] = replace(first, text=f"{first.text}{PARAGRAPH}{passage.text}")
    return tuple(by_id.values())
