"""What a role is told beside its task: a prompt of the user's own, lessons, worked examples and skills."""

from typing import Any

from pydantic import Field

from chimera.config.loader import ConfigSection


class Guidance(ConfigSection):
    """One role's guidance; empty fields change nothing.

    Lessons, examples and skills stand first in the payload of every visit's opening message, so that all prompts of a
    role begin alike and a server reads that part once.
    """

    prompt: str = Field(default="", description="system prompt in place of the role's own (agents/roles.py)")
    skills: tuple[dict[str, str], ...] = Field(
        default=(), description='each has "name", "when" (it helps) and "do" (what to do)'
    )
    lessons: tuple[str, ...] = Field(default=(), description="sentences that it is told with every task")
    examples: tuple[dict[str, Any], ...] = Field(
        default=(), description='tasks with good answers: each has "goal" and the fields of an answer'
    )

    def payload(self) -> dict[str, Any]:
        """The fields of a prompt's payload, without empty ones."""
        return {name: list(value) for name, value in self.given().items() if name != "prompt"}

    def given(self) -> dict[str, Any]:
        """The fields that are not empty."""
        return {name: getattr(self, name) for name in type(self).model_fields if getattr(self, name)}
