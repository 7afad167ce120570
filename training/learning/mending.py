"""Answers in parts, with right parts of other answers to the same prompt in place of their wrong ones. Pure.

A junior's findings of a few studies are some 500 tokens long, of which two or three decide. Two answers that were drawn
differ in many others, too; an answer and the same mended differ in what was wrong alone.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import replace

from agents.findings import Findings, findings_right
from training.learning.examples import Render
from training.learning.experience import Call
from training.learning.groups import AnswerGroup
from training.learning.states import State

Encode = Callable[[State, Call], tuple[int, ...]]
"""The tokens of an answer to a state."""
_LIST = re.compile(r'"findings"\s*:\s*\[\s*')
_COMMA = re.compile(r"\s*,\s*")


def mendings(group: AnswerGroup) -> list[tuple[Call, Call]]:
    """The different answers of a group that can be mended, each with the mended one, the most mended first.

    None where answers have no parts. A mended answer has no token ids.
    """
    right = _right_parts(group)
    texts = ((valued.call, *_mended(valued.call, group.state, right)) for valued in group.different) if right else ()
    ranked = sorted((text for text in texts if text[2]), key=lambda text: -text[2])
    return [(call, _saying(call, text)) for call, text, _ in ranked]


def encoder(render: Render) -> Encode:
    """Encodes answers as `render` does whole conversations."""

    def encode(state: State, call: Call) -> tuple[int, ...]:
        row = render(state.conversation.answered_by(call))[-1]
        prompt = max(place for place, learned in enumerate(row.learned) if not learned) + 1
        return row.ids[prompt:]

    return encode


def findings_at(text: str) -> dict[str, slice]:
    """Where in the text of an answer the finding of each study stands; empty if it has no findings."""
    places: dict[str, slice] = {}
    if (opening := _LIST.search(text)) is None:
        return places
    at = opening.end()
    while text.startswith("{", at):
        finding, end = json.JSONDecoder().raw_decode(text, at)
        places.setdefault(finding["study"], slice(at, end))
        comma = _COMMA.match(text, end)
        at = comma.end() if comma else len(text)
    return places


def _right_parts(group: AnswerGroup) -> dict[str, str]:
    """The text of a right finding of each study of which an answer has one: that of the best answer."""
    parts: dict[str, str] = {}
    for valued in sorted(group.answers, key=lambda valued: -valued.worth.value):
        if isinstance(answer := valued.call.answer, Findings):
            text, right = _text(valued.call), findings_right(answer, group.state.votes)
            for study, place in findings_at(text).items():
                if right.get(study):
                    parts.setdefault(study, text[place])
    return parts


def _mended(call: Call, state: State, right_parts: Mapping[str, str]) -> tuple[str, int]:
    """The text of an answer with right findings in place of wrong ones, and their number."""
    answer, text, parts = call.answer, _text(call), 0
    if not isinstance(answer, Findings):
        return text, parts
    right = findings_right(answer, state.votes)
    for study, place in reversed(findings_at(text).items()):
        if not right.get(study, True) and study in right_parts:
            text, parts = text[: place.start] + right_parts[study] + text[place.stop :], parts + 1
    return text, parts


def _text(call: Call) -> str:
    assert call.asked is not None
    return call.asked.choice["message"].get("content") or ""


def _saying(call: Call, text: str) -> Call:
    """The call with another text as its answer, which nobody sampled: without token ids and log-probabilities."""
    assert call.asked is not None
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
    return replace(call, response_ids=(), asked=replace(call.asked, choice=choice, response_ids=None))
