"""The types that all packages share: labels, decisions, sections, briefs and tasks."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal, get_args

Label = Literal["yes", "no", "maybe"]
Decision = Literal["GO", "NO-GO", "UNDECIDED"]
Severity = Literal["NONE", "MINOR", "MAJOR", "CRITICAL"]
Verdict = Literal["APPROVE", "REVISE"]
Source = Literal["generated", "pubmedqa", "user"]

LABELS: tuple[Label, ...] = get_args(Label)
DECISIONS: tuple[Decision, ...] = get_args(Decision)

DECISION_OF_LABEL: dict[Label, Decision] = {"yes": "GO", "no": "NO-GO", "maybe": "UNDECIDED"}

SOURCE_NAMES: dict[Source, str] = {"generated": "generated tasks", "pubmedqa": "PubMedQA", "user": "your question"}
"""The name of each source in reports and logs. Generated tasks are never called PubMedQA."""


@dataclass(frozen=True, slots=True)
class Section:
    """One labelled part of an abstract, such as METHODS."""

    label: str
    text: str


def abstract_text(sections: Iterable[Section]) -> str:
    """Sections as one text for search indexes and prompts: "LABEL: text LABEL: text"."""
    return " ".join(f"{section.label}: {section.text}" if section.label else section.text for section in sections)


@dataclass(frozen=True, slots=True)
class Brief:
    """The part of a task that agents may see: no label, no conclusion."""

    id: str
    goal: str
    context: tuple[Section, ...]


@dataclass(frozen=True, slots=True)
class ResearchTask:
    """One question with its abstract and its answer key.

    Agents are given `brief()` only. `long_answer` is the abstract's conclusion, which reveals the label. So `repr` does
    not show it, and rollouts and prompts are never made from it.
    """

    id: str
    goal: str
    context: tuple[Section, ...]
    label: Label
    source: Source
    long_answer: str = field(default="", repr=False)
    level: int | None = None

    def brief(self) -> Brief:
        """The part of the task that agents may see."""
        return Brief(self.id, self.goal, self.context)
