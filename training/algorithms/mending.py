"""Pairs of an answer in parts and the same answer with right parts of others in place of its wrong ones. Pure.

A junior's findings of a few studies are some 500 tokens long, of which two or three decide. Two answers that were drawn
differ in many others, too; an answer and the same mended differ in what was wrong alone.
"""

import json
import re
from collections.abc import Callable
from dataclasses import replace

from agents.findings import Findings, findings_right
from training.algorithms.pairs import AnswerPair, different
from training.learning.examples import Render
from training.learning.experience import Call
from training.learning.groups import AnswerGroup
from training.learning.states import State

Encode = Callable[[State, Call], tuple[int, ...] | None]
"""The tokens of an answer to a state; None if it cannot be rendered."""
_LIST = re.compile(r'"findings"\s*:\s*\[\s*')
_COMMA = re.compile(r"\s*,\s*")


def that_mend(group: AnswerGroup, most: int, encode: Encode) -> list[AnswerPair]:
    """At most `most` pairs of a state, those in which most is mended first; none where answers have no parts.

    Args:
        encode: An answer whose tokens it does not give as they were sampled is in no pair, since tokens would tell the
            two sides of it apart.
    """
    right = _right_parts(group)
    texts = [(valued.call, _mended(valued.call, group.state, right)) for valued in different(group) if right]
    ranked = sorted(texts, key=lambda mended: -mended[1][1])
    pairs: list[AnswerPair] = []
    for call, (text, count) in ranked:
        if len(pairs) < most and count and encode(group.state, call) == call.response_ids:
            chosen = _saying(call, text)
            if ids := encode(group.state, chosen):
                pairs.append(AnswerPair(group.state, replace(chosen, response_ids=ids), call, "mended"))
    return pairs


def encoder(render: Render) -> Encode:
    """Encodes answers as `render` does whole conversations."""

    def encode(state: State, call: Call) -> tuple[int, ...] | None:
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
            text = _text(valued.call)
            right, places = findings_right(answer, group.state.votes), findings_at(text)
            for study, place in places.items():
                if right.get(study):
                    parts.setdefault(study, text[place])
    return parts


def _mended(call: Call, state: State, right_parts: dict[str, str]) -> tuple[str, int]:
    """The text of an answer with right findings in place of wrong ones, and their number."""
    answer, text = call.answer, _text(call)
    if not isinstance(answer, Findings):
        return text, 0
    right, count = findings_right(answer, state.votes), 0
    for study, place in reversed(findings_at(text).items()):
        if not right.get(study, True) and study in right_parts:
            text, count = text[: place.start] + right_parts[study] + text[place.stop :], count + 1
    return text, count


def _text(call: Call) -> str:
    assert call.asked is not None
    return call.asked.choice["message"].get("content") or ""


def _saying(call: Call, text: str) -> Call:
    """The call with another text as its answer."""
    assert call.asked is not None
    choice = call.asked.choice
    changed = {**choice, "message": {**choice["message"], "content": text}}
    return replace(call, asked=replace(call.asked, choice=changed))
