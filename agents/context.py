"""LangGraph's run context: what the nodes of one run share besides the state. One compiled graph serves all runs."""

import hashlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from agents.tools.result import Tools
from agents.visit.record import Observer, Operation
from chimera.config.sections.graph import GraphConfig
from chimera.config.sections.society import Guidance, SocietyConfig
from chimera.core.types import Brief
from chimera.run.policies import BY_MODEL
from chimera.serving.client import Model

Evaluator = Callable[[Mapping[str, Any], Brief], Awaitable[Mapping[str, Any]]]
"""Scores a finished state; its result becomes `final_evaluation`."""
Guided = Mapping[str, Guidance]
"""What roles have learned to be told, by role; it replaces the fields of `society.guidance` that it sets."""


@dataclass(frozen=True, slots=True)
class LearnedSociety:
    """What was learned for the society as a whole.

    Attributes:
        graph: Who works in which order; None for `society.graph`.
    """

    guidance: Guided = field(default_factory=dict)
    graph: GraphConfig | None = None


AS_CONFIGURED = LearnedSociety()


@dataclass(frozen=True, slots=True)
class Choice:
    """The junior whose hypothesis is selected, and the policy that selected it.

    `propensities` holds the probability of each author when this choice was drawn. None: not known.
    """

    author: str
    policy: str
    propensities: Mapping[str, float] | None = None


@dataclass(frozen=True, slots=True)
class Candidates:
    """A selector's input: the question, the juniors' hypotheses, and the passages that they have seen.

    Where findings are combined, `agents.findings.SEARCH_AGAIN` stands in place of hypotheses, and `cues` tells in
    numbers how things stand (`agents.findings.search_cues`).
    """

    goal: str
    hypotheses: Sequence[Mapping[str, Any]]
    sources: Sequence[Mapping[str, str]]
    cues: Mapping[str, float] = field(default_factory=dict)


class Selector(Protocol):
    """Selects one hypothesis, or whether juniors search once more. A learned policy implements this.

    It derives every random draw from `seed`, the run's seed, so that a seeded run repeats exactly.
    """

    def propose(self, candidates: Candidates, seed: int | None) -> Choice | None:
        """Choose before the supervisor's model is asked; the model then only justifies. None: ask the model first."""
        ...

    def select(self, candidates: Candidates, preferred: str, seed: int | None) -> Choice:
        """Choose after the model when `propose` returned None. `preferred` is the model's own choice."""
        ...


class SupervisorChoice:
    """The default `Selector`: takes the choice of the supervisor's model."""

    def propose(self, candidates: Candidates, seed: int | None) -> None:
        return

    def select(self, candidates: Candidates, preferred: str, seed: int | None) -> Choice:
        return Choice(preferred, BY_MODEL)


@dataclass(frozen=True, slots=True)
class RunContext:
    """One run's brief, seed and services.

    `slots` maps each role to the slot whose model plays it, `tools` to the names of the tools that it may call. One
    visit of a role may take `visit_s` seconds.
    `guidance` is what roles have learned to be told, `fallback` maps roles to the slot of their second model.
    """

    brief: Brief
    seed: int | None
    config: SocietyConfig
    slots: Mapping[str, str]
    tools: Mapping[str, Sequence[str]]
    model: Model
    toolbox: Tools
    evaluate: Evaluator
    select: Selector
    operation: Operation
    observe: Observer
    guidance: Guided
    visit_s: float = 180.0
    fallback: Mapping[str, str] = field(default_factory=dict)

    def told(self, role: str) -> Guidance:
        """What `role` is told beside its task: by the configuration, and in its place what was learned."""
        guidance = self.config.told(role)
        return guidance.model_copy(update=self.guidance[role].given()) if role in self.guidance else guidance

    def seed_of(self, role: str, visit: int, step: int) -> int | None:
        """The sampling seed of one model call, derived from the run's seed; None when the run has none.

        A retried visit gets the same seeds, so a server's failure does not change a seeded run's result.
        """
        if self.seed is None:
            return None
        digest = hashlib.sha256(f"{self.seed}/{role}/{visit}/{step}".encode()).digest()
        return int.from_bytes(digest[:4], "big") >> 1
