"""The model that writes lessons and instructions for a role, from tasks on which it failed."""

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import Field, StringConstraints

from agents.roles import Role
from agents.schemas import Answer
from agents.visit.prompting import opening, response_format
from agents.visit.react import read_answer
from chimera.config.tree import Config
from training.guidance.search import GuidanceSearch

LONGEST_PROMPT = 8000
"""Characters of a role's instructions."""

Lesson = Annotated[str, StringConstraints(min_length=1, max_length=300, strip_whitespace=True)]


class Lessons(Answer):
    """Sentences that a role is told with every task."""

    lessons: Annotated[list[Lesson], Field(min_length=1, max_length=2)]


class Instructions(Answer):
    """A role's instructions as a whole."""

    prompt: Annotated[str, StringConstraints(min_length=1, max_length=LONGEST_PROMPT, strip_whitespace=True)]


LESSONS = Role(
    "LessonWriter",
    """You write lessons for a member of a research team.
You are given what the member is told to do ("instructions"), the lessons that it has, and tasks on which it failed:
what it was asked, what it answered, what would have been right, and what reviewers said. Find what these failures have
in common. Answer with one JSON object: "lessons": one or two short sentences that would have prevented them and hold
for other tasks too. Say how to read and weigh evidence; name no task, no quotation and no answer.""",
    Lessons,
)
INSTRUCTIONS = Role(
    "InstructionWriter",
    """You improve the instructions of a member of a research team.
You are given its instructions ("prompt") and tasks that it worked on: what it was asked, what it answered, whether that
was right, and what reviewers said. Find what led to the wrong answers. Answer with one JSON object: "prompt": the whole
instructions, improved. Keep what is said about the form of the answer word for word, add or change what prevents the
failures, and name no task and no quotation.""",
    Instructions,
)


async def write(search: GuidanceSearch, slot: str, writer: Role, goal: str, seed: int, **inputs: Any) -> Answer | None:
    """The answer of a slot's model as `writer`; None if it cannot be read.

    Args:
        goal: What is asked, in a sentence.
        seed: Another seed gives another answer.

    Raises:
        BudgetSpentError: The budget allows no further question.
        ModelError: The model's server failed.
    """
    messages = opening(writer, goal, **inputs)
    completion = await search.ask(slot, messages, response_format=response_format(writer), seed=seed)
    try:
        return read_answer(writer, completion)
    except ValueError:
        return None


def slot_of(model: str | None, roles: Sequence[str], config: Config) -> str:
    """The slot that writes: the one that a phase names, or that of the first role that learns."""
    return model or config.slot(roles[0])
