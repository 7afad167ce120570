"""The types that all packages share: labels, options, decisions, sections, briefs and tasks."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from chimera.core.weighing import Vote, weigh

YesNoMaybe = Literal["yes", "no", "maybe"]
Label = str
"""An answer: yes, no or maybe, or the name of one of a task's options."""
Decision = Literal["GO", "NO-GO", "UNDECIDED"]
Severity = Literal["NONE", "MINOR", "MAJOR", "CRITICAL"]
Verdict = Literal["APPROVE", "REVISE"]
Source = Literal["generated", "pubmedqa", "user", "own"]

LABELS: tuple[Label, ...] = get_args(YesNoMaybe)
"""The answers of a task without options."""
DECISIONS: tuple[Decision, ...] = get_args(Decision)

SELECTION, GUIDANCE, GRAPH = POLICIES = "selection", "guidance", "graph"
"""The keys of policies that are no weights in tables of versions, where slots are the keys of weights."""

DECISION_OF_LABEL: dict[Label, Decision] = {"yes": "GO", "no": "NO-GO", "maybe": "UNDECIDED"}

SOURCE_NAMES: dict[Source, str] = {
    "generated": "generated tasks",
    "pubmedqa": "PubMedQA",
    "user": "your question",
    "own": "your data",
}
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
class Option:
    """One of the answers that a task offers. `text` is what it stands for; empty if its name says it all."""

    name: str
    text: str = ""


ShownOptions = dict[str, str] | list[str]
"""Options as JSON in prompts, states and rollouts: text by name, or the names alone if no option has a text."""


def shown_options(options: Sequence[Option]) -> ShownOptions:
    """The options of a task as plain JSON."""
    if any(option.text for option in options):
        return {option.name: option.text for option in options}
    return [option.name for option in options]


def decides(labels: Iterable[Label]) -> bool:
    """True if each label corresponds to a decision, as yes, no and maybe do. Other names have no aligned decision."""
    return all(label in DECISION_OF_LABEL for label in labels)


@dataclass(frozen=True, slots=True)
class Brief:
    """The part of a task that agents may see: no label, no conclusion.

    `options` are the answers to choose from. A question without options is answered by yes, no or maybe.
    """

    id: str
    goal: str
    context: tuple[Section, ...]
    options: tuple[Option, ...] = ()


@dataclass(frozen=True, slots=True)
class ResearchTask:
    """One question with its abstract and its answer key.

    Agents are given `brief()` only. `long_answer` is the abstract's conclusion, which reveals the label. So `repr` does
    not show it, and rollouts and prompts are never made from it.

    `studies` are the documents that searches find, with their ids, if there are several; `context` then holds them all.
    `votes` are the true votes of all, in their order, if the answer is the one that they give together
    (`chimera.core.weighing`).
    """

    id: str
    goal: str
    context: tuple[Section, ...]
    label: Label
    source: Source
    long_answer: str = field(default="", repr=False)
    level: int | None = None
    options: tuple[Option, ...] = ()
    studies: tuple[tuple[str, tuple[Section, ...]], ...] = field(default=(), repr=False)
    votes: tuple[Vote, ...] = field(default=(), repr=False)

    @property
    def labels(self) -> tuple[Label, ...]:
        """The answers to choose from."""
        return tuple(option.name for option in self.options) or LABELS

    def label_after(self, read: Iterable[str]) -> Label:
        """The right answer for somebody who has read no more than the documents with these ids.

        It is the task's label where the evidence has no parts.
        """
        ids = frozenset(read)
        return weigh(vote for vote in self.votes if vote.study in ids) if self.votes else self.label

    def content(self) -> list[Any]:
        """All that the task holds but its id and source, as plain JSON."""
        context = [[section.label, section.text] for section in self.context]
        options = [[option.name, option.text] for option in self.options]
        return [self.goal, context, options, self.label, self.level, self.long_answer]

    def brief(self) -> Brief:
        """The part of the task that agents may see."""
        return Brief(self.id, self.goal, self.context, self.options)


def labels_of(tasks: Iterable[ResearchTask]) -> tuple[Label, ...]:
    """The answers that `tasks` offer, without duplicates, in the order of the tasks."""
    return tuple(dict.fromkeys(label for task in tasks for label in task.labels)) or LABELS
