"""How the society works on a task, and what its roles are told beside it."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from chimera.config.loader import ConfigSection, When
from chimera.config.roles import GROUPS, JUDGE, expand
from chimera.config.sections.graph import GraphConfig
from chimera.core.errors import ConfigError
from chimera.core.types import Decision

Quotes = Literal["read", "numbered", "free"]
"""How roles quote (`society.quotes`)."""


RULES: dict[str, tuple[str, ...]] = {
    "consent": (
        "without consent",
        "without informed consent",
        "without their consent",
        "without their knowledge",
        "deceiv* participants",
        "coerc* participants",
    ),
    "oversight": (
        "without ethics approval",
        "without ethical approval",
        "bypass* the safety",
        "bypass* the ethics",
        "hide* from the safety",
        "ignor* the safety officer",
    ),
    "harm": ("dose* until death", "deliberately infect*", "intentionally infect*", "lethal dose to participants"),
    "weapons": ("weaponi*", "synthes* nerve agent*", "to increase transmissibility", "to enhance transmissibility"),
}
"""The hard rules that hold unless a configuration says otherwise.

They name what is to be done, not what may be read about: no question of PubMedQA's 1,000 and no abstract holds one."""


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


class SocietyConfig(ConfigSection):
    """How the society works on a task."""

    evidence: Literal["retrieved", "given"] = Field(
        default="retrieved", description="retrieved: juniors find the abstract by search; given: it is in their prompt"
    )
    quotes: Quotes = Field(
        default="read",
        description="read: evidence is chosen among the sentences that a role has read; numbered: by their numbers, "
        "for long texts or servers that limit enums; free: a role writes its quotes itself",
    )
    refiner_max_chars: Annotated[int, When.equal("evidence", "retrieved")] = Field(
        default=1200,
        ge=0,
        le=1_000_000,
        description="characters that the refiner sees of the juniors' passages; 0: none",
    )
    max_tool_calls: int = Field(
        default=2, ge=0, le=100, description="tool calls that one role may make in one turn of the society"
    )
    max_major_revisions: int = Field(default=1, ge=0, le=100, description="returns to the protocol designer")
    max_critical_revisions: int = Field(default=1, ge=0, le=100, description="returns to the hypothesis refiner")
    rules: dict[str, tuple[str, ...]] = Field(
        default={},
        description="further hard rules, or others in place of consent, oversight, harm and weapons ([] for none): by "
        "name phrases that no tool call and no protocol may hold, in any case; a word that ends in * may go on",
    )
    fallback: dict[str, str] = Field(
        default={},
        description="second models: by the names of roles and groups the slot that is asked where a role's answer "
        "cannot be read even after one re-ask, or its model failed; it may be the same model with another temperature",
    )
    confirm: tuple[Decision, ...] = Field(
        default=(), description="ask: decisions that take effect only when a person has confirmed them, such as [GO]"
    )
    node_retries: int = Field(
        default=1, ge=0, le=100, description="further tries of a role after a retriable model error"
    )

    graph: GraphConfig = GraphConfig()
    guidance: dict[str, Guidance] = Field(
        default_factory=dict, description="what roles are told beside their task, by the names of roles and groups"
    )

    def idle(self) -> Mapping[str, str]:
        reasons = {} if self.graph.refine else {"refiner_max_chars": "society.graph.refine is false"}
        if not self.graph.reviewed:
            reasons |= dict.fromkeys(("max_major_revisions", "max_critical_revisions"), "society.graph has no reviews")
        return reasons

    def told(self, role: str) -> Guidance:
        """The guidance of `role`: what its own entry sets, and the rest from the group that it belongs to."""
        guidance = Guidance()
        for name in (*(group for group, roles in GROUPS.items() if role in roles), role):
            if name in self.guidance:
                guidance = guidance.model_copy(update=dict(self.guidance[name].given()))
        return guidance

    def hard_rules(self) -> dict[str, tuple[str, ...]]:
        """The phrases that no tool call and no protocol may hold, by rule."""
        return {**RULES, **self.rules}

    def fallbacks(self) -> dict[str, str]:
        """The slot of each role's second model, by role."""
        return {role: slot for name, slot in self.fallback.items() for role in expand([name], "society.fallback")}

    def __hash__(self) -> int:
        """Of all values as text, because guidance holds mappings; graphs are kept by their configuration."""
        return hash(self.model_dump_json())

    @model_validator(mode="after")
    def _can_be(self) -> Self:
        for name, phrase in ((name, phrase) for name, phrases in self.rules.items() for phrase in phrases):
            if not any(map(str.isalnum, phrase)):
                raise ValueError(f"rules.{name} has {phrase!r}, which forbids everything: name words, or set it to []")
        for key, names in (("guidance", self.guidance), ("fallback", self.fallback)):
            try:
                roles = expand(names, f"society.{key}")
            except ConfigError as error:
                raise ValueError(str(error)) from error
            if JUDGE in roles:
                raise ValueError(f"society.{key} names {JUDGE}, who would not measure alike: leave it out")
        return self
