"""Roles that learn together: those that answer in one form and were told the same, such as the three juniors."""

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

from agents.roles import ROLES, form_of, prompt_in_form
from chimera.config.sections.graph import GraphConfig
from chimera.config.sections.society import Guidance
from chimera.core.types import Label, ResearchTask
from evaluation.records.rollouts import RolloutRecord
from training.learning.experience import Conversation
from training.watch.summary import aligned

RUN = 6
"""So many words in a row of a task's question name the task."""
SHORT = 5
"""A number with fewer digits names no task."""
CALLING = {"answer", "answers", "say", "choose", "conclude", "label", "option"}
BETWEEN = {"is", "be", "with", "as", "to", "that", "the"}


@dataclass(frozen=True, slots=True)
class RoleGroup:
    """Roles that are told the same.

    Attributes:
        roles: In the order of the society.
        heads: The first lines of each role's prompt, which are its own, such as its name and its field.
        instructions: What follows in the prompts of all of them.
    """

    roles: tuple[str, ...]
    heads: tuple[str, ...]
    instructions: str

    @property
    def name(self) -> str:
        """One word for it, in the words of people."""
        return "+".join(self.roles)

    def prompts(self, instructions: str) -> dict[str, str]:
        """Each role's prompt with other `instructions`."""
        return {role: f"{head}\n{instructions}" for role, head in zip(self.roles, self.heads, strict=True)}


def role_groups(roles: Sequence[str], guidance_of: Callable[[str], Guidance], graph: GraphConfig) -> list[RoleGroup]:
    """The learners among `roles`: those that have one schema and end their prompts alike learn together.

    Args:
        guidance_of: What each role is told now.
        graph: The live one, which decides the form of answers that prompts ask for.
    """
    groups: dict[type, list[str]] = {}
    for role in roles:
        groups.setdefault(ROLES[role].schema, []).append(role)
    by_group: list[RoleGroup] = []
    for members in groups.values():
        prompts = [guidance_of(role).prompt or ROLES[role].prompt for role in members]
        in_form = [prompt_in_form(text, form_of(graph, role)) for role, text in zip(members, prompts, strict=True)]
        lines = [text.strip("\n").split("\n") for text in in_form]
        alone = [([role], [prompt]) for role, prompt in zip(members, lines, strict=True)]
        for names, prompts in [(members, lines)] if _common_tail(lines) else alone:
            tail = _common_tail(prompts)
            heads = tuple("\n".join(prompt[: len(prompt) - tail]) for prompt in prompts)
            by_group.append(RoleGroup(tuple(names), heads, "\n".join(prompts[0][len(prompts[0]) - tail :])))
    return by_group


def _common_tail(prompts: Sequence[Sequence[str]]) -> int:
    """How many of their last lines are the same; the first line names the role and never counts."""
    most = min(map(len, prompts)) - 1
    return next((size for size in range(most, 0, -1) if len({tuple(prompt[-size:]) for prompt in prompts}) == 1), 0)


def failure(record: RolloutRecord, conversation: Conversation | None) -> dict[str, object] | None:
    """What went wrong in a rollout, for whoever writes what a role is told next; None if it was right.

    Args:
        conversation: What the role said; None to blame the society's answer.
    """
    said_by_role = None if conversation is None else conversation.stance
    answer = record.answer if said_by_role is None else said_by_role
    if record.error is None and answer == record.label:
        return None
    reviews = [
        issue for name in ("peer_review", "safety_review") for issue in record.outputs.get(name, {}).get("issues", ())
    ]
    shown = {} if conversation is None else {"output": conversation.answer}
    return {
        **shown,
        **({"reviews": reviews} if reviews else {}),
        **({"error": record.error} if record.error else {}),
        "answered": answer,
        "right": record.label,
    }


def is_right(record: RolloutRecord, conversation: Conversation) -> bool:
    """True if the society was right, and so was the role, if what it said answers the question."""
    return bool(aligned(record)) and conversation.stance in (None, record.label)


def tells_too_much(text: str, tasks: Iterable[ResearchTask]) -> str | None:
    """Why `text` names a task, so that it would help with this task only; None if it does not.

    Ids that are short numbers name no task: lessons hold such numbers for other reasons.
    """
    words = _words(text)
    spans = {tuple(words[at : at + RUN]) for at in range(len(words) - RUN + 1)}
    for task in tasks:
        goal = _words(task.goal)
        if not (task.id.isdecimal() and len(task.id) < SHORT) and _holds(words, task.id):
            return f"it names the task {task.id}"
        if any(tuple(goal[at : at + RUN]) in spans for at in range(len(goal) - RUN + 1)):
            return f"it quotes the question of the task {task.id}"
    return None


def names_a_label(text: str, labels: Collection[Label]) -> str | None:
    """Why `text` says what to answer; None if it does not.

    Labels of one or two letters, such as `no` and `A`, are words of their own and count only where they are quoted or
    called an answer. A single letter counts only as it is written, because "a" is an article.
    """
    written, words = re.findall(r"\w+", text), _words(text)
    for label in labels:
        quoted = any(f"{mark}{label}{mark}".lower() in text.lower() for mark in "\"'`")
        called = _called(written, label) or (len(label) == 2 and _called(words, label.lower()))
        if quoted or called or (len(label) > 2 and _holds(words, label)):
            return f"it names the answer {label!r}"
    return None


def _called(words: Sequence[str], label: Label) -> bool:
    """True if `label` follows a word that calls it an answer, with nothing but small words between."""
    for place in (place for place, word in enumerate(words) if word == label):
        before = [word.lower() for word in words[:place]]
        while before and before[-1] in BETWEEN:
            before.pop()
        if before and before[-1] in CALLING:
            return True
    return False


def _holds(words: Sequence[str], phrase: str) -> bool:
    """True if the words of `phrase` stand in a row among `words`."""
    return f" {' '.join(_words(phrase))} " in f" {' '.join(words)} "


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())
