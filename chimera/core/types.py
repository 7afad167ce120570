"""The nouns that every package shares: labels, decisions, sections, briefs and tasks."""

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
"""How reports and logs name each kind of task; generated tasks are never called PubMedQA."""


@dataclass(frozen=True, slots=True)
class Section:
    """One labelled part of an abstract, such as METHODS."""

    label: str
    text: str


def abstract_text(sections: Iterable[Section]) -> str:
    """Sections as one text, as searches index it and prompts hold it: "LABEL: text LABEL: text"."""
    return " ".join(f"{section.label}: {section.text}" if section.label else section.text for section in sections)


@dataclass(frozen=True, slots=True)
class Brief:
    """What the agents may see of a task: no label, no conclusion."""

    id: str
    goal: str
    context: tuple[Section, ...]


@dataclass(frozen=True, slots=True)
class ResearchTask:
    """One question with its abstract and its answer key.

    Agents are given `brief()` only. `long_answer` is the abstract's conclusion: it gives the answer away, so it is
    kept out of `repr` and out of everything that a rollout or a prompt is made from.
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
